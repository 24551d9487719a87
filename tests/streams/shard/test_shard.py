"""A shard over real RocksDB: one WriteBatch a micro-batch, exact counts, restarts, bounds, checkpoints."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from infra.kafka.dead_letters import decode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Database
from schemas.errors import Incompatible
from schemas.ids import encode_index_key, partition_of
from schemas.index.layout import decode_increment
from schemas.limits import UPDATES_PER_RECORD_MAX, WRITE_BATCH_UPDATES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, ITEM_FEATURES, NEW_ITEMS
from streams.core.shard_state import TopicCounts
from streams.shard.batch_result import BatchResult
from streams.shard.outbox import OUTBOX, OutboxEntry
from streams.shard.shard import Shard, open_shard
from streams.shard.shard_reader import open_shard_reader
from tests.streams.shard_world import (
    INIT,
    ITEMS,
    HashEncoder,
    ManualClock,
    delete,
    embed,
    everything,
    features_record,
    new_items_record,
    open_test_shard,
    row_of,
    rows_of,
    upsert,
)

A, B, C = ITEMS[:3]


def test_components_counters_and_next_offsets_survive_a_restart(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.apply([features_record(0, upsert(A, 1, brand="x")), new_items_record(0, embed(A, 1, 2, 3, 4)), features_record(1, delete(B, 4))])
    before = everything(shard)
    shard.close()
    again = open_test_shard(tmp_path / "s")
    assert everything(again) == before
    assert again.next_offsets == {ITEM_FEATURES: 2, NEW_ITEMS: 1}
    assert again.state.counters[ITEM_FEATURES] == TopicCounts(2, 2, 0, 0)


def test_a_key_without_value_deletes_at_the_stored_version_and_a_later_event_of_that_version_recreates(shard: Shard) -> None:
    shard.start_version(HashEncoder(0), {})
    shard.apply([features_record(0, upsert(A, 7, brand="x")), SourceRecord(ITEM_FEATURES, 0, 1, str(A).encode(), None)])
    stamp, row = row_of(shard, 0, A)
    assert row is None and stamp["dead"] == 1 and stamp["features_version"] == 7
    shard.apply([features_record(2, upsert(A, 7, brand="y"))])
    assert row_of(shard, 0, A)[1] is not None
    assert shard.state.counters[ITEM_FEATURES] == TopicCounts(3, 3, 0, 0)


def test_bad_updates_become_dead_letters_and_their_neighbours_are_applied(shard: Shard) -> None:
    stranger = next(i for i in range(100) if partition_of(i, 2) == 1)
    mixed = features_record(0, upsert(A, 1), {"op": "upsert"}, upsert(stranger, 1), upsert(B, 1))
    broken = SourceRecord(ITEM_FEATURES, 0, 1, b"k", b"{not json", (("h", None),), 5)
    huge = new_items_record(0, embed(A, 1e300))
    empty = [SourceRecord(ITEM_FEATURES, 0, 2 + n, key, None) for n, key in enumerate((None, str(stranger).encode(), b"\xff", b"anna"))]
    result = shard.apply([mixed, broken, huge, SourceRecord(NEW_ITEMS, 0, 1, b"k", None), *empty])
    assert shard.state.counters[ITEM_FEATURES] == TopicCounts(9, 2, 0, 7)
    assert shard.state.counters[NEW_ITEMS] == TopicCounts(2, 0, 0, 2)
    letters = [e for e in shard.pending_outbox(100) if e.topic.startswith(DEAD_LETTER_PREFIX)]
    found = {(s.topic, s.offset, s.index, s.code) for s in (decode_dead_letter(list(e.headers)) for e in letters)}
    assert found == {
        (ITEM_FEATURES, 0, 1, "bad_update"),
        (ITEM_FEATURES, 0, 2, "wrong_partition"),
        (ITEM_FEATURES, 1, 0, "not_json"),
        (ITEM_FEATURES, 2, 0, "empty_record"),
        (ITEM_FEATURES, 3, 0, "wrong_partition"),
        (ITEM_FEATURES, 4, 0, "bad_id"),
        (ITEM_FEATURES, 5, 0, "bad_id"),
        (NEW_ITEMS, 0, 0, "bad_update"),
        (NEW_ITEMS, 1, 0, "empty_record"),
    }
    whole = next(e for e in letters if e.key == b"k" and e.topic.endswith(ITEM_FEATURES))
    assert whole.value == b"{not json" and ("h", None) in whole.headers
    assert sum(result.dead_letters.values()) == 9


@pytest.mark.parametrize("headers", [(("", b""),) * 70_000, (("h", b"x" * 200_000),)])
def test_a_record_with_many_or_large_headers_stops_nothing_and_takes_little_room(
    shard: Shard, headers: Sequence[tuple[str, bytes]]
) -> None:
    """Its dead letters share its value, but each has a key and headers."""
    bad = dataclasses.replace(features_record(0, *[{"op": "?"}] * UPDATES_PER_RECORD_MAX), headers=tuple(headers))
    shard.apply([bad, dataclasses.replace(features_record(1, upsert(A, 1)), key=b"k" * 200_000)])
    letters = [e for e in shard.pending_outbox(1_000) if e.topic.startswith(DEAD_LETTER_PREFIX)]
    assert len(letters) == UPDATES_PER_RECORD_MAX and {e.value for e in letters} == {bad.value}
    assert sum(len(raw) for _, raw in shard.database.scan(OUTBOX)) < 1 << 20
    assert shard.state.counters[ITEM_FEATURES] == TopicCounts(257, 1, 0, 256)


def test_an_embedding_alone_is_stored_and_makes_no_row(shard: Shard) -> None:
    shard.start_version(HashEncoder(0), {})
    shard.apply([new_items_record(0, embed(A, 1, 2, 3, 4))])
    assert rows_of(shard, 0) == {}
    shard.apply([features_record(0, upsert(A, 1, brand="x"))])
    assert row_of(shard, 0, A)[1]["has_signature"] == 1


def test_duplicates_are_dropped_and_a_hole_is_refused_before_anything_is_written(shard: Shard) -> None:
    log = [features_record(i, upsert(A, i)) for i in range(4)]
    shard.apply(log[:3])
    before = everything(shard)
    assert sum(counts.consumed for counts in shard.apply(log[:3]).counts.values()) == 0
    with pytest.raises(Incompatible, match="offset_gap"):
        shard.apply([log[3], features_record(5, upsert(A, 9))])
    assert everything(shard) == before


def test_a_batch_larger_than_the_bound_is_cut_and_one_kill_between_the_cuts_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [features_record(i, *(upsert(item, i) for item in ITEMS[:80])) for i in range(40)]
    sizes = []
    write = Database.write
    monkeypatch.setattr(Database, "write", lambda self, batch, sync=False: (sizes.append(len(batch)), write(self, batch, sync))[1])
    shard = open_test_shard(tmp_path / "s", clock := ManualClock())
    told: list[tuple[int, list[OutboxEntry]]] = []

    def take(entries: Sequence[OutboxEntry]) -> None:
        told.append((len(sizes), list(entries)))
        clock.seconds += 1  # so that the next batch has a watermark too

    result = shard.apply(records, take)
    assert shard.state.counters[ITEM_FEATURES] == TopicCounts(3200, 3200, 0, 0)
    assert len(sizes) == 1 + 2 and WRITE_BATCH_UPDATES_MAX == 2_000  # identity, then 25 + 15 records
    assert [written for written, _ in told] == [2, 3], "what a batch owes is handed over before the next is written"
    assert [entry for _, entries in told for entry in entries] == result.outbox


def test_a_stage_of_several_cuts_lasts_as_long_as_all_of_them() -> None:
    result = BatchResult(at_s=5.0)
    for stage, now_s in (("fold", 6.0), ("rows", 8.0), ("fold", 12.0)):
        result.lap(stage, now_s)
    assert result.stage_s == {"fold": 5.0, "rows": 2.0}


def test_a_directory_of_another_shard_or_index_is_refused(tmp_path: Path) -> None:
    open_test_shard(tmp_path / "s").close()
    with pytest.raises(Incompatible, match="other_shard"):
        open_shard(tmp_path / "s", 1, INIT, ManualClock())
    open_shard(tmp_path / "s", 0, INIT, ManualClock()).close()  # the refused open has let go of it


def test_a_checkpoint_is_one_moment_and_gives_live_items_in_key_order(shard: Shard, tmp_path: Path) -> None:
    shard.start_version(HashEncoder(2), {})
    shard.apply([features_record(0, upsert(B, 1, brand="b"), upsert(A, 1, brand="a"), upsert(C, 1), delete(C, 2))])
    shard.apply([new_items_record(0, embed(A, 1, 0, 0, 0), embed(ITEMS[9], 2, 0, 0, 0))])
    shard.create_checkpoint(tmp_path / "c")
    shard.apply([features_record(1, upsert(A, 2, brand="later"))])
    with open_shard_reader(tmp_path / "c") as reader:
        (block,) = reader.scan_blocks()
        assert block.keys == sorted(encode_index_key(i) for i in (A, B))
        at_a, at_b = (block.keys.index(encode_index_key(i)) for i in (A, B))
        assert block.features[at_a] == {"brand": "a"} and block.features[at_b] == {"brand": "b"}
        assert np.frombuffer(block.embeddings[at_a] or b"", "<f4").tolist() == [1, 0, 0, 0] and block.embeddings[at_b] is None
        assert reader.next_offsets == {ITEM_FEATURES: 1, NEW_ITEMS: 1} and set(reader.versions) == {2}
        increments = dict(reader.scan_increments(2))
        assert set(increments) == {encode_index_key(i) for i in (A, B, C)}
        stamp, _ = decode_increment(HashEncoder(2).layout, increments[encode_index_key(A)])
        assert stamp.tobytes() == block.stamps_R[at_a].tobytes()
        assert [key for b in reader.scan_blocks(encode_index_key(B)) for key in b.keys] == block.keys[at_b:]
