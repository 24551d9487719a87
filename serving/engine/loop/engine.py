"""The engine: one thread that decides, owns the tables of the resident versions, and answers.

Input and output are in work.py.

    turn:  1. messages (admit, flip, release, run)   2. row changes, about DELTA_ROWS_PER_APPLY_MAX rows   3. work, at most BATCH_MAX

Helper threads make the user halves of a batch while the engine's thread ranks. Look-up and top-k use one thread, so the other cores are free meanwhile.
With two threads and a queue that never empties, this answers 13% more requests, each with its call 1 (in `aif bench table4`'s world).
A helper always makes the half of a long history (20,000 behaviours: 5 ms). Its batch takes the pieces that come meanwhile, so that no ranking waits for it.

Invariants:
- Tables change only between two batches, so no answer sees half an update, and the read path needs no lock (I3).
- An answer is computed from one resident: its network, rows and user state are of one version, and its token and watermark say which (I2).
- The error of a request goes into its future; only `close` ends the thread. Any other error is a fault: the engine logs and counts it, and fails the
  requests of that turn. The thread continues. `EngineStatus` says how long ago it last turned.
- Every queue is bounded; beyond the bound a future fails at once and says when to retry (I8).
"""

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeGuard, TypeVar

from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.limits import DELTA_ROWS_PER_APPLY_MAX, QUEUED_REQUESTS_MAX, TOP_K_MAX
from schemas.model.parameters import Parameters
from schemas.token import VersionToken
from serving.engine.call_one.call_one import find_base
from serving.engine.devices.scorer import compile_kernels
from serving.engine.devices.workers import WORKERS, Beside
from serving.engine.loop.resident import ChangeBatch, Resident, apply_changes, rank, report_of
from serving.engine.work import EngineStatus, RankResult, RankWork, UserResult, UserState, UserWork, answer

BATCH_MAX = 8  # pieces of work between two looks at messages and changes
CHANGES_QUEUED_MAX = 1_000  # a follower that is faster than the engine has to wait
LONG_HISTORY = 4_096  # behaviours: one or two ms; handing a half over costs 0.4 ms of processor time
IDLE_WAIT_S = 0.5
CLOSE_S_MAX = 10.0
RETRY_AFTER_S = 0.1

_log = logging.getLogger("aif.engine")

T = TypeVar("T")
Piece = tuple[Future[Any], UserWork | RankWork]


class Engine:
    """One thread; every public method may be called from any thread. Only `offer_changes` ever blocks, and only a follower calls it."""

    def __init__(self, device: str = "cpu", queue_max: int = QUEUED_REQUESTS_MAX) -> None:
        self.device = device
        self._queue_max = queue_max
        self._wake = threading.Condition()
        self._messages: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changes: deque[tuple[ChangeBatch, Resident]] = deque()
        self._work: deque[Piece] = deque()
        self._residents: dict[int, Resident] = {}
        self._current: Resident | None = None
        self._flips, self._answered, self._failed = 0, 0, 0
        self._batch: list[Piece] = []  # what this turn has taken
        self._faults, self._last_fault, self._turned_s = 0, "", time.monotonic()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Compiles the kernels (seconds, once per machine), then starts the thread."""
        compile_kernels()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; waiting work fails with Unavailable (`stopping`). A thread that hangs, in a device for example, is waited for some seconds."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S_MAX)
        self._fail_waiting()

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit_user(self, work: UserWork) -> "Future[UserResult]":
        """Call 1. Raises nothing: if the queue is full, the future has failed with Unavailable (`overloaded`)."""
        return self._submit(work)

    def submit_rank(self, work: RankWork) -> "Future[RankResult]":
        """Call 2; or both calls in one turn, if the work has `user` and no state."""
        return self._submit(work)

    def is_long(self, work: UserWork | RankWork) -> bool:
        """Whether a helper will make this user half while rankings go on, from any thread."""
        return self._goes_beside(work) and len(work.behaviours) > LONG_HISTORY and self.count_unread(work) > LONG_HISTORY

    def count_unread(self, work: UserWork) -> int:
        """How many behaviours a user half has to read: those that its earlier state lacks, or all if that state cannot be extended; from any thread."""
        resident = self.find_resident(work.version)
        if resident is None:
            return len(work.behaviours)
        spec = resident.scorer.parameters.spec
        base = find_base(spec, resident.version, work)
        return min(len(work.behaviours), spec.behaviours_max) - (0 if base is None else base.behaviours)

    @property
    def busy(self) -> bool:
        """Whether work waits or is being done, from any thread."""
        return bool(self._work or self._batch)

    @property
    def current(self) -> VersionToken | None:
        """The token of the version that answers, from any thread; None: nothing is live yet."""
        current = self._current
        return None if current is None else current.token

    def find_token(self, version: int) -> VersionToken | None:
        """The token of a version if it is resident, from any thread."""
        resident = self.find_resident(version)
        return None if resident is None else resident.token

    def find_parameters(self, version: int) -> Parameters | None:
        """The model of a version if it is resident, from any thread."""
        resident = self.find_resident(version)
        return None if resident is None else resident.scorer.parameters

    def status(self) -> EngineStatus:
        """A snapshot from any thread."""
        current, residents = self._current, self._residents
        if current is not None and current.version in residents:  # a copy of it that is being loaded does not answer yet
            residents = {**residents, current.version: current}
        return EngineStatus(
            device=self.device,
            current=None if current is None else current.token,
            residents=tuple(report_of(r) for r in residents.values()),
            queued_work=len(self._work),
            queued_changes=len(self._changes),
            answered=self._answered,
            failed=self._failed,
            flips=self._flips,
            faults=self._faults,
            last_fault=self._last_fault,
            turn_age_s=self._turn_age_s(),
        )

    def _turn_age_s(self) -> float:
        """0 before the thread's start and after `close`, infinite if the thread has ended by itself."""
        if self._thread.ident is None or self._closed:
            return 0.0
        return time.monotonic() - self._turned_s if self._thread.is_alive() else math.inf

    def _submit(self, work: UserWork | RankWork) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._wake:
            if self._closed:
                future.set_exception(Unavailable("stopping", "the engine is stopping; ask another server", RETRY_AFTER_S))
            elif len(self._work) >= self._queue_max:
                message = f"{len(self._work)} requests wait, expected at most {self._queue_max}; retry later or ask another server"
                future.set_exception(Unavailable("overloaded", message, RETRY_AFTER_S))
            else:
                self._work.append((future, work))
                self._wake.notify_all()
        return future

    # --- versions ----------------------------------------------------------------------------------------------------

    def admit(self, resident: Resident) -> "Future[None]":
        """Makes a loaded version resident: it takes changes and answers work that names it, and is not yet the current one."""
        return self.run(lambda: self._admit(resident))

    def install(self, resident: Resident) -> "Future[None]":
        """The flip: from the next piece of work on, `resident` is the current version. The former one stays resident until released."""
        return self.run(lambda: self._install(resident))

    def release(self, version: int, grace_s: float) -> "Future[bool]":
        """Gives up a version whose arena is needed. False, with nothing done, if it is current, if queued work names it, or if a user state was made on it
        less than `grace_s` ago. True once it is not resident."""
        return self.run(lambda: self._release(version, grace_s))

    def withdraw(self, resident: Resident) -> "Future[None]":
        """Takes back, at once, an admitted version that cannot be served. Queued work that names its version gets `version_gone`, unless an older copy of that
        version is the current one: that stays resident."""
        return self.run(lambda: self._withdraw(resident))

    def run(self, call: Callable[[], T]) -> "Future[T]":
        """Runs `call` on the engine's thread between two batches."""
        future: Future[T] = Future()
        with self._wake:
            if self._closed:
                future.set_exception(Unavailable("stopping", "the engine is stopping", RETRY_AFTER_S))
            else:
                self._messages.append((future, call))
                self._wake.notify_all()
        return future

    def take_arrivals(self) -> list[tuple[str, float]]:
        """(topic, age in seconds) of each record that became visible in the current version since the last call. Ages of other versions are dropped."""
        current = self._current
        taken = [] if current is None else current.arrivals.take()
        for resident in self._residents.values():
            if resident is not current:
                resident.arrivals.take()
        return taken

    def offer_changes(self, changes: ChangeBatch, copy: Resident | None = None) -> bool:
        """Queues the changes of a record; blocks while the queue is full. False if the version is not resident any more.

        `copy`: which copy of the version it is for, while there are two because the version is being loaded again. Each has a position of its own.
        """
        with self._wake:
            while len(self._changes) >= CHANGES_QUEUED_MAX and not self._closed:
                self._wake.wait(IDLE_WAIT_S)
            resident = copy or self._residents.get(changes.version)
            if self._closed or resident is None or not self._is_resident(resident):
                return False
            self._changes.append((changes, resident))
            self._wake.notify_all()
            return True

    def _is_resident(self, resident: Resident) -> bool:
        return resident is self._current or self._residents.get(resident.version) is resident

    def _admit(self, resident: Resident) -> None:
        resident.state_made_s = time.monotonic()
        self._residents = {**self._residents, resident.version: resident}

    def _install(self, resident: Resident) -> None:
        if self._residents.get(resident.version) is not resident:
            self._admit(resident)
        former, self._current = self._current, resident
        if former is not None:
            former.state_made_s = time.monotonic()
        self._flips += 1

    def _release(self, version: int, grace_s: float) -> bool:
        resident = self._residents.get(version)
        if resident is None:
            return True
        named = any(work.version == version for _, work in list(self._work))
        if resident is self._current or named or time.monotonic() - resident.state_made_s < grace_s:
            return False
        self._residents = {v: r for v, r in self._residents.items() if v != version}
        return True

    def _withdraw(self, resident: Resident) -> None:
        kept = {v: r for v, r in self._residents.items() if r is not resident}
        served = self._current
        self._residents = {**kept, served.version: served} if served is not None and served is not resident else kept

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._wait():
                    self._turn()
            except BaseException as error:
                self._faults, self._last_fault = self._faults + 1, repr(error)
                _log.error("engine_fault: %r; the requests of this turn failed, the engine continues", error, exc_info=error)
                for future, _ in self._batch:
                    with contextlib.suppress(InvalidStateError):  # it has its answer
                        future.set_exception(error)
            self._batch = []

    def _turn(self) -> None:
        while self._messages:
            answer(*self._messages.popleft())
        self._apply_changes()
        self._batch = [self._work.popleft() for _ in range(min(BATCH_MAX, len(self._work)))]
        self._serve_batch(self._batch)

    def _wait(self) -> bool:
        with self._wake:
            self._wake.notify_all()  # a follower may be waiting for room
            while not (self._closed or self._messages or self._changes or self._work):
                self._turned_s = time.monotonic()
                self._wake.wait(IDLE_WAIT_S)
            self._turned_s = time.monotonic()
            return not self._closed

    def _serve_batch(self, batch: list[Piece]) -> None:
        """Answers a batch; returns when every piece is done."""
        served, has_long = list[bool](), any(self.is_long(work) for _, work in batch)
        if has_long or (len(batch) > 1 and any(self._goes_beside(work) for _, work in batch)):
            with WORKERS.beside(self._notify) as helpers:
                rest = [piece for piece in batch if not self._hand_over(piece, helpers, served)]
                for piece in rest:
                    self._serve(*piece, served)
                if has_long:
                    self._serve_meanwhile(BATCH_MAX - len(batch), helpers, served)
        else:
            for piece in batch:
                self._serve(*piece, served)
        self._answered, self._failed = self._answered + sum(served), self._failed + served.count(False)

    def _serve_meanwhile(self, count: int, helpers: Beside, served: list[bool]) -> None:
        """Answers up to `count` pieces that come while helpers make user halves."""
        for _ in range(count):
            piece = self._wait_beside(helpers)
            if piece is None:
                return
            if not self._hand_over(piece, helpers, served):
                self._serve(*piece, served)

    def _hand_over(self, piece: Piece, helpers: Beside, served: list[bool]) -> bool:
        """Gives a user half to the helpers; False for any other piece."""
        if not self._goes_beside(piece[1]):
            return False
        helpers.add(partial(self._serve, *piece, served))
        return True

    def _wait_beside(self, helpers: Beside) -> Piece | None:
        """The next piece that comes while helpers make user halves; None when these are done. Meanwhile it makes the halves that no helper is free for."""
        while True:
            with self._wake:
                while helpers.unfinished and not (self._closed or self._work or helpers.needs_caller):
                    self._wake.wait(IDLE_WAIT_S)
                if self._closed or not helpers.unfinished:
                    return None
                if self._work:
                    return self._work.popleft()
            helpers.help()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _goes_beside(self, work: UserWork | RankWork) -> TypeGuard[UserWork]:
        if not isinstance(work, UserWork) or WORKERS.threads == 1:
            return False
        return self.find_resident(work.version) is not None

    def _serve(self, future: "Future[Any]", work: UserWork | RankWork, served: list[bool]) -> None:
        served.append(answer(future, (lambda: self._user(work)) if isinstance(work, UserWork) else (lambda: self._rank(work))))

    def _apply_changes(self) -> None:
        """Applies about DELTA_ROWS_PER_APPLY_MAX rows, but at least one record. No answer may see half of one."""
        rows = 0
        while self._changes and (rows == 0 or rows + len(self._changes[0][0]) <= DELTA_ROWS_PER_APPLY_MAX):
            changes, resident = self._changes.popleft()
            rows += max(1, len(changes))
            if not self._is_resident(resident) or resident.error:
                continue
            try:
                apply_changes(resident, changes)
            except BaseException as error:  # rows may be written whose position is not: this copy takes no more changes
                resident.error = f"row changes of version {resident.version} from partition {changes.partition} failed: {error!r}"
                raise

    def _fail_waiting(self) -> None:
        for future, _ in itertools.chain(self._messages, self._work):
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    Unavailable("stopping", "the engine stopped before this was its turn; ask another server", RETRY_AFTER_S)
                )
        self._messages.clear()
        self._work.clear()

    # --- the two calls -----------------------------------------------------------------------------------------------

    def find_resident(self, version: int | None) -> Resident | None:
        """A resident version (None: the current one), or None. While a version is loaded again there are two copies of it; this is the one that is served.

        Only the engine's thread (`run`) may read its rows.
        """
        current = self._current
        if version is None or (current is not None and current.version == version):
            return current
        return self._residents.get(version)

    def _resident(self, version: int | None) -> Resident:
        resident = self.find_resident(version)
        if resident is None and self._current is None:
            raise Unavailable("no_version", "no version is live yet; wait until one is published", 1.0)
        if resident is None:
            raise Incompatible("version_gone", f"version {version} is not resident, {sorted(self._residents)} are; start again with call 1")
        return resident

    def _user(self, work: UserWork) -> UserResult:
        resident = self._resident(work.version)
        return UserResult(resident.token, self._make_state(resident, work))

    def _make_state(self, resident: Resident, work: UserWork) -> UserState:
        state = resident.scorer.user_state(work)
        resident.state_made_s = time.monotonic()
        return state

    def _rank(self, work: RankWork) -> RankResult:
        """By the state that the work brought, or one made here."""
        if not 1 <= work.top_k <= TOP_K_MAX:
            raise RejectedInput("bad_top_k", f"top_k = {work.top_k}, expected 1 to {TOP_K_MAX}")
        resident = self._resident(work.version)
        return rank(resident, self._make_state(resident, work.user or UserWork()) if work.state is None else work.state, work)
