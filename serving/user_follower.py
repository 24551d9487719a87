"""The thread that keeps the server's view of users up to date from the log start.

Here: positions, readiness, what happens when the broker is away. Not here: what a record does to the view (user_store.py).
Ready = it has reached the end offsets that it read at its own start; it stays ready afterwards (an older view answers, and the answer
does not pretend otherwise: a user's history is not part of a version).
"""

import contextlib
import threading

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import TopicFollower
from infra.metrics import Metrics
from schemas.errors import AifError, Unavailable
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from serving.user_store import UserStore

_TOPICS = (USER_FEATURES, USER_BEHAVIOURS)
_RECORDS_MAX = 500  # of one poll: the lock and the GIL are given back in between
_IDLE_POLL_S = 0.02
_RETRY_S = 1.0


class UserFollower:
    """Follows user-features and user-behaviours with one thread. `last_error` is empty while it reads."""

    def __init__(self, bootstrap: str, prefix: str, store: UserStore, metrics: Metrics) -> None:
        self._bootstrap, self._prefix, self._store, self._metrics = bootstrap, prefix, store, metrics
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._positions: dict[str, dict[int, int]] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._thread = threading.Thread(target=self._run, name="user-follower", daemon=True)
        self.last_error = ""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread and waits for it."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topics at the start is folded."""
        return self._ready.is_set()

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """Next offset by topic and partition."""
        return {topic: dict(positions) for topic, positions in dict(self._positions).items()}

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except AifError as error:
                self.last_error = str(error)
                if error.code == "offset_gone":  # the log was cut while we were away: begin again at its start
                    self._positions = {}
            except Exception as error:  # the view grows old, the server goes on; the reason is in /v1/status
                self.last_error = f"unexpected: {error!r}"
            self._stopping.wait(_RETRY_S)

    def _follow(self) -> None:
        with contextlib.ExitStack() as stack:
            followers = [stack.enter_context(self._open(topic)) for topic in _TOPICS]
            self.last_error = ""
            while not self._stopping.is_set():
                moved = [self._step(follower) for follower in followers]
                if not self._ready.is_set() and all(f.has_reached(self._ends[f.topic]) for f in followers):
                    self._ready.set()
                if not any(moved):
                    self._stopping.wait(_IDLE_POLL_S)

    def _open(self, topic: str) -> TopicFollower:
        if topic not in self._positions:
            self._positions[topic] = start_offsets(self._bootstrap, self._prefix + topic)
        if topic not in self._ends:
            self._ends[topic] = end_offsets(self._bootstrap, self._prefix + topic)
        if not self._ends[topic]:
            raise Unavailable("no_topic", f"topic {self._prefix}{topic} does not exist; run `aif topics apply`")
        return TopicFollower(self._bootstrap, topic, self._positions[topic], prefix=self._prefix)

    def _step(self, follower: TopicFollower) -> bool:
        """Folds what there is now; whether there was anything."""
        records = follower.poll(_RECORDS_MAX)
        for record in records:
            skipped = self._store.fold_record(record)
            if skipped:
                self._metrics.counter("user_updates_skipped").labels(record.topic).inc(skipped)
        self._positions[follower.topic] = dict(follower.positions)
        if records:
            self._metrics.gauge("users_known").set(len(self._store))
        return bool(records)
