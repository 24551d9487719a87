"""Everything outside the processes: topics, clock, consumer group, chance, and the points at which a process dies or another one goes on.

Here: `World`. A process of the simulation calls `point(what)` (through its disk, store and topics) before and after everything that others can see.
There it may be killed (`Killed` unwinds it as an end of the process would), or another process makes a step first. So every order of steps
of several processes that only meet in store and topics is possible, without threads, and one seed gives one history.

A process is an object with a `name` and `die()`. A thread of it is a (name, what) pair; one that is in the middle of a step is not entered again.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

from infra.index.control_folds import control_path
from infra.kafka.dead_letters import Headers, decode_dead_letter
from infra.kafka.reader import SourceRecord
from schemas.events import IndexEvent
from schemas.ids import IdKind, encode_index_key, partition_of
from schemas.index.control import ControlState, Entry, Init, encode_entry, fold_entry
from schemas.index.layout import DeltaRecord, RowLayout, decode_delta
from schemas.index.lifecycle import EntryKind
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS, SHARD_TOPICS
from tests.sim.encoder import LAYOUT
from tests.sim.haste import QuickLog
from tests.sim.oracle import ShardOracle
from tests.sim.quick_json import QuickEncoder
from tests.sim.store import MemoryStore

Partition = tuple[str, int]
DEPTH_MAX = 2  # a step inside a step
_DELTAS_MAX = 1_000


class Violation(BaseException):
    """An invariant does not hold. A BaseException: nothing in the system may take it for one of its errors."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Killed(BaseException):
    """The process ends here."""

    def __init__(self, process: "Process") -> None:
        super().__init__(process.name)
        self.process = process


class Process(Protocol):
    """Something that may be killed."""

    name: str

    def die(self) -> None:
        """Its memory is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely things are at a point."""

    kill: float = 0.015
    overtake: float = 0.05
    rare_kill: float = 0.05
    rare_overtake: float = 0.6
    disk_fault: float = 0.01
    lost_answer: float = 0.2


@dataclass
class Clock:
    """Time that moves only when it is set."""

    seconds: float = 100_000.0  # so that a clock that is hours behind is after 1970

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class WrongClock:
    """The clock of a machine that is so far ahead of `clock`."""

    clock: Clock
    ahead_s: float

    def now_ms(self) -> int:
        return self.clock.now_ms() + int(self.ahead_s * 1000)

    def monotonic(self) -> float:
        return self.clock.monotonic()


@dataclass(slots=True)
class Topic:
    """One partition: records by offset, the oldest that is still there, and the offset of the next."""

    records: list[Any] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, record: Any) -> None:
        """One more record."""
        self.records.append(record)
        self.end += 1


class World:
    """See the module. `say` is the trace of the history."""

    def __init__(self, seed: int, shards: int, chances: Chances, traced: bool = False) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.chances, self.calm = chances, False
        self.clock = Clock()
        self.store = MemoryStore(self.store_point, self.clock.now_ms, self.find_disk_fault, self.loses_answer)
        self.shards = shards
        self.items = 8 if seed // 8 % 2 else 3  # of a shard: few of which each changes often, or more of which some stay as they are
        self.is_upgrading = seed % 9 == 5  # workers start with one of two encoders
        self.is_losing = seed % 9 == 7  # the index store loses checkpoints of versions, and has them again
        self.has_transactions = seed % 7 == 3  # publishers use them: some offsets have no record
        self.has_bucket = seed % 10 == 4  # the index store is one, whose answers get lost
        self.has_wrong_clocks = seed % 10 == 9  # of workers, by an hour
        self.lost: set[str] = set()  # sha256 of those that are lost now
        self.init = _init(shards)
        self.topics: dict[Partition, Topic] = {(t, p): Topic() for t in (*SHARD_TOPICS, INDEX_DELTAS) for p in range(shards)}
        self.checkpoints = Topic()
        self.dead_letters: set[tuple[str, int, int, int]] = set()  # topic, partition, offset, index
        self.committed: dict[Partition, int] = {}  # offsets of the consumer group
        self.oracles = [ShardOracle() for _ in range(shards)]
        self.versions_seen: dict[bytes, int] = {}  # highest event version of an item so far
        self.want_ends: dict[int, list[dict[str, int]]] = {}  # by version: ends of the topics of each shard when it was wanted
        self.started: set[int] = set()  # versions that some shard has begun
        self.steps: list[Callable[[], None]] = []  # what others may do at a point, as often as it is likely
        self.data_steps: list[Callable[[], None]] = []  # of those, what moves data
        self.log_steps: list[Callable[[], None]] = []  # of those, what writes the control log
        self.lines: list[str] | None = [] if traced else None
        self._stack: list[Process] = []
        self._busy: set[tuple[str, str]] = set()
        self.store.place(control_path(0), _init_entry(shards))
        self.log = QuickLog(self.store)  # type: ignore[arg-type]  # of no process: for the checks
        self.index_id = _index_id(shards)

    # --- steps and points ------------------------------------------------------------------------------------------------

    def say(self, line: str, *values: object) -> None:
        """One line of the history, made only when it is read."""
        if self.lines is not None:
            self.lines.append("  " * (len(self._stack) - 1) + (line % values if values else line))

    def run(self, process: Process, thread: str, step: Callable[[], None]) -> None:
        """A step of a thread, if it is not in the middle of one. A killed process dies where its outermost step began."""
        key = (process.name, thread)
        if key in self._busy:
            return
        self._busy.add(key)
        self._stack.append(process)
        try:
            step()
        except Killed as killed:
            if killed.process is not process or process in self._stack[:-1]:
                raise
            process.die()
        finally:
            self._stack.pop()
            self._busy.discard(key)

    def is_busy(self, process: Process, thread: str) -> bool:
        """Whether the thread is in the middle of a step."""
        return (process.name, thread) in self._busy

    def is_busy_at_all(self) -> bool:
        """Whether this is a step inside another one."""
        return bool(self._stack)

    def is_acting(self, process: Process) -> bool:
        """Whether a step of the process is going on."""
        return any(one is process for one in self._stack)

    def point(self, what: str) -> None:
        """Here others can see what this process did: it may be killed, or others may go first."""
        if not self.calm and self._stack:
            roll = self.random.random()
            if roll < self.chances.kill + self.chances.overtake:
                self._happen(what, roll < self.chances.kill, self.steps)

    def write_point(self, what: str) -> None:
        """Around a write of a disk, whose owner does nothing else meanwhile."""
        if not self.calm and self._stack and self.random.random() < self.chances.kill:
            self._happen(what, True, ())

    def data_point(self, what: str) -> None:
        """A point that is passed a few times in a history and decides much: it is likely that data moves here."""
        self._rare_point(what, self.data_steps)

    def store_point(self, path: str) -> None:
        """Around a change of the index store. It is likely that another process writes the same control entry."""
        if path.startswith("control/"):
            self._rare_point(path, self.log_steps)
        else:
            self.point(path)

    def _rare_point(self, what: str, steps: Sequence[Callable[[], None]]) -> None:
        if not self.calm and self._stack:
            roll = self.random.random()
            if roll < self.chances.rare_kill + self.chances.rare_overtake:
                self._happen(what, roll < self.chances.rare_kill, steps)

    def _happen(self, what: str, is_death: bool, steps: Sequence[Callable[[], None]]) -> None:
        """The process that acts ends here, or others make some steps."""
        if is_death:
            self.say("KILLED %s at %s", self._stack[-1].name, what)
            raise Killed(self._stack[-1])
        if len(self._stack) < DEPTH_MAX:
            self.say("at %s:", what)
            for _ in range(self.random.randrange(1, 6)):
                self.random.choice(steps)()

    def find_disk_fault(self) -> tuple[str, bool] | None:
        """Whether a disk fails at this write: the code of the error, and whether the write took effect all the same."""
        if self.calm or not self._stack or self.random.random() >= self.chances.disk_fault:
            return None
        fault = self.random.choice(("disk_full", "database_failed")), self.random.random() < 0.5
        self.say("a disk of %s fails: %s", self._stack[-1].name, fault)
        return fault

    def loses_answer(self) -> bool:
        """Whether the answer of the index store to a conditional PUT is lost."""
        is_lost = self.has_bucket and not self.calm and bool(self._stack) and self.random.random() < self.chances.lost_answer
        if is_lost:
            self.say("an answer of the index store is lost")
        return is_lost

    def unique(self) -> str:
        """A name that no other process uses; its order says nothing."""
        return f"{self.random.getrandbits(48):012x}"

    # --- topics -------------------------------------------------------------------------------------------------------------

    def ends(self, shard: int) -> dict[str, int]:
        """Ends of the topics of a shard."""
        return {topic: self.topics[topic, shard].end for topic in SHARD_TOPICS}

    def publish_items(self) -> None:
        """One record of one or two updates to item-features: news, repeats, overtaken ones, deletes, and what must be rejected."""
        shard = self.random.randrange(self.shards)
        log, ids = self.topics[ITEM_FEATURES, shard], _ids(self.shards, shard, self.items)
        if self.random.random() < 0.06:
            item = self.random.choice(ids)
            self.oracles[shard].publish_features([(encode_index_key(item), None, None)])
            record = SourceRecord(ITEM_FEATURES, shard, log.end, str(item).encode(), None, (), self.clock.now_ms())
        else:
            updates = [self._item_update(self.random.choice(ids)) for _ in range(self.random.choice((1, 1, 2)))]
            self.oracles[shard].publish_features([oracle for oracle, _ in updates])
            text = _ENCODERS[log.end % 4].encode({"schema": 1, "updates": [update for _, update in updates]})
            record = SourceRecord(ITEM_FEATURES, shard, log.end, b"", text.encode(), (), self.clock.now_ms())
        log.append(record)
        self.say("item-features/%d @%d: %s %s", shard, record.offset, (record.key or b"").decode(), (record.value or b"(none)").decode())
        if self.has_transactions and log.end % 3:
            self._end_transaction(shard, log, aborted=log.end % 5)

    def _end_transaction(self, shard: int, log: Topic, aborted: int) -> None:
        """The offsets of so many aborted records and of a marker, as the consumer gives them."""
        for _ in range(aborted + 1):
            self.oracles[shard].publish_features([])
            log.append(SourceRecord(ITEM_FEATURES, shard, log.end, None, None, skipped=True))
        self.say("item-features/%d: a transaction ends, its offsets up to %d are skipped", shard, log.end - 1)

    def _item_update(self, item: int) -> tuple[tuple[bytes, int | None, Mapping[str, Any] | None] | None, dict[str, Any]]:
        """(as the oracle gets it, as it is sent)."""
        key, roll = encode_index_key(item), self.random.random()
        if roll < 0.05:
            return None, {"op": "upsert", "item_id": item}
        newest = self.versions_seen.get(key, 0)
        version = newest + 1 if roll < 0.75 else max(0, newest - self.random.randrange(3))
        self.versions_seen[key] = max(version, newest)
        if self.random.random() < 0.22:
            return (key, version, None), {"op": "delete", "item_id": item, "version": version}
        features = self.random.choice(_FEATURES)
        return (key, version, features), {"op": "upsert", "item_id": item, "version": version, "features": features}

    def publish_embedding(self) -> None:
        """One record to new-items."""
        shard = self.random.randrange(self.shards)
        log = self.topics[NEW_ITEMS, shard]
        if self.random.random() < 0.05:
            self.oracles[shard].publish_embeddings([None])
            value = b'{"schema":1,"updates":[{}]}'
        else:
            item, values = self.random.choice(_ids(self.shards, shard, self.items)), [float(self.random.randrange(2)), 1.0]
            self.oracles[shard].publish_embeddings([(encode_index_key(item), np.array(values, np.float32).tobytes())])
            value = _ENCODERS[3].encode({"schema": 1, "updates": [{"item_id": item, "embedding": values}]}).encode()
        log.append(SourceRecord(NEW_ITEMS, shard, log.end, b"", value, (), self.clock.now_ms()))
        self.say("new-items/%d @%d: %s", shard, log.end - 1, value.decode())

    def publish_checkpoint(self, kind: str = "") -> None:
        """One record to model-checkpoints; its offset is the version. Some are bad."""
        kind = kind or ("bad" if self.random.random() < 0.1 else "checkpoint")
        self.checkpoints.append(f"{kind} {self.checkpoints.end}")
        self.say("model-checkpoints @%d: %s", self.checkpoints.end - 1, kind)

    def note_event(self, event: IndexEvent) -> None:
        """What reconcilers announce."""
        if event.kind == "building":
            self.started.add(event.version)

    def note_want(self, version: int) -> None:
        """A version is about to be wanted: everything in the topics now must be in it (B7)."""
        self.want_ends.setdefault(version, [self.ends(shard) for shard in range(self.shards)])

    def send_delta(self, shard: int, value: bytes) -> None:
        """The broker has taken a record of index-deltas."""
        self.topics[INDEX_DELTAS, shard].append(value)

    def send_dead_letter(self, headers: Headers) -> None:
        """The broker has taken a dead letter."""
        source = decode_dead_letter(headers)
        self.dead_letters.add((source.topic, source.partition, source.offset, source.index))

    def sources_end(self, shard: int) -> Mapping[str, int]:
        """streams/shard/log_ends.py `LogEnds`."""
        return self.ends(shard)

    def deltas_end(self, shard: int) -> int:
        """streams/shard/log_ends.py `LogEnds`."""
        self.data_point("the end of index-deltas")
        return self.topics[INDEX_DELTAS, shard].end


@lru_cache(_DELTAS_MAX)
def read_delta(value: bytes) -> DeltaRecord:
    """A record of index-deltas, which several readers follow, and often none."""
    return decode_delta(_ANY_VERSION, value)


class _Layouts(dict[int, RowLayout]):
    """Every version has the same layout."""

    def get(self, _: int, default: object = None) -> RowLayout:  # type: ignore[override]
        return LAYOUT


_ANY_VERSION = _Layouts()
# As publishers write it, and now and then as only the strict models read it.
_ENCODERS = (QuickEncoder(sort_keys=False),) * 3 + (QuickEncoder(sort_keys=False, separators=(", ", ": ")),)
_FEATURES = (
    {"brand": "x", "price": 1},
    {"brand": "x", "price": 1.5},
    {"brand": "y", "price": 1},
    {"brand": "x", "price": 1, "stock": 2},
)


@cache
def _ids(shards: int, shard: int, count: int) -> list[int]:
    return [i for i in range(100) if partition_of(i, shards) == shard][:count]


@cache
def _init(shards: int) -> Init:
    return Init(shards, 1, IdKind.INT64, {topic: topic for topic in SHARD_TOPICS})


@cache
def _index_id(shards: int) -> str:
    return fold_entry(ControlState(), 0, _init_entry(shards)).index_id


@cache
def _init_entry(shards: int) -> bytes:
    return encode_entry(Entry(EntryKind.INIT, 0, "sim", init=_init(shards)))
