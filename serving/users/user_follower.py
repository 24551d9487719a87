"""The thread that keeps the server's view of users up to date, from the offsets at which the view stands.

Ready = the view has reached the end offsets that were read at the start, or at its last rebuild. It stays ready afterwards: an older view may answer,
because a user's history is not part of a version. For the same reason a stored view answers after a start without a broker. Until the log was read, every
answer says so (`behind`). A topic may have more partitions than the index has user partitions. Then all are followed: an update in the wrong one is refused
with a dead letter, so nothing vanishes. Partitions that are added later are found within seconds.
Surplus partitions of item topics are looked for in the same turns, and named: the workers stop there.
Gaps: user-features is compacted, so gaps are normal there. In user-behaviours transactions may have taken the offsets, which is normal too. Any other gap is
read again; if it is still there, the records are lost for every reader, and the view continues after the gap and counts it.
"""

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence

from infra.clock import Clock, SystemClock
from infra.disk_faults import REOPEN_CODES, DiskFaults
from infra.guarded_thread import OneThread
from infra.kafka.admin import check_topic_ids, end_offsets, start_offsets, topic_gone, topic_ids
from infra.kafka.admin_client import PartitionWatch
from infra.kafka.log_gaps import LogGaps
from infra.kafka.reader import SourceRecord, TopicFollower
from infra.kafka.security import Bootstrap
from infra.metrics import Metrics
from schemas.errors import AifError, Unavailable
from schemas.topics import USER_BEHAVIOURS
from serving.core.user_view import VIEW_TOPICS, TopicRange, find_misfit
from serving.users.user_dead_letters import CLOSE_S_MAX, UserDeadLetters
from serving.users.user_store import UserStore

_RECORDS_MAX = 500  # per poll: between two polls other threads get the lock and the interpreter
_IDLE_POLL_S = 0.02
_RETRY_S = 1.0
_SEEN_EVERY_S = 60.0
_LOOK_EVERY_S = 5.0
_LONG_SILENCE_S = 3_600.0
_ALONE_S, _SILENT_S = 3.0, 8.0  # without a first answer of the broker; without another, which is longer than from one look to the next
_log = logging.getLogger("aif.serving.users")


class UserFollower(OneThread):
    """Follows user-features and user-behaviours in one thread. `last_error`: empty while it reads; `rebuilt_because`: why the view was built again."""

    close_s_max = CLOSE_S_MAX

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        store: UserStore,
        metrics: Metrics,
        clock: Clock | None = None,
        index_topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._index_topic_ids = index_topic_ids or {}
        self._bootstrap, self._prefix, self._store, self._metrics = bootstrap, prefix, store, metrics
        self._clock = clock or SystemClock()
        self._ready = threading.Event()
        self._has_old_view, self._starts_behind, self._silent_s_max = store.state.seen_ms > 0, False, _ALONE_S
        self._log_at_start: dict[str, TopicRange] | None = None
        self._sought: set[tuple[str, int, int]] = set()  # gaps that were read a second time
        self._gaps = LogGaps(bootstrap)
        super().__init__("user-follower")
        metrics.counter("user_log_holes")  # from the start: the first step of a counter that was not there is no increase
        self._letters = UserDeadLetters(bootstrap, prefix, store, metrics)
        self._faults = DiskFaults("the view of users", self._clock.monotonic)
        self._must_reopen = False  # after a write that failed every further one fails
        self._error = ""
        self._watch, self._answered_s = PartitionWatch(bootstrap), self._clock.monotonic()
        self.rebuilt_because = ""

    def start(self) -> None:
        """Starts the thread, and the one that sends dead letters."""
        super().start()
        self._letters.start()

    def close(self) -> None:
        """Stops both threads and waits for them, then closes the view. A broker that is away is not waited for: that takes half a minute."""
        super().close()
        self._letters.close()
        if not self._thread.is_alive():
            self._gaps.close()
        self._store.close()

    @property
    def last_error(self) -> str:
        """Why the view does not move or dead letters are not sent; empty if all is well."""
        return self._error or self._letters.last_error

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topics at the start has been folded; or, while the broker does not answer, whether there is a view from before."""
        if not self._starts_behind and not self._ready.is_set() and self.silent_s() > self._silent_s_max and self._has_old_view:
            self._starts_behind = True  # for good: it would answer nothing while it catches up
            _log.warning("users_start_behind: %s", self.behind)
        return self._ready.is_set() or self._starts_behind

    @property
    def behind(self) -> str:
        """Why the view is older than this process; "" once the logs were read up to the ends that they had at the start."""
        if self._ready.is_set():
            return ""
        seen_ms = self._store.state.seen_ms
        age = f"the view of users is {(self._clock.now_ms() - seen_ms) / 1000:.0f} s old" if seen_ms else "there is no view of users yet"
        waits = (
            "the broker has not answered since the start, is it up?" if self._log_at_start is None else "its topics are still being read"
        )
        return f"{age}; {self._error or waits}"

    @property
    def waits_for_disk(self) -> bool:
        """Whether the disk of the view takes no writes, full or broken."""
        return self._faults.last is not None

    def silent_s(self) -> float:
        """Seconds since the broker last answered; it is asked every few seconds, whether or not there is anything to read."""
        return self._clock.monotonic() - self._answered_s

    def _note_answer(self) -> None:
        self._answered_s, self._silent_s_max = self._clock.monotonic(), _SILENT_S

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """Next offset by topic and partition."""
        return {topic: dict(by) for topic, by in self._store.state.next_offsets.items()}

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._follow()
            except AifError as error:
                self._error = str(error)
                if error.code in REOPEN_CODES:
                    self._must_reopen = True
                    self._faults.note_fault(error)
                self._mend(error)
            except Exception as error:  # the view gets older, the server goes on, and /v1/status shows the reason
                self._error = f"unexpected: {error!r}"
            self.stopping.wait(_RETRY_S)

    def _mend(self, error: AifError) -> None:
        """Repairs what an error of the log or the disk requires, before the next attempt."""
        with contextlib.suppress(AifError):  # the next attempt fails in the same way and reports it
            if error.code in ("offset_gone", "topic_gone", "other_topic"):  # the log was cut, or another one is there
                self._log_at_start = None
            elif error.code in REOPEN_CODES:
                self._reopen()
            elif error.code in ("database_corrupted", "bad_user_view"):
                self._log_at_start = None  # ready again once it has what the log holds now
                self._rebuild(str(error))

    def _reopen(self) -> None:
        self._store.reopen()
        self._must_reopen = False

    def _follow(self) -> None:
        # It could not be opened again: without a record to fold, no call would try it, and no error would say why.
        if self._must_reopen or not self._store.is_open:
            self._reopen()
        log = self._check_log()
        with contextlib.ExitStack() as stack:
            followers = [stack.enter_context(self._open(topic, found)) for topic, found in log.items()]
            looked_s = self._clock.monotonic()
            seen_s = float("-inf")
            while not self.stopping.is_set():
                if self._store.damage is not None:
                    raise self._store.damage
                if self._clock.monotonic() - looked_s > _LOOK_EVERY_S:
                    looked_s = self._clock.monotonic()
                    if self._is_to_begin_again(followers):
                        self._log_at_start = None
                        return
                if self._store.is_full_of_refused:  # the sender of dead letters reports why
                    self._error = str(self._faults.last or "")
                    self.stopping.wait(_RETRY_S)
                    continue
                moved = [self._step(follower) for follower in followers]
                self._faults.note_success()
                self._error = str(self._faults.last or "")
                if not self._ready.is_set() and all(f.has_reached(log[f.topic].ends) for f in followers):
                    self._ready.set()
                is_at_end = self._ready.is_set() and max(moved) < _RECORDS_MAX and self.silent_s() <= self._silent_s_max
                if is_at_end and self._clock.monotonic() - seen_s > _SEEN_EVERY_S:
                    self._store.note_seen(self._clock.now_ms(), {topic: found.topic_id for topic, found in log.items()})
                    seen_s = self._clock.monotonic()
                if not any(moved):
                    self.stopping.wait(_IDLE_POLL_S)

    def _is_to_begin_again(self, followers: Sequence[TopicFollower]) -> bool:
        """Whether a topic has not the partitions that are followed, or the broker was silent for so long that the view may no longer fit to the log. A broker
        that is away is noted as silent."""
        silent_s = self.silent_s()
        try:
            found = [self._watch.count(self._prefix + follower.topic) for follower in followers]
        except Unavailable:
            return False
        self._note_answer()
        return silent_s > _LONG_SILENCE_S or any(count != len(one.positions) for count, one in zip(found, followers, strict=True))

    def _check_log(self) -> dict[str, TopicRange]:
        """The state of the log at the start. A view that does not fit to it is built again; but not from another cluster than the index's, whose log the view
        has not lost. Raises Incompatible (`other_topic`) there."""
        if self._log_at_start is None:
            ids = topic_ids(self._bootstrap, self._prefix)
            check_topic_ids(self._index_topic_ids, ids, self._prefix)
            log = {topic: self._find_range(topic, ids) for topic in VIEW_TOPICS}
            self._note_answer()
            misfit = find_misfit(self._store.state, log, self._clock.now_ms())
            if misfit:
                self._rebuild(misfit)
            # A view that begins now lacks nothing that the log loses later: stopped before the log's end, it can go on.
            if not self._store.state.next_offsets:
                self._store.note_seen(self._clock.now_ms(), {topic: found.topic_id for topic, found in log.items()})
            self._name_other_partitions(log)
            self._log_at_start = log
        return self._log_at_start

    def _name_other_partitions(self, log: Mapping[str, TopicRange]) -> None:
        for topic, found in log.items():
            if len(found.starts) != self._store.partitions:
                _log.error(
                    "other_partitions: %s has %d partitions, the index has %d user partitions; clients that count the topic's choose wrong ones, and "
                    "such updates become dead letters (`aif dlq list %s`); let clients use %d",
                    *(topic, len(found.starts), self._store.partitions, topic, self._store.partitions),
                )

    def _find_range(self, topic: str, ids: Mapping[str, str]) -> TopicRange:
        if topic not in ids:
            if gone := self._index_topic_ids.keys() - ids.keys():
                raise topic_gone(self._prefix, gone | {topic})
            raise Unavailable(
                "no_topic", f"topic {self._prefix}{topic} does not exist; run `aif topics apply`, then publish the users again"
            )
        name = self._prefix + topic
        return TopicRange(ids[topic], start_offsets(self._bootstrap, name), end_offsets(self._bootstrap, name))

    def _rebuild(self, reason: str) -> None:
        _log.warning("rebuilding the user store from Kafka: %s", reason)
        self._metrics.counter("user_view_rebuilds").labels(reason.partition(":")[0]).inc()
        self._ready.clear()  # until it has reached the log's end again, most users lack their history
        self._has_old_view = self._starts_behind = False
        self._store.rebuild()
        self.rebuilt_because = reason

    def _open(self, topic: str, found: TopicRange) -> TopicFollower:
        kept = self._store.state.next_offsets.get(topic, {})
        positions = {partition: kept.get(partition, start) for partition, start in found.starts.items()}
        return TopicFollower(self._bootstrap, topic, positions, prefix=self._prefix, topic_id=found.topic_id)

    def _step(self, follower: TopicFollower) -> int:
        """Folds the records of one poll. Returns how many there were."""
        before = dict(follower.positions)
        records = follower.poll(_RECORDS_MAX)
        skipped = self._store.fold_records(self._before_gap(follower, before, records))
        if skipped:
            self._metrics.counter("user_updates_skipped").labels(follower.topic).inc(skipped)
        return len(records)

    def _before_gap(self, follower: TopicFollower, expected: dict[int, int], records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """The records up to the first gap of each partition of user-behaviours. A gap is read again; if it is still there, it is passed."""
        if follower.topic != USER_BEHAVIOURS:
            return records
        kept: list[SourceRecord] = []
        held: set[int] = set()
        for record in records:
            p, next_offset = record.partition, expected[record.partition]
            if p in held:
                continue
            if record.offset > next_offset and not self._accept_gap(p, next_offset, record.offset):
                follower.seek(p, next_offset)
                held.add(p)
                continue
            expected[p] = record.offset + 1
            kept.append(record)
        return kept

    def _accept_gap(self, partition: int, expected: int, found: int) -> bool:
        """Whether the gap can be passed: transactions took its offsets, or it was seen before."""
        if self._gaps.skipped_to(self._prefix + USER_BEHAVIOURS, partition, expected, found) == found:
            return True
        gap = (USER_BEHAVIOURS, partition, expected)
        if gap not in self._sought:
            self._sought.add(gap)
            return False
        self._sought.discard(gap)
        self._metrics.counter("user_log_holes").inc()
        _log.error(
            "user-behaviours partition %d: offsets %d to %d are not in the log; histories continue without them", partition, expected, found
        )
        return True
