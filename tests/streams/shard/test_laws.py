"""Laws of a shard: the same log gives the same shard, whatever the batches, the interleaving, the redeliveries and the crashes (I1, I4). Readers that follow
the row-stamp rule end with the shard's rows, also when the shard was set back and read the log again.

The oracle is a plain fold over each topic alone. A crash before or after the write of a batch closes the directory without another step.
"""

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.kafka.dead_letters import decode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database
from schemas.ids import encode_index_key
from schemas.index.layout import decode_delta, decode_increment
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS, SHARD_TOPICS
from streams.core.shard_state import TopicCounts
from streams.shard.shard import Shard
from streams.shard.shard_reader import ItemBlock, open_shard_reader
from tests.memory import MEMORY
from tests.schemas.index.stamp_rule import is_newer
from tests.streams.shard_world import (
    ITEMS,
    HashEncoder,
    ManualClock,
    delete,
    embed,
    everything,
    features_record,
    new_items_record,
    open_test_shard,
    rows_of,
    upsert,
)

VERSION = 3
FEW = ITEMS[:2]
LAW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ids = st.sampled_from(FEW)
upserts = st.builds(
    lambda item, version, features: upsert(item, version, **features),
    ids,
    st.integers(0, 3),
    # few, so that identical events and changes that are undone are common; 1 and 1.0 are equal in Python and not the same bytes
    st.sampled_from([{"brand": "x", "price": 1}, {"brand": "x", "price": 1.0}, {"brand": "y", "price": 1}, {"brand": "x", "stock": 2}]),
)
deletes = st.builds(delete, ids, st.integers(0, 4))
bad = st.just({"op": "upsert"})
embeddings = st.builds(lambda item, a: embed(item, a, 1, 2, 3), ids, st.sampled_from([0.0, -1.0]))


@dataclass(frozen=True)
class Step:
    """How a run goes on: records of each topic to take, what happens around their write."""

    features: int
    new_items: int
    again: int  # so many records before them are delivered again
    event: str  # "", "crash before", "crash after", "save", "rewind"


@dataclass
class Log:
    """Both partitions of a shard."""

    features: list[SourceRecord]
    new_items: list[SourceRecord]

    @property
    def records(self) -> dict[str, list[SourceRecord]]:
        return {ITEM_FEATURES: self.features, NEW_ITEMS: self.new_items}


@st.composite
def logs(draw: st.DrawFn) -> Log:
    groups = draw(st.lists(st.lists(st.one_of(upserts, upserts, deletes, bad), min_size=1, max_size=3), max_size=8))
    features = [features_record(i, *group) for i, group in enumerate(groups)]
    for i in draw(st.sets(st.integers(0, 7), max_size=2)):
        if i < len(features):  # a key without a value
            features[i] = SourceRecord(ITEM_FEATURES, 0, i, str(draw(ids)).encode(), None, (), 1_000 + i)
    groups = draw(st.lists(st.lists(st.one_of(embeddings, embeddings, bad), min_size=1, max_size=2), max_size=6))
    return Log(features, [new_items_record(i, *group) for i, group in enumerate(groups)])


def steps(*events: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.builds(Step, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from(("", *events))), max_size=8)


class Crash(Exception):
    """The process ended here."""


@dataclass
class Run:
    """A shard on its way through a log, with the deltas that all its lives have sent."""

    folder: Path
    log: Log
    clock: ManualClock = field(default_factory=ManualClock)
    sent: dict[int, bytes] = field(default_factory=dict)
    deltas: list[bytes] = field(default_factory=list)
    saved: Path | None = None
    lives: int = 0

    def __post_init__(self) -> None:
        self.directory = self.folder / "shard-0"
        self.shard = open_test_shard(self.directory, self.clock)
        self.shard.start_version(HashEncoder(VERSION), {})

    def step(self, step: Step) -> None:
        if step.event == "save":
            self.saved = self.folder / f"saved-{len(list(self.folder.iterdir()))}"
            self.shard.create_checkpoint(self.saved)
        elif step.event == "rewind" and self.saved is not None:
            self.rewind(self.saved)
        with pytest.MonkeyPatch.context() as patch:
            if step.event.startswith("crash"):
                patch.setattr(Database, "write", _crashing(Database.write, after=step.event == "crash after"))
            try:
                self.shard.apply(self.batch(step))
            except Crash:
                self.reopen()
        self.send()
        self.clock.seconds += 0.04

    def batch(self, step: Step) -> list[SourceRecord]:
        """The next records of both topics, some of the former ones before them."""
        taken = []
        for topic, count in ((ITEM_FEATURES, step.features), (NEW_ITEMS, step.new_items)):
            at = self.shard.next_offsets[topic]
            taken.append(self.log.records[topic][max(0, at - step.again) : at + count])
        return [r for pair in itertools.zip_longest(*taken) for r in pair if r is not None]

    def finish(self, plan: Sequence[Step] = ()) -> Shard:
        """These steps, and then the rest of the log in one batch."""
        for step in plan:
            self.step(step)
        self.step(Step(99, 99, 1, ""))
        return self.shard

    def reopen(self) -> None:
        self.shard.close()
        self.shard = open_test_shard(self.directory, self.clock)

    def rewind(self, saved: Path) -> None:
        """The directory as it was at the save: a lost end of the write-ahead log, an older copy, another host's owner."""
        self.shard.close()
        self.lives += 1
        self.directory, self.saved = saved, None
        self.shard = open_test_shard(self.directory, self.clock)
        self.sent = {}

    def send(self) -> None:
        """What the outbox's sender would put into index-deltas, in its order."""
        for entry in self.shard.pending_outbox(10_000):
            if entry.topic == INDEX_DELTAS and entry.sequence not in self.sent:
                assert entry.value is not None
                self.sent[entry.sequence] = entry.value
                self.deltas.append(entry.value)


def _crashing(write: Any, after: bool) -> Any:
    def crash(self: Database, batch: Batch, sync: bool = False) -> None:
        if after:
            write(self, batch, sync)
        raise Crash

    return crash


def straight(log: Log, folder: Path) -> Shard:
    """Every record alone, item-features first."""
    run = Run(folder, log)
    for record in (*log.features, *log.new_items):
        run.shard.apply([record])
    return run.shard


def oracle(log: Log) -> tuple[dict[int, tuple[Any, ...]], dict[str, TopicCounts]]:
    """(version, offset, index, features or None) by item, and the counts: a fold in ten lines that shares nothing with the code."""
    held: dict[int, tuple[Any, ...]] = {}
    counts: dict[str, Counter[str]] = {topic: Counter() for topic in SHARD_TOPICS}
    for record in log.features:
        updates = [json.loads(record.key or b"")] if record.value is None else json.loads(record.value)["updates"]
        for index, update in enumerate(updates):
            if isinstance(update, int):
                update = delete(update, held.get(update, (0,))[0])
            if "item_id" not in update:
                counts[ITEM_FEATURES]["dead"] += 1
                continue
            stamp = (update["version"], record.offset, index)
            newer = update["item_id"] not in held or stamp > held[update["item_id"]][:3]
            counts[ITEM_FEATURES]["applied" if newer else "superseded"] += 1
            if newer:
                held[update["item_id"]] = (*stamp, update["features"] if update["op"] == "upsert" else None)
    for record in log.new_items:
        counts[NEW_ITEMS].update("applied" if "item_id" in u else "dead" for u in json.loads(record.value or b"")["updates"])
    totals = {t: TopicCounts(sum(c.values()), c["applied"], c["superseded"], c["dead"]) for t, c in counts.items()}
    return held, totals


def read_items(shard: Shard, folder: Path) -> list[ItemBlock]:
    shard.create_checkpoint(folder / "read")
    with open_shard_reader(folder / "read") as reader:
        return list(reader.scan_blocks())


def contents(rows: Mapping[bytes, bytes]) -> dict[bytes, tuple[int, int, bytes]]:
    """(dead, input hash, row bytes) by key: all that readers and digests see; stamps of tombstones may differ elsewhere."""
    decoded = {key: decode_increment(HashEncoder(VERSION).layout, value) for key, value in rows.items()}
    return {k: (int(o["dead"]), int(o["input_hash"]), b"" if r is None else r.tobytes()) for k, (o, r) in decoded.items()}


def follow(deltas: Sequence[bytes]) -> dict[bytes, bytes]:
    """A reader's table after the deltas, by the row-stamp rule."""
    layout = HashEncoder(VERSION).layout
    table: dict[bytes, bytes] = {}
    for raw in deltas:
        for key, value in decode_delta({VERSION: layout}, raw).changes:
            if key not in table or is_newer(decode_increment(layout, value)[0], decode_increment(layout, table[key])[0]):
                table[key] = value
    return table


@LAW
@given(logs(), steps("crash before", "crash after"))
def test_any_batching_interleaving_redelivery_and_crash_gives_the_same_shard(log: Log, plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        run = Run(Path(name), log)
        shard = run.finish(plan)
        expected = straight(log, Path(name) / "straight")
        found, wanted = everything(shard), everything(expected)
        assert contents(rows_of(shard, VERSION)) == contents(rows_of(expected, VERSION))
        del found["increments"], wanted["increments"]
        assert found == wanted
        shard.close()
        expected.close()


@LAW
@given(logs(), steps("crash before", "crash after"))
def test_items_counts_and_dead_letters_are_those_of_a_plain_fold(log: Log, plan: list[Step]) -> None:
    held, counts = oracle(log)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        run = Run(Path(name), log)
        shard = run.finish(plan)
        assert shard.state.counters == counts
        assert all(c.consumed == c.applied + c.superseded + c.dead_lettered for c in shard.state.counters.values())
        live = {encode_index_key(item): features for item, (*_, features) in held.items() if features is not None}
        texts = {key: repr(text) for block in read_items(shard, Path(name)) for key, text in zip(block.keys, block.features, strict=True)}
        assert texts == {k: repr(dict(sorted(f.items()))) for k, f in live.items()}
        letters = [decode_dead_letter(list(e.headers)) for e in shard.pending_outbox(10_000) if e.topic != INDEX_DELTAS]
        positions = [(d.topic, d.offset, d.index) for d in letters]
        assert len(set(positions)) == len(positions) == sum(c.dead_lettered for c in counts.values())
        shard.close()


@LAW
@given(logs(), steps("crash before", "crash after"))
def test_rows_are_those_of_one_encode_of_the_final_items_and_their_stamps_those_of_the_items(log: Log, plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        run = Run(Path(name), log)
        shard = run.finish(plan)
        rows: dict[bytes, bytes] = {}
        stamps: dict[bytes, bytes] = {}
        for block in read_items(shard, Path(name)):
            encoded = HashEncoder(VERSION).encode(block.features, block.embeddings)
            rows |= {key: row.tobytes() for key, row in zip(block.keys, encoded, strict=True)}
            stamps |= {key: stamp.tobytes() for key, stamp in zip(block.keys, block.stamps_R, strict=True)}
        found = {k: decode_increment(HashEncoder(VERSION).layout, v) for k, v in rows_of(shard, VERSION).items()}
        live = {k: (o, r) for k, (o, r) in found.items() if r is not None}
        assert {k: r.tobytes() for k, (_, r) in live.items()} == rows
        assert {k: o.tobytes() for k, (o, _) in live.items()} == stamps
        shard.close()


@settings(LAW, max_examples=60)
@given(logs(), steps("save", "rewind", "save", "rewind", "crash after"))
def test_a_reader_ends_with_the_rows_of_the_shard_also_when_the_shard_lived_twice(log: Log, plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        run = Run(Path(name), log)
        shard = run.finish(plan)
        assert contents(follow(run.deltas)) == contents(rows_of(shard, VERSION))
        shard.close()


def test_an_identical_event_seen_by_a_former_life_does_not_hold_readers_back(tmp_path: Path) -> None:
    """The first life applied both embeddings before the price, the second one between two prices; readers must end with the second price."""
    log = Log(
        [features_record(0, upsert(FEW[0], 1, price=1.0)), features_record(1, upsert(FEW[0], 2, price=2.0))],
        [new_items_record(0, embed(FEW[0], 1, 1, 1, 1)), new_items_record(1, embed(FEW[0], 1, 1, 1, 1))],
    )
    run = Run(tmp_path, log)
    for step in (Step(0, 1, 0, ""), Step(0, 0, 0, "save"), Step(0, 1, 0, ""), Step(1, 0, 0, ""), Step(2, 0, 0, "rewind")):
        run.step(step)
    shard = run.finish()
    assert contents(follow(run.deltas)) == contents(rows_of(shard, VERSION)) and shard.next_offsets == {ITEM_FEATURES: 2, NEW_ITEMS: 2}


def test_a_delete_reaches_readers_that_saw_a_newer_embedding_in_a_former_life(tmp_path: Path) -> None:
    log = Log(
        [features_record(0, upsert(FEW[0], 1)), features_record(1, delete(FEW[0], 2))],
        [new_items_record(0, embed(FEW[0], 1, 1, 1, 1))],
    )
    run = Run(tmp_path, log)
    for step in (Step(0, 0, 0, "save"), Step(0, 1, 0, ""), Step(1, 0, 0, ""), Step(2, 0, 0, "rewind")):
        run.step(step)
    shard = run.finish()
    assert contents(follow(run.deltas)) == contents(rows_of(shard, VERSION)) == {encode_index_key(FEW[0]): (1, 0, b"")}
