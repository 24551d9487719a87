"""The versions of a shard: rows of each, rows that are made again, starting, stopping, behind, and stamps that only ever advance."""

import itertools
from pathlib import Path

import pytest

from schemas.errors import Incompatible, Unavailable
from schemas.ids import encode_index_key
from schemas.index.layout import decode_delta
from schemas.index.manifest import Part, PartFile
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS
from streams.shard.shard import Shard, open_shard
from tests.schemas.index.stamp_rule import is_newer
from tests.streams.shard_world import (
    INIT,
    ITEMS,
    HashEncoder,
    ManualClock,
    delete,
    embed,
    features_record,
    new_items_record,
    row_of,
    rows_of,
    upsert,
)

A, B, C = ITEMS[:3]


def test_every_version_receives_rows_and_deltas_in_shard_order(shard: Shard) -> None:
    shard.start_version(HashEncoder(3), {})
    shard.start_version(HashEncoder(8), {})
    result = shard.apply([features_record(0, upsert(A, 1, brand="x"), upsert(B, 1, brand="y"))])
    assert set(rows_of(shard, 3)) == set(rows_of(shard, 8)) == {encode_index_key(A), encode_index_key(B)}
    layouts = {v: HashEncoder(v).layout for v in (3, 8)}
    deltas = [decode_delta(layouts, e.value) for e in result.outbox if e.topic == INDEX_DELTAS]
    assert [(d.header.version, len(d.changes), d.header.sequence) for d in deltas] == [(3, 2, 0), (8, 2, 1), (3, 0, 2), (8, 0, 3)]
    assert dict(deltas[0].changes) == rows_of(shard, 3) and dict(deltas[1].changes) == rows_of(shard, 8)
    assert {d.header.next_offsets for d in deltas} == {(1, 0)}
    assert all(e.partition == 0 for e in result.outbox)


def test_only_what_is_stale_is_recomputed_and_skipped_work_is_counted(shard: Shard) -> None:
    encoder = HashEncoder(0)
    shard.start_version(encoder, {})
    shard.apply([features_record(0, upsert(A, 1, brand="x", price=2.0, stock=1)), new_items_record(0, embed(A, 1, 2, 3, 4))])
    assert (encoder.encoded, encoder.rewritten) == (1, 0)
    identical = shard.apply([features_record(1, upsert(A, 2, stock=1, price=2.0, brand="x"))])
    assert dict(identical.work) == {"skipped_identical": 1} and (encoder.encoded, encoder.rewritten) == (1, 0)
    first = row_of(shard, 0, A)[1].copy()
    shard.apply([features_record(2, upsert(A, 3, brand="x", price=9.0, stock=5))])
    assert (encoder.encoded, encoder.rewritten) == (1, 1)
    stamp, row = row_of(shard, 0, A)
    assert row["bid"] == 9.0 and row["realtime"] == 5.0 and stamp["features_version"] == 3
    assert row["vector"].tobytes() == first["vector"].tobytes() and row["signature"].tobytes() == first["signature"].tobytes()
    shard.apply([new_items_record(1, embed(A, 4, 3, 2, 1))])
    assert (encoder.encoded, encoder.rewritten) == (1, 2)
    assert row_of(shard, 0, A)[1]["signature"].tobytes() != first["signature"].tobytes()
    shard.apply([features_record(3, upsert(A, 4, brand="z", price=9.0, stock=5))])
    assert (encoder.encoded, encoder.rewritten) == (2, 2)


def test_a_change_that_is_undone_within_one_batch_is_sent_again(shard: Shard) -> None:
    """An earlier life of this shard may have sent the middle state to readers before its last writes were lost."""
    shard.start_version(HashEncoder(0), {})
    shard.apply([features_record(0, upsert(A, 1, price=1.0))])
    shard.apply([features_record(1, upsert(A, 2, price=5.0)), features_record(2, upsert(A, 3, price=1.0))])
    stamp, _ = row_of(shard, 0, A)
    assert stamp["features_version"] == 3


def test_a_version_starts_with_increments_of_what_comes_after_it(shard: Shard) -> None:
    shard.apply([features_record(0, upsert(A, 1))])
    started = shard.start_version(HashEncoder(4), {ITEM_FEATURES: 9, NEW_ITEMS: 0})
    assert started.building_from_offsets == {ITEM_FEATURES: 1, NEW_ITEMS: 0} and started.want_end_offsets[ITEM_FEATURES] == 9
    shard.apply([features_record(1, upsert(B, 1))])
    assert set(rows_of(shard, 4)) == {encode_index_key(B)}


def test_versions_and_their_fields_survive_a_restart_and_nothing_is_applied_without_their_encoder(shard: Shard, tmp_path: Path) -> None:
    shard.start_version(HashEncoder(4), {ITEM_FEATURES: 0, NEW_ITEMS: 0})
    shard.update_version(4, full=Part("versions/4/full/00000-x", (PartFile("a.sst", 3, "0" * 64),), 1), sealed_revision=2)
    before = shard.versions
    shard.close()
    again = open_shard(tmp_path / "s", 0, INIT, ManualClock())
    assert again.versions == before and [v.version for v in again.needs_encoders()] == [4]
    with pytest.raises(Unavailable, match="encoder_missing"):
        again.apply([features_record(0, upsert(A, 1))])
    with pytest.raises(Incompatible, match="other_encoder"):
        again.attach_encoder(HashEncoder(4, fingerprint="another machine"))
    again.attach_encoder(HashEncoder(4))
    again.apply([features_record(0, upsert(A, 1))])
    assert len(rows_of(again, 4)) == 1


def test_a_version_that_is_behind_takes_components_and_no_rows(shard: Shard) -> None:
    shard.start_behind(4, HashEncoder(4).checkpoint_sha256, HashEncoder(4).fingerprint, {})
    shard.apply([features_record(0, upsert(A, 1))])
    assert rows_of(shard, 4) == {} and shard.needs_encoders() == [] and shard.next_offsets[ITEM_FEATURES] == 1


def test_a_stopped_version_leaves_nothing_and_can_start_anew(shard: Shard) -> None:
    shard.start_version(HashEncoder(4), {})
    shard.start_version(HashEncoder(5), {})
    shard.apply([features_record(0, upsert(A, 1))])
    shard.stop_version(4)
    assert rows_of(shard, 4) == {} and len(rows_of(shard, 5)) == 1 and set(shard.versions) == {5}
    shard.start_version(HashEncoder(4), {})
    assert rows_of(shard, 4) == {}


def test_stamps_of_rows_only_ever_advance(shard: Shard) -> None:
    shard.start_version(HashEncoder(0), {})
    seen = []
    events = [upsert(A, 1, brand="a"), upsert(A, 2, brand="b"), delete(A, 3), upsert(A, 4, brand="c")]
    for i, event in enumerate(events):
        shard.apply([features_record(i, event)])
        seen.append(row_of(shard, 0, A)[0])
        shard.apply([new_items_record(i, embed(A, i, 0, 0, 1))])
        seen.append(row_of(shard, 0, A)[0])
    assert all(is_newer(b, a) or b == a for a, b in itertools.pairwise(seen))


def test_a_row_from_other_inputs_is_never_the_base_of_a_rewrite(shard: Shard) -> None:
    """A version that was behind has rows of components as they once were: only their input hash says so."""
    encoder = HashEncoder(4)
    shard.start_version(encoder, {})
    shard.apply([features_record(0, upsert(A, 1, brand="x", price=1.0))])
    shard.update_version(4, behind=True)
    shard.apply([features_record(1, upsert(A, 2, brand="y", price=1.0))])
    shard.update_version(4, behind=False)
    shard.attach_encoder(encoder)
    shard.apply([features_record(2, upsert(A, 3, brand="y", price=2.0))])
    assert (encoder.encoded, encoder.rewritten) == (2, 0)
    _, row = row_of(shard, 4, A)
    assert row.tobytes() == HashEncoder(4).encode([{"brand": "y", "price": 2.0}], [None])[0].tobytes()
