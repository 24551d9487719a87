"""Upserts that are folded together and items that are folded one by one: which is which, and that a shard cannot tell."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.errors import Corrupted
from schemas.index.layout import decode_delta
from schemas.topics import INDEX_DELTAS
from streams.core.item_state import EmbeddingUpdate, FeaturesUpdate
from streams.shard import fold as shard_fold
from streams.shard.batch_result import BatchResult
from streams.shard.fold import TOGETHER_MIN, split_updates
from streams.shard.shard import INCREMENTS, Shard, increment_prefix
from streams.stored.kernels import load_kernels
from streams.stored.upserts import Upserts
from tests.memory import MEMORY
from tests.streams.shard_world import (
    ITEMS,
    HashEncoder,
    delete,
    embed,
    everything,
    features_record,
    new_items_record,
    open_test_shard,
    upsert,
)

VERSION = 3
FEW = ITEMS[:6]
ids = st.sampled_from(FEW)
features = st.sampled_from(
    [
        {"brand": "x", "price": 1},
        {"brand": "x", "price": 1.0},  # equal in Python, other bytes
        {"brand": "y", "price": 1},
        {"brand": "x", "stock": 2},
        {"brand": 'a "text" that only Python reads', "stock": 1},
        {"brand": 'a "text" that only Python reads', "stock": 2},
    ]
)
upserts = st.builds(lambda item, version, values: upsert(item, version, **values), ids, st.integers(0, 3), features)
deletes = st.builds(delete, ids, st.integers(0, 4))
embeddings = st.builds(lambda item, a: embed(item, a, 1, 2, 3), ids, st.sampled_from([0.0, -1.0]))
batches = st.lists(st.tuples(st.lists(upserts | upserts | deletes, min_size=1, max_size=6), st.lists(embeddings, max_size=2)), max_size=6)


def put(key: bytes, dead: bool = False) -> FeaturesUpdate:
    return FeaturesUpdate(key, 1, 0, 0, dead, b"" if dead else b"{}")


def test_upserts_of_items_that_nothing_else_touches_go_together() -> None:
    many = [put(bytes([i])) for i in range(TOGETHER_MIN)] + [put(b"twice"), put(b"twice")]
    others = [put(b"dead", dead=True), EmbeddingUpdate(b"both", 0, 0, b"1234"), put(b"both")]
    for records in ([many + others], [others, many], [Upserts.of(many), others], [others[:2], Upserts.of([others[2], *many])]):
        together, alone = split_updates(records, TOGETHER_MIN)
        assert (list(together), alone) == (many, others)
    few = [Upserts.of(many[3:]), others]
    together, alone = split_updates(few, TOGETHER_MIN)
    assert (list(together), alone) == ([], [*many[3:], *others])


def test_runs_of_the_same_columns_are_joined_without_a_copy_and_others_keep_their_order() -> None:
    whole, other = Upserts.of([put(bytes([i])) for i in range(6)]), Upserts.of([put(b"x"), put(b"y")])
    first, second = (Upserts(whole.columns(), 0, 0), whole)
    parts = [Upserts(second._columns, 0, 2), Upserts(second._columns, 2, 5)]
    joined = Upserts.join(parts)
    assert joined._columns is second._columns and list(joined) == list(whole)[:5]
    mixed = Upserts.join([parts[1], first, other, parts[0]])
    assert list(mixed) == [*list(whole)[2:5], *other, *list(whole)[:2]]
    assert list(mixed.take([4, 0])) == [mixed[4], mixed[0]]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches)
def test_a_shard_is_the_same_whether_upserts_are_folded_together_or_one_by_one(given: list[tuple[list[Any], list[Any]]]) -> None:
    load_kernels()
    told = []
    for together_min in (1, 1_000):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            patch.setattr(shard_fold, "TOGETHER_MIN", together_min)
            told.append(lived(Path(folder), given))
    assert told[0] == told[1]


def lived(folder: Path, batches: Sequence[tuple[list[Any], list[Any]]]) -> tuple[Any, ...]:
    """Everything that a shard and its readers have after these batches, and what was counted."""
    shard = open_test_shard(folder)
    shard.start_version(HashEncoder(VERSION), {})
    results = []
    for offset, (items, new_items) in enumerate(batches):
        results.append(described(shard, shard.apply([features_record(offset, *items)])))
        if new_items:
            embedded = sum(bool(earlier) for _, earlier in batches[:offset])
            results.append(described(shard, shard.apply([new_items_record(embedded, *new_items)])))
    held = everything(shard)
    shard.close()
    return held, results


def described(shard: Shard, result: BatchResult) -> tuple[Any, ...]:
    layout = HashEncoder(VERSION).layout
    deltas = [decode_delta({VERSION: layout}, entry.value or b"") for entry in result.outbox if entry.topic == INDEX_DELTAS]
    return result.counts, dict(result.work), [(delta.header, sorted(delta.changes)) for delta in deltas]


def first(offset: int, version: int, stock: int) -> SourceRecord:
    return features_record(offset, *(upsert(item, version, brand="x", stock=stock) for item in ITEMS[:TOGETHER_MIN]))


def test_a_row_that_another_state_made_is_encoded_and_a_torn_one_is_named(tmp_path: Path) -> None:
    shard, encoder = open_test_shard(tmp_path), HashEncoder(VERSION)
    shard.start_version(encoder, {})
    shard.apply([first(0, 1, 1)])
    assert (encoder.encoded, encoder.rewritten) == (TOGETHER_MIN, 0)
    shard.apply([first(1, 2, 2)])
    assert (encoder.encoded, encoder.rewritten) == (TOGETHER_MIN, TOGETHER_MIN)
    rows = list(shard.database.scan(INCREMENTS, increment_prefix(VERSION)))
    batch = shard.database.new_batch()
    batch.put(INCREMENTS, rows[0][0], rows[0][1][:28] + b"\0" * 8 + rows[0][1][36:])  # another input hash
    batch.delete(INCREMENTS, rows[1][0])
    shard.database.write(batch)
    shard.apply([first(2, 3, 3)])
    assert (encoder.encoded, encoder.rewritten) == (TOGETHER_MIN + 2, 2 * TOGETHER_MIN - 2)
    batch = shard.database.new_batch()
    batch.put(INCREMENTS, rows[0][0], rows[0][1][:-1])
    shard.database.write(batch)
    with pytest.raises(Corrupted, match="bad_increment"):
        shard.apply([first(3, 4, 4)])
    assert shard.next_offsets["item-features"] == 3
    shard.close()
