"""A random log of an index's topics, the import's numbers of it, and a process that counts it and is killed now and then."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from infra.data.interactions import Interactions
from infra.data.log_statistics import LogStatistic
from infra.kafka.reader import SourceRecord
from schemas.decoding import STATISTICS_OP, decode_user_features
from schemas.ids import IdKind, encode_index_key, partition_of
from schemas.index.control import Init
from schemas.statistics import CLICK, DAY_MS, HOUR_MS, OF_USER, Log, Measure, Statistic
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, USER_BEHAVIOURS, USER_FEATURES
from schemas.users import UserHistory, fold_profile, fold_statistics
from streams.core.item import StoredFeatures, fold_features, unpack_features
from streams.shard.decode import decode_source_record
from streams.shard.outbox import OutboxEntry
from streams.statistics.tally import Tally
from tests.streams.shard_world import ManualClock

Place = tuple[str, int, int]  # topic, partition, offset

SHARDS, USERS, ITEMS, START_MS = 2, 9, 7, 20_000 * DAY_MS
KINDS, MAKERS = ("click", "buy"), ("a", "b", None)
INIT = Init(SHARDS, 2, "int64", {}, {})
_B, _I = Log.BEHAVIOURS, Log.IMPRESSIONS
STATISTICS = {
    "taken_1d": Statistic(_B, Measure.EXACT, window_ms=DAY_MS),
    "bought_2h": Statistic(_B, Measure.COUNT, ("buy",), window_ms=2 * HOUR_MS),
    "buying": Statistic(_B, Measure.RATE, ("buy",)),
    "first": Statistic(_B, Measure.FIRST),
    "last_buy": Statistic(_B, Measure.LAST, ("buy",)),
    "shown": Statistic(_I, Measure.COUNT),
    "clicking_6h": Statistic(_I, Measure.RATE, (CLICK,), window_ms=6 * HOUR_MS),
    "liking_of_maker": Statistic(_I, Measure.RATE, ("like",), by="maker", window_ms=2 * DAY_MS),
    "shown_of_maker": Statistic(_I, Measure.EXACT, by="maker", window_ms=HOUR_MS),
    "decayed_3h": Statistic(_B, Measure.DECAYED, window_ms=3 * HOUR_MS),
    "liked_of_maker_1d": Statistic(_I, Measure.DECAYED, ("like",), by="maker", window_ms=DAY_MS),
    "user:decayed_12h": Statistic(_B, Measure.DECAYED, window_ms=12 * HOUR_MS),
    "user:taken": Statistic(_B, Measure.EXACT),
    "user:buying_1d": Statistic(_B, Measure.RATE, ("buy",), window_ms=DAY_MS),
    "user:last": Statistic(_I, Measure.LAST, (CLICK,)),
    "user:shown_6h": Statistic(_I, Measure.COUNT, window_ms=6 * HOUR_MS),
}


class Killed(BaseException):
    """The process ends at this instruction."""


@dataclass
class LogWorld:
    """Random events in log order of each partition: event times jump back and forth. `events`: (time, log, item, kinds, place, user).
    Item ITEMS is in no catalogue. Every second user has a profile."""

    seed: int
    rows: int = 120
    days: int = 3
    records: dict[tuple[str, int], list[SourceRecord]] = field(default_factory=dict)
    events: list[tuple[int, Log, int, tuple[str, ...], Place, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = np.random.default_rng(self.seed)
        for item in range(ITEMS):
            self._put_item(item, {"maker": MAKERS[item % 3]})
        for user in range(0, USERS, 2):
            self._put_user(user, {"country": "nl", "taken": 1.0})
        for time_ms in np.sort(START_MS + chance.integers(0, self.days * DAY_MS, self.rows)).tolist():
            time_ms -= int(chance.integers(0, HOUR_MS)) * (chance.random() < 0.3)
            item, user = int(chance.integers(0, ITEMS + 1)), int(chance.integers(0, USERS))
            if chance.random() < 0.5:
                kind = KINDS[chance.integers(0, 2)]
                update = {"user_id": user, "item_id": item, "kind": kind, "time_ms": time_ms}
                place = self._put(USER_BEHAVIOURS, user, {"updates": [update]})
                self.events.append((time_ms, _B, item, (kind,), place, user))
            else:
                flags = [name for name in (CLICK, "like") if chance.random() < 0.5]
                shown = {
                    "item_id": item,
                    "position": 0,
                    "bid": 1.0,
                    "clicked": CLICK in flags,
                    "outcomes": [f for f in flags if f != CLICK],
                }
                place = self._put(IMPRESSIONS, user, {"request_id": "r", "user_id": user, "time_ms": time_ms, "items": [shown]})
                self.events.append((time_ms, _I, item, tuple(flags), place, user))

    def _put_item(self, item: int, features: Mapping[str, Any]) -> None:
        self._put(ITEM_FEATURES, item, {"updates": [{"item_id": item, "version": 1, "features": features}]})

    def _put_user(self, user: int, features: Mapping[str, Any]) -> None:
        topic, partition, offset = self._put(USER_FEATURES, user, {"user_id": user, "features": features})
        self.records[topic, partition][offset] = dataclasses.replace(self.records[topic, partition][offset], key=str(user).encode())

    def _put(self, topic: str, owner: int, value: Mapping[str, Any]) -> Place:
        partition = partition_of(owner, SHARDS)
        log = self.records.setdefault((topic, partition), [])
        log.append(SourceRecord(topic, partition, len(log), None, msgspec.json.encode({"schema": 1, **value})))
        return topic, partition, len(log) - 1

    def append(self, entry: OutboxEntry) -> None:
        """An update that a process sent."""
        if entry.topic in (ITEM_FEATURES, USER_FEATURES):
            log = self.records[entry.topic, entry.partition or 0]
            log.append(SourceRecord(entry.topic, entry.partition or 0, len(log), entry.key, entry.value))

    def served_users(self) -> dict[int, Mapping[str, Any]]:
        """The users' features as servers have them that read the topic when it was compacted."""
        last = {(name, r.key): r for name, log in self.records.items() if name[0] == USER_FEATURES for r in log}
        found = {user: UserHistory() for user in range(USERS)}
        for record in sorted(last.values(), key=lambda r: r.offset):
            told = decode_user_features(record.key, record.value, IdKind(INIT.id_kind), record.partition, SHARDS)
            fold = fold_statistics if told.op == STATISTICS_OP else fold_profile
            fold(found[int(told.user_id)], record.offset, told.features)
        return {user: {**history.profile, **history.statistics} for user, history in found.items()}

    def served(self) -> dict[int, dict[str, Any]]:
        """The items' features as the shards of the index have them."""
        stored: dict[bytes, StoredFeatures] = {}
        for record in (record for (topic, _), log in self.records.items() if topic == ITEM_FEATURES for record in log):
            decoded = decode_source_record(record, IdKind(INIT.id_kind), SHARDS)
            assert not decoded.rejected
            for update in decoded.updates:
                after = fold_features(stored.get(update.key), update)  # type: ignore[arg-type]
                stored = {**stored, **({update.key: after} if after is not None else {})}
        return {item: unpack_features(stored[encode_index_key(item)].raw) for item in range(ITEMS)}

    def imported(self, time_ms: int, ends: Mapping[str, int]) -> dict[str, np.ndarray]:
        """What an import of the events before the offsets `ends` tells as of a time."""
        found = {}
        for name, statistic in STATISTICS.items():
            rows = sorted(
                (e for e in self.events if e[1] is statistic.log and e[4][2] < ends["/".join(map(str, e[4][:2]))]), key=lambda e: e[0]
            )
            kinds = KINDS if statistic.log is _B else (CLICK, "like")
            codes = [kinds.index(r[3][0]) if statistic.log is _B else sum(1 << kinds.index(x) for x in r[3]) for r in rows]
            user_X, item_X, time_X = (np.array([r[column] for r in rows], np.int64) for column in (5, 2, 0))
            log = Interactions(range(USERS), range(ITEMS + 1), kinds, user_X, item_X, np.array(codes, np.int64), time_X)
            groups = np.array([-1 if MAKERS[i % 3] is None else i % 3 for i in range(ITEMS)]) if statistic.by else None
            owners, owner = (USERS, "user_X") if name.startswith(OF_USER) else (ITEMS, "item_X")
            found[name] = LogStatistic(statistic, log, owners, groups, owner).at(time_ms)
        return found


class Process:
    """Counts a log from a directory; each kill leaves what was written, and the next start continues there."""

    def __init__(self, world: LogWorld, directory: Path, tally: type[Tally] = Tally, updates_max: int = 5_000) -> None:
        self.world, self._directory, self._tally, self._updates_max = world, directory, tally, updates_max
        self.clock = ManualClock()
        self.clock.seconds = START_MS / 1_000 + 30 * 86_400
        self._share = 0.0
        self.start()

    def start(self) -> None:
        """Opens the directory; the broker has what was confirmed, and perhaps more, and of the events what was counted last."""
        self.tally = self._tally(self._directory, STATISTICS, INIT, self.clock, updates_max=self._updates_max)
        ends = {"/".join(map(str, name)): end for name, end in self._ends().items()}
        self.tally.open_log(dict.fromkeys(ends, 0), ends)

    def restart(self) -> None:
        """As after a kill."""
        self.tally.database.close()
        self.start()

    def count(self, random: np.random.Generator, kills: float, share: float = 1.0) -> dict[str, int]:
        """Reads all items and a share of every other partition in random batches, and dies before or after some writes. Returns the offsets reached."""
        self._share = share
        ends = self._ends()
        while left := [name for name, end in ends.items() if self._next(name) < end]:
            name = left[random.integers(0, len(left))]
            first = max(0, self._next(name) - int(random.integers(0, 3)))  # some records come twice
            batch = self.world.records[name][first : min(ends[name], self._next(name) + int(random.integers(1, 9)))]
            self.dies(lambda batch=batch: self.tally.apply(batch), random, kills)
        return self.tally.next_offsets

    def _ends(self) -> dict[tuple[str, int], int]:
        shares = {ITEM_FEATURES: 1.0, USER_FEATURES: 1.0}
        return {name: int(len(log) * shares.get(name[0], self._share)) for name, log in self.world.records.items()}

    def _next(self, name: tuple[str, int]) -> int:
        return self.tally.next_offsets["/".join(map(str, name))]

    def publish(self, random: np.random.Generator, kills: float = 0.0, rounds: int = 60, reads: bool = True) -> None:
        """Sends until nothing changes; some entries are sent twice, as after a lost confirmation. `reads`: also what was sent meanwhile."""
        for _ in range(rounds):
            self.clock.seconds += 1.0
            if reads and random.random() < 0.5:
                self.count(random, kills, self._share)
            entries = self.dies(self.tally.write_due, random, kills)
            if entries is None:
                entries = self.tally.pending_outbox(1_000)
            for entry in [*entries, *(e for e in entries if random.random() < 0.2)]:
                self.world.append(entry)
            if random.random() < 0.5 and entries:
                self.tally.confirm_outbox(entries[-1].sequence)

    def dies(self, step: Any, random: np.random.Generator, kills: float) -> Any:
        """Runs a step, perhaps up to before or after its write."""
        database, dies, late = self.tally.database, random.random() < kills, random.random() < 0.5
        write = database.write

        def killing(batch: Any, sync: bool = False) -> None:
            if late:
                write(batch, sync)
            raise Killed

        if dies:
            database.write = killing  # type: ignore[method-assign]
        try:
            return step()
        except Killed:
            self.restart()
            return None
        finally:
            database.write = write  # type: ignore[method-assign]


def numbers_served(features: Mapping[str, Any], side: str = "") -> dict[str, float]:
    """The statistics among the features of an item, or of a user with `side` OF_USER, as a model reads them: a missing one is that of no event."""
    of_side = {name: s for name, s in STATISTICS.items() if name.startswith(OF_USER) == bool(side)}
    told = {name: features.get(name.removeprefix(side)) for name in of_side}
    return {name: statistic.nothing if told[name] is None else told[name] for name, statistic in of_side.items()}
