"""The engine behind an admission control: it measures what each piece of work takes, predicts waits, and refuses work that would be too late, or a flood.

- The engine works in the order of arrival. So a piece of work began when it was submitted or when the piece before it was done, whichever was later.
- A helper makes the user half of a long history outside the queue (`Engine.is_long`). It waits only for other such halves, and nothing in the queue waits
  for it. Counted in the queue, one half of 50,000 behaviours would have every ranking refused for 20 ms.
- In a flood, one decision is given to every request until a place may be free. So a refusal costs almost no time of the cores that compute.
- Called from the event loop. Futures finish in the engine's threads, so a lock protects the state.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import Counter

from infra.metrics import Metrics
from schemas.errors import Unavailable
from schemas.token import VersionToken
from serving.core.admission import (
    FLOOD_QUEUE_MAX,
    Costs,
    Job,
    Offered,
    Refusal,
    Scale,
    count_kept,
    decide_deadline,
    decide_queue,
    fold_beside,
    fold_cost,
    fold_doubt,
    fold_offered,
    fold_scale,
    predict_ms,
    queue_ms_max,
)
from serving.engine.loop.engine import Engine
from serving.engine.work import EngineStatus, RankResult, RankWork, UserResult, UserWork


@dataclass(slots=True)
class Timed:
    """The cost of a piece of work: as the allocation's table says (0: not asked), and as measured (None: it is not done)."""

    expected_ms: float = 0.0
    took_ms: float | None = None


class PacedEngine:
    """Takes the same work as the engine. `work_max`: how much work may wait in a flood, in multiples of the mean work."""

    def __init__(
        self, engine: Engine, metrics: Metrics, work_max: float = FLOOD_QUEUE_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._metrics, self._work_max, self._clock = engine, metrics, work_max, clock
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], tuple[Sequence[Job], float, Timed | None]] = {}  # (jobs, predicted ms, costs)
        self._waiting_ms = 0.0
        self._backlog: tuple[float, float, float] | None = None  # (predicted ms of all that waits, of the first piece, when that was begun)
        self._began_s = self._clock()  # when the engine began the piece of work that it computes now
        self._beside: dict[Future[Any], tuple[Job, float]] = {}  # long user halves: (job, predicted ms)
        self._beside_began_s = 0.0
        self._closed, self._closed_until_s = Refusal("", 0.0), 0.0  # the refusal that every request gets until then
        self._ended = 0  # pieces of work so far
        self._turned_away = 0  # refused requests that `offered` does not include yet
        self._refused: dict[str, Counter] = {}  # by reason
        self.refused = 0  # requests since the start, before their work was submitted
        self._scale, self.worked_ms = Scale(), 0.0  # the latter: all measured work so far
        # Full work of a request, where the allocation chooses less: admission's bounds are in multiples of it, or they would fall with each shorter list.
        self.full_ms = 0.0
        self.costs, self.offered = Costs(), Offered()
        self.why_none: Callable[[], str] = lambda: "wait until one is published"  # why no version is live, for the error of a request

    @property
    def current(self) -> VersionToken | None:
        """The engine's."""
        return self._engine.current

    def find_token(self, version: int) -> VersionToken | None:
        """The engine's."""
        return self._engine.find_token(version)

    def status(self) -> EngineStatus:
        """The engine's status."""
        return self._engine.status()

    def submit_user(self, work: UserWork, *, asked_for: bool = True, received_s: float | None = None) -> "Future[UserResult]":
        """Call 1.

        `asked_for` False: the server's own work. It does not count as offered load, or a lone client would be refused because of it.
        `received_s`: when the request arrived, on the monotonic clock; None: now.
        """
        job = self._user_job(work)
        if self._engine.is_long(work):
            return self._watch_beside(work, job)
        return self._watch(self._engine.submit_user, work, [job], asked_for, received_s)

    def submit_rank(self, work: RankWork, received_s: float | None = None, timed: Timed | None = None) -> "Future[RankResult]":
        """Call 2, including the user half if the work brings no state. `received_s` as for `submit_user`; `timed` gets the measured cost."""
        half = [] if work.state is not None else [Job("user", 0) if work.user is None else self._user_job(work.user)]
        return self._watch(self._engine.submit_rank, work, [*half, Job("rank", len(work.item_ids))], True, received_s, timed)

    def queue_ms(self) -> float:
        """Milliseconds that a piece of work submitted now would wait. Without the lock, which a thread that waits for the interpreter may hold."""
        backlog = self._backlog
        return 0.0 if backlog is None else self._left_ms(*backlog)

    def wait_ms(self, work: UserWork) -> float:
        """Milliseconds that a user half submitted now would wait: in the queue, or a long one for others like it."""
        if not self._engine.is_long(work):
            return self.queue_ms()
        with self._lock:
            predicted_ms = [predicted for _, predicted in self._beside.values()]
            return self._left_ms(sum(predicted_ms), predicted_ms[0], self._beside_began_s) if predicted_ms else 0.0

    def _left_ms(self, predicted_ms: float, first_ms: float, began_s: float) -> float:
        """The rest of work of `predicted_ms`, whose first piece, of `first_ms`, was begun at `began_s`.

        If the first piece takes longer than predicted, the pieces behind it are not shorter for it.
        """
        return max(0.0, predicted_ms - min(first_ms, (self._clock() - began_s) * 1000))

    @property
    def _mean_ms(self) -> float:
        return max(self.costs.mean_ms, self.full_ms)

    def load(self) -> float:
        """The load offered now, refused requests included; 1 = as much as the engine can do."""
        if self._turned_away:
            with self._lock:
                self._offer(self._mean_ms, self._turned_away)
            self._turned_away = 0
        return self.offered.now(self._clock() * 1000, self._mean_ms)

    def cost_scale(self) -> float:
        """What rankings took, divided by what the allocation's table expected; 1 at the start."""
        return self._scale.value

    def predict_rank_ms(self, candidates: int) -> float:
        """Predicted milliseconds of ranking so many."""
        return predict_ms(self.costs, Job("rank", candidates))

    def predict_user_ms(self, work: UserWork) -> float:
        """Predicted milliseconds of a user half."""
        return predict_ms(self.costs, self._user_job(work))

    def doubt(self, work: UserWork) -> None:
        """Notes that such work was avoided because it would take too long. The prediction falls a little, so that it is tried again some day."""
        with self._lock:
            self.costs = fold_doubt(self.costs, self._user_job(work))

    def _user_job(self, work: UserWork) -> Job:
        """Its size counts only behaviours that must be read: the few new ones of a kept state take a thousandth of a long history's time."""
        return Job("user", self._engine.count_unread(work))

    def check_queue(self) -> None:
        """Raises Unavailable (`overloaded`) in a flood if one more request, of any kind, would wait too long. Then waiting work is judged again too."""
        now_s = self._clock()
        if now_s < self._closed_until_s:
            self._refuse(self._closed, "queue")
        load, ended = self.load(), self._ended
        if not self.offered.is_flood(now_s * 1000, self._mean_ms):
            return
        costs = replace(self.costs, mean_ms=self._mean_ms)
        refusal = decide_queue(costs, self.queue_ms(), self._work_max, load)
        if refusal is not None and len(self._waiting) > 1:
            self._withdraw_beyond(queue_ms_max(costs, self._work_max, load), load)
        elif refusal is not None:  # there is no waiting work to withdraw
            with self._lock:
                if self._ended == ended:  # else a place became free meanwhile, and would stay empty until the refusal no longer holds
                    self._closed, self._closed_until_s = refusal, now_s + refusal.holds_ms / 1000
        self._refuse(refusal, "queue")

    def check_work(self, work_ms: float, left_s: float) -> None:
        """Raises Unavailable (`overloaded`) as `check_queue` does, and also if a request of `work_ms` cannot be answered within `left_s`.

        Called right before the work is submitted, because other requests came while its body was read.
        """
        self.check_queue()
        self._refuse(decide_deadline(self.queue_ms(), work_ms, left_s * 1000), "deadline")

    def check_user(self, work: UserWork, left_s: float) -> None:
        """Raises as `check_work` does. A long half waits for other long ones alone, so only its deadline counts."""
        work_ms = self.predict_user_ms(work)
        if self._engine.is_long(work):
            self._refuse(decide_deadline(self.wait_ms(work), work_ms, left_s * 1000), "deadline")
        else:
            self.check_work(work_ms, left_s)

    def _refuse(self, refusal: Refusal | None, reason: str) -> None:
        if refusal is not None:
            self._turned_away += 1
            self.refused += 1
            self._count_refused(reason)
            message = f"{refusal.reason}; send it again after retry_after_s, or to another server"
            raise Unavailable("overloaded", message, retry_after_s=refusal.retry_after_ms / 1000)

    def _count_refused(self, reason: str) -> None:
        if reason not in self._refused:
            self._refused[reason] = self._metrics.counter("requests_refused").labels(reason)
        self._refused[reason].inc()

    def _withdraw_beyond(self, bound_ms: float, load: float) -> None:
        """Cancels rankings that would begin later than the bound; deadline.py answers their requests. User halves stay: several requests may wait for one."""
        with self._lock:
            waiting, spent_ms = list(self._waiting.items()), (self._clock() - self._began_s) * 1000
        kept = count_kept([predicted for _, (_, predicted, _) in waiting], spent_ms, bound_ms, load)
        for future, (jobs, _, _) in waiting[kept:]:
            if jobs[-1].kind == "rank" and future.cancel():
                self._count_refused("withdrawn")

    def _watch(
        self,
        submit: Callable[[Any], "Future[Any]"],
        work: Any,
        jobs: Sequence[Job],
        asked_for: bool = True,
        received_s: float | None = None,
        timed: Timed | None = None,
    ) -> "Future[Any]":
        predicted = sum(predict_ms(self.costs, job) for job in jobs)
        future = submit(work)
        with self._lock:
            if not self._waiting:
                self._began_s = self._clock()
            self._waiting[future] = (jobs, predicted, timed)
            self._waiting_ms += predicted
            self._note_backlog()
            if asked_for:
                self._offer(predicted, received_s=received_s)
        future.add_done_callback(self._done)
        return future

    def _watch_beside(self, work: UserWork, job: Job) -> "Future[UserResult]":
        predicted = predict_ms(self.costs, job)
        future = self._engine.submit_user(work)
        with self._lock:
            if not self._beside:
                self._beside_began_s = self._clock()
            self._beside[future] = (job, predicted)
        future.add_done_callback(self._done_beside)
        return future

    def _done_beside(self, future: "Future[Any]") -> None:
        now_s = self._clock()
        with self._lock:
            job, _ = self._beside.pop(future)
            if not future.cancelled() and future.exception() is None:
                self.costs = fold_beside(self.costs, job, (now_s - self._beside_began_s) * 1000)
            if not future.cancelled():
                self._beside_began_s = now_s

    def _offer(self, work_ms: float, count: int = 1, received_s: float | None = None) -> None:
        came_ms = None if received_s is None else received_s * 1000
        self.offered = fold_offered(self.offered, work_ms, self._clock() * 1000, self._mean_ms, count, came_ms)

    def _done(self, future: "Future[Any]") -> None:
        now_s = self._clock()
        with self._lock:
            jobs, predicted, timed = self._waiting.pop(future)
            self._waiting_ms = self._waiting_ms - predicted if self._waiting else 0.0
            self._ended, self._closed_until_s = self._ended + 1, 0.0
            if future.cancelled():
                self._note_backlog()
                return
            if future.exception() is None:
                took_ms = (now_s - self._began_s) * 1000
                self.costs = fold_cost(self.costs, jobs, took_ms)
                if timed is not None:
                    timed.took_ms, self._scale = took_ms, fold_scale(self._scale, timed.expected_ms, took_ms)
                self.worked_ms += took_ms
            self._began_s = now_s
            self._note_backlog()

    def _note_backlog(self) -> None:
        self._backlog = (self._waiting_ms, next(iter(self._waiting.values()))[1], self._began_s) if self._waiting else None
