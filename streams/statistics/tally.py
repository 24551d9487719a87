"""The counters of all items and users in one RocksDB directory, with what each batch needs to be exact: offsets, outbox, and the numbers that were sent.

Here: `Tally`, which a serial task runs (streams/shard/task.py), as it does a shard: batches, the outbox, a full disk. Not here: arithmetic (counts.py),
decoding (events.py), which numbers are to be sent (side.py).
Invariants:
- One WriteBatch holds the changes of the counters and the next offsets. After a kill the process continues from the offsets in the directory, so an event
  counts once.
- What was sent is what the topics say: of items as the shards of the index fold item-features (A11), of users the last record of user-features (A12). Its own
  updates are later than all that it has read. After a kill the outbox is sent again.
- Nothing is sent before everything that the log held at the start is counted: half of the events would be wrong numbers.
- A counter is the sum of its steps in the window. What leaves a window is subtracted, and removed from the disk, when the clock moves.

The numbers of an item or user are sent when one of them differs from what the topic says, at most once an interval.

Arrays: I items or users, S statistics.
"""

import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.kafka.reader import SourceRecord
from infra.logs import Seldom
from infra.rocks import open_database
from infra.rocks_scan import Scan
from schemas.decoding import STATISTICS_OP, user_features_key
from schemas.events import StatisticsReport, encode_record
from schemas.ids import IdKind, decode_index_key, encode_wire_id, partition_of
from schemas.index.control import Init
from schemas.limits import UPDATES_PER_RECORD_MAX
from schemas.statistics import HOUR_MS, OF_USER, Statistic
from schemas.topics import ITEM_FEATURES, STATISTICS_REPORTS, USER_FEATURES
from streams.core.batching import plan_batches, plan_fresh
from streams.core.item import (
    FeaturesUpdate,
    StoredFeatures,
    decode_item,
    encode_item,
    fold_features,
    pack_features,
    statistics_time,
    unpack_features,
)
from streams.shard.batch_result import BatchResult
from streams.shard.decode import decode_source_record
from streams.shard.outbox import OUTBOX, OutboxEntry, OutboxOwner, Outgoing, put_outbox
from streams.statistics.counts import Change
from streams.statistics.events import Event, choose_edge, decode_events
from streams.statistics.side import ITEMS_SIDE, USERS_SIDE, Side
from streams.statistics.stored_user import StoredUser, decode_user, decode_user_updates, encode_user, fold_user

COUNTS, ITEMS, USERS, META = "counts", "items", "users", "meta"
_FORMAT = 3  # of the directory
_STATE = b"state"
_KEY = struct.Struct(">BHQ")  # side, counter, step; the index key of the item or user follows
_VALUE = struct.Struct("<q")
_BATCH_RECORDS_MAX = 500
_REMAKE_EVERY_S = 30.0  # without events: windows move, days pass
_encode_json = msgspec.json.encode
_log = logging.getLogger("aif.streams.statistics")


class _State(msgspec.Struct):
    """`offsets` by "topic/partition"; `newest_ms`: time of the newest event; `clock_ms`: as of when numbers were last made."""

    offsets: dict[str, int] = {}
    newest_ms: int = 0
    clock_ms: int = 0
    next_outbox: int = 0


class Tally(OutboxOwner):
    """The open directory. One thread uses it. `statistics`: those of users have `OF_USER` before their names. `next_offsets`: the next offset by
    "topic/partition"."""

    number = 0  # as a task names it

    def __init__(
        self,
        directory: Path,
        statistics: Mapping[str, Statistic],
        init: Init,
        clock: Clock,
        interval_s: float = 1.0,
        updates_max: int = 5_000,
    ) -> None:
        self._statistics, self._init, self._clock = statistics, init, clock
        self._interval_s, self._updates_max = interval_s, updates_max
        self._kind = IdKind(init.id_kind)
        self.ends: Mapping[str, int] = {}  # of the log, as last seen; the process keeps them current
        self._target: Mapping[str, int] = {}  # everything before it is counted before anything is sent
        self._starts: Mapping[str, int] = {}  # of partitions of which the directory may know nothing yet
        self._ahead = Seldom(clock.monotonic)  # events from the future
        super().__init__(open_database(directory, (COUNTS, ITEMS, USERS, META, OUTBOX)))
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    # --- what it holds ---

    def _read(self) -> None:
        """Reads everything that is kept in memory from the directory."""
        raw = self.database.get(META, _STATE)
        self._state = _State() if raw is None else msgspec.json.decode(raw, type=_State)
        self._state.offsets = {**self._starts, **self._state.offsets}
        of_users = {name.removeprefix(OF_USER): statistic for name, statistic in self._statistics.items() if name.startswith(OF_USER)}
        of_items = {name: statistic for name, statistic in self._statistics.items() if not name.startswith(OF_USER)}
        self.items, self.users = self.sides = Side(ITEMS_SIDE, of_items), Side(USERS_SIDE, of_users)
        self._newest_at_s, self._sent_at_s, self._made_at_s, self._changed = self._clock.monotonic(), float("-inf"), float("-inf"), True
        self._outbox_from = None
        for key, value in self.database.scan(ITEMS):
            self._place_item(key, _features_of(value))
        for key, value in self.database.scan(USERS):
            self._place_user(key, decode_user(value))
        for side in self.sides:
            side.counts.clock_ms = self._state.clock_ms
            for number, first in enumerate(side.counts.first_buckets(self.clock_ms)):
                for raw_key, value in self.database.scan(COUNTS, *_range(side, number, max(0, first))):
                    side.counts.add({_change(raw_key): _VALUE.unpack(value)[0]})
            side.grow()

    def _place_item(self, key: bytes, features: StoredFeatures) -> bool:
        values = {} if features.dead else unpack_features(features.raw)
        return self.items.place(key, not features.dead, values, statistics_time(features), self._at_ms_max)

    def _place_user(self, key: bytes, user: StoredUser) -> bool:
        return self.users.place(key, True, user.values, user.at_ms, self._at_ms_max)

    @property
    def _at_ms_max(self) -> int:
        return self._clock.now_ms() + HOUR_MS

    @property
    def next_offsets(self) -> dict[str, int]:
        """The next offset of every partition that was read, by "topic/partition"."""
        return dict(self._state.offsets)

    def next_offset(self, topic: str, partition: int) -> int:
        """The same of one partition."""
        return self._state.offsets[f"{topic}/{partition}"]

    @property
    def clock_ms(self) -> int:
        """As of when the last numbers were made."""
        return self.items.counts.clock_ms

    def open_log(self, starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
        """At an assignment: where the log of each partition begins and ends. Returns the offsets from which to read."""
        self._starts, self._state.offsets = dict(starts), {**starts, **self._state.offsets}
        self._target = self.ends = dict(ends)
        return {name: self._state.offsets[name] for name in starts}

    def take_items(self, name: str, next_offset: int, rows: Scan) -> None:
        """Items as a shard of the index stores them, whose records before `next_offset` of a partition of item-features the log no longer has."""
        while some := rows.take(_BATCH_RECORDS_MAX):
            batch = self.database.new_batch()
            for key, value in some:
                if (features := decode_item(value).features) is not None:
                    if not features.dead:
                        features = msgspec.structs.replace(features, raw=pack_features(_needed(self.items, unpack_features(features.raw))))
                    batch.put(ITEMS, key, encode_item(features, None))
                    self._place_item(key, features)
            self.database.write(batch)
        self._commit(self.database.new_batch(), msgspec.structs.replace(self._state, offsets={**self._state.offsets, name: next_offset}))

    @property
    def is_settled(self) -> bool:
        """Whether everything is counted that the log held at the assignment."""
        return self._has_reached(self._target)

    def _has_reached(self, ends: Mapping[str, int]) -> bool:
        return bool(ends) and all(self._state.offsets.get(name, 0) >= end for name, end in ends.items())

    # --- a batch ---

    def apply(self, records: Sequence[SourceRecord], on_written: Callable[[Sequence[OutboxEntry]], None] = lambda _: None) -> BatchResult:
        """Counts records, each partition's in offset order; those below its next offset were counted before. Raises Incompatible (`offset_gap`)."""
        names = [f"{r.topic}/{r.partition}" for r in records]
        if records[0].topic == USER_FEATURES:  # compacted, so offsets have gaps
            fresh = [i for i, r in enumerate(records) if r.offset >= self._state.offsets[names[i]]]
        else:
            fresh = plan_fresh(records[0].partition, self._state.offsets, zip(names, (r.offset for r in records), strict=True))
        some = [records[i] for i in fresh]
        for cut in plan_batches([1] * len(some), records_max=_BATCH_RECORDS_MAX):
            self._count(some[cut])
        return BatchResult()

    def _count(self, records: Sequence[SourceRecord]) -> None:
        items = self._decode_items([r for r in records if r.topic == ITEM_FEATURES])
        users = self._decode_users([r for r in records if r.topic == USER_FEATURES])
        events, ahead = decode_events(
            [r for r in records if r.topic not in (ITEM_FEATURES, USER_FEATURES)], self._init, self._clock.now_ms()
        )
        if ahead:
            self._note_ahead(ahead)
        batch, changes = self.database.new_batch(), []
        for side in self.sides:
            counted, edges = side.ways.changes(events, side.counts.first_buckets(self.clock_ms))
            stored = self._stored(side, {**counted, **edges})
            edges = {
                change: choose_edge(side.counts.counters[change.counter], stored[change], time_ms) for change, time_ms in edges.items()
            }
            totals = {change: (stored[change] or 0) + more for change, more in counted.items()}
            batch.put_all(COUNTS, [(_key(side, change), _VALUE.pack(value)) for change, value in {**totals, **edges}.items()])
            changes.append((side, counted, edges))
        batch.put_all(ITEMS, [(key, encode_item(features, None)) for key, features in dict(items).items()])
        batch.put_all(USERS, [(key, encode_user(user)) for key, user in dict(users).items()])
        after = msgspec.structs.replace(
            self._state,
            offsets={**self._state.offsets, **{f"{r.topic}/{r.partition}": r.offset + 1 for r in records}},
            newest_ms=max(self._state.newest_ms, *(event[3] for event in events), 0),
        )
        self._commit(batch, after)
        for side, counted, edges in changes:
            side.add({**counted, **edges}, counted)
        moved = [self._place_item(key, features) for key, features in items] + [self._place_user(key, user) for key, user in users]
        self._changed |= bool(events) or any(moved)

    def _note_ahead(self, ahead: Sequence[Event]) -> None:
        """Logs once a minute that events are left out: the clock of this machine may be wrong."""
        if self._ahead.happened(len(ahead)):
            ahead_s = (max(event[3] for event in ahead) - self._clock.now_ms()) / 1_000
            _log.warning(
                "events_left_out count=%d: dated more than an hour after the clock of this machine, the last by %.0f s. If the clock is behind, "
                "set it, stop this process, remove %s and start it again: it counts the log again",
                self._ahead.count, ahead_s, self.database.path,
            )  # fmt: skip

    def _stored(self, side: Side, changes: Iterable[Change]) -> dict[Change, int | None]:
        """What the directory has under the keys of some changes. A counter without a window has one key for each item, and that is in memory."""
        found: dict[Change, int | None] = {}
        asked = []
        for change in changes:
            if side.counts.counters[change.counter].window_ms is None:
                found[change] = side.counts.total(change)
            else:
                asked.append(change)
        for change, raw in zip(asked, self.database.multi_get(COUNTS, [_key(side, change) for change in asked]), strict=True):
            found[change] = None if raw is None else _VALUE.unpack(raw)[0]
        return found

    def _decode_items(self, records: Sequence[SourceRecord]) -> list[tuple[bytes, StoredFeatures]]:
        """What each update of some records makes of its item, of the features that are needed here; without superseded ones."""
        decoded = [decode_source_record(record, self._kind, self._init.shards) for record in records]
        updates = [update for one in decoded for update in one.updates if isinstance(update, FeaturesUpdate)]
        keys = list({update.key for update in updates})
        stored = zip(keys, self.database.multi_get(ITEMS, keys), strict=True)
        held, found = {key: _features_of(raw) for key, raw in stored if raw is not None}, []
        for update in updates:
            features = {} if update.dead else _needed(self.items, update.features)
            update = msgspec.structs.replace(update, features=features, raw=b"" if update.dead else pack_features(features))
            if (after := fold_features(held.get(update.key), update)) is not None:
                held[update.key] = after
                found.append((update.key, after))
        return found

    def _decode_users(self, records: Sequence[SourceRecord]) -> list[tuple[bytes, StoredUser]]:
        """What each record makes of its user."""
        updates = decode_user_updates(records if self.users.counts.statistics else (), self._init)
        keys, found = list({key for key, _ in updates}), []
        held = {key: decode_user(raw) for key, raw in zip(keys, self.database.multi_get(USERS, keys), strict=True)}
        for key, update in updates:
            held[key] = fold_user(held[key], update, _needed(self.users, update.features))
            found.append((key, held[key]))
        return found

    def _commit(self, batch: Any, after: _State) -> None:
        batch.put(META, _STATE, msgspec.json.encode(after))
        failpoint("before-write")
        self.database.write(batch)
        failpoint("after-write")
        if after.newest_ms > self._state.newest_ms:
            self._newest_at_s = self._clock.monotonic()
        self._state = after

    # --- numbers ---

    def move_clock(self, time_ms: int) -> list[tuple[bytes, bytes]]:
        """Makes the windows end at a later time; earlier ones do nothing. Returns the ranges of keys that no window needs any more."""
        if time_ms <= self.clock_ms:
            return []
        ranges = []
        for side in self.sides:
            counts = side.counts
            for number, (old, new) in enumerate(zip(counts.first_buckets(counts.clock_ms), counts.first_buckets(time_ms), strict=True)):
                if (begin := max(old, 0)) < new:
                    ranges.append((_range(side, number, begin)[0], _range(side, number, new)[0]))
                    for raw_key, value in self.database.scan(COUNTS, *ranges[-1]):
                        counts.add({_change(raw_key): -_VALUE.unpack(value)[0]})
            counts.clock_ms = time_ms
        return ranges

    def write_due(self) -> list[OutboxEntry]:
        """Once an interval: puts the changed numbers into the outbox, and a report if everything is counted that the log holds. Returns what it put there."""
        now_s = self._clock.monotonic()
        if now_s - self._sent_at_s < self._interval_s or not self.is_settled:
            return []
        self._sent_at_s = now_s
        batch, outgoing = self.database.new_batch(), Outgoing(self._state.next_outbox, 0)
        chosen, left = list[tuple[Side, np.ndarray, np.ndarray]](), list[tuple[bytes, bytes]]()
        if self._changed or now_s - self._made_at_s >= _REMAKE_EVERY_S:
            self._made_at_s, self._changed = now_s, False
            passed_ms = int((now_s - self._newest_at_s) * 1_000) + 1
            after_sent = max(side.sent_at_max for side in self.sides) + 1
            left = self.move_clock(max(self._state.newest_ms + passed_ms, self.clock_ms + 1, after_sent))
            for first, end in left:
                batch.delete_range(COUNTS, first, end)
            for side, put_updates in ((self.items, self._put_items), (self.users, self._put_users)):
                number_SI = side.counts.numbers()
                places, others_wait = side.choose(number_SI, self._updates_max)
                self._changed |= others_wait
                put_updates(outgoing, [side.counts.keys[place] for place in places.tolist()], side.counts.values(number_SI[:, places]))
                chosen.append((side, places, number_SI))
        if self._has_reached(self.ends):
            names, user_names = (list(side.counts.statistics) for side in self.sides)
            report = StatisticsReport(at_ms=self._clock.now_ms(), as_of_ms=self.clock_ms, names=names, user_names=user_names)
            outgoing.add(STATISTICS_REPORTS, 0, None, encode_record(report), ())
        if outgoing.entries or left:
            put_outbox(batch, outgoing.entries)
            after = msgspec.structs.replace(self._state, clock_ms=self.clock_ms, next_outbox=outgoing.next_sequence)
            self._commit(batch, after)
        for side, places, number_SI in chosen:
            side.note_sent(places, number_SI)
        return outgoing.entries

    def _put_items(self, outgoing: Outgoing, keys: Sequence[bytes], features: Sequence[Mapping[str, Any]]) -> None:
        by_partition: dict[int, list[dict[str, Any]]] = {}
        for key, values in zip(keys, features, strict=True):
            item = decode_index_key(key, self._kind)
            update = {"op": STATISTICS_OP, "item_id": encode_wire_id(item), "version": self.clock_ms, "features": values}
            by_partition.setdefault(partition_of(item, self._init.shards), []).append(update)
        for partition, updates in sorted(by_partition.items()):
            for at in range(0, len(updates), UPDATES_PER_RECORD_MAX):
                value = _encode_json({"schema": 1, "updates": updates[at : at + UPDATES_PER_RECORD_MAX]})
                outgoing.add(ITEM_FEATURES, partition, None, value, ())

    def _put_users(self, outgoing: Outgoing, keys: Sequence[bytes], features: Sequence[Mapping[str, Any]]) -> None:
        for key, values in zip(keys, features, strict=True):
            user = decode_index_key(key, self._kind)
            update = {"op": STATISTICS_OP, "user_id": encode_wire_id(user), "features": values, "time_ms": self.clock_ms}
            partition = partition_of(user, self._init.user_partitions)
            outgoing.add(USER_FEATURES, partition, user_features_key(user, True), _encode_json({"schema": 1, **update}), ())

    # --- what a task does with a shard ---

    def recover(self) -> None:
        """Reopens the database, and reads it again. Raises Unavailable while the disk is full."""
        self.database.reopen()
        self._read()


def _features_of(value: bytes) -> StoredFeatures:
    features = decode_item(value).features
    assert features is not None
    return features


def directory_name(statistics: Mapping[str, Statistic], index_id: str, topic_ids: Mapping[str, str]) -> str:
    """The name of the directory for these statistics of an index and Kafka's ids of the topics: others count the log from its beginning."""
    counted = _FORMAT, index_id, sorted(statistics.items(), key=lambda named: named[0]), sorted(topic_ids.items())
    return hashlib.sha256(repr(counted).encode()).hexdigest()[:16]


def _needed(side: Side, features: Mapping[str, Any]) -> dict[str, Any]:
    names = (*side.counts.statistics, *side.counts.group_names)
    return {name: features[name] for name in names if name in features}


def _key(side: Side, change: Change) -> bytes:
    return _KEY.pack(side.number, change.counter, change.bucket) + change.key


def _change(raw_key: bytes) -> Change:
    _, counter, bucket = _KEY.unpack_from(raw_key)
    return Change(counter, bucket, raw_key[_KEY.size :])


def _range(side: Side, counter: int, first_bucket: int) -> tuple[bytes, bytes]:
    """The keys of a counter from a step on."""
    return _KEY.pack(side.number, counter, first_bucket), _KEY.pack(side.number, counter + 1, 0)
