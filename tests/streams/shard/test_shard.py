"""A shard over real RocksDB: one WriteBatch a micro-batch, exact counts, rows of every version, outbox, versions, restarts."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from infra.kafka.dead_letters import decode_dead_letter
from infra.kafka.reader import SourceRecord
from infra.rocks import Database
from schemas.errors import Incompatible, Unavailable
from schemas.ids import encode_index_key, partition_of
from schemas.index.layout import ORDER, decode_delta, decode_increment, is_newer, plan_delta_cuts
from schemas.index.manifest import Part, PartFile
from schemas.limits import WRITE_BATCH_UPDATES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS
from streams.core.outbox import OutboxEntry
from streams.core.shard_state import TopicCounts
from streams.shard.reader import open_shard_reader
from streams.shard.shard import Shard, open_shard
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
    rows_of,
    upsert,
)

A, B, C = ITEMS[:3]


def row_of(shard: Shard, version: int, item: int) -> tuple[np.ndarray, np.ndarray | None] | None:
    value = rows_of(shard, version).get(encode_index_key(item))
    return None if value is None else decode_increment(HashEncoder(version).layout, value)


def test_components_counters_and_next_offsets_survive_a_restart(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.apply([features_record(0, upsert(A, 1, brand="x")), new_items_record(0, embed(A, 1, 2, 3, 4)), features_record(1, delete(B, 4))])
    before = everything(shard)
    shard.close()
    again = open_test_shard(tmp_path / "s")
    assert everything(again) == before
    assert again.next_offsets == {ITEM_FEATURES: 2, NEW_ITEMS: 1}
    assert again.counters[ITEM_FEATURES] == TopicCounts(2, 2, 0, 0)


def test_a_lower_event_version_is_superseded_and_a_higher_offset_of_the_same_version_wins(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.apply(
        [features_record(0, upsert(A, 5, brand="five"), upsert(A, 4, brand="four")), features_record(1, upsert(A, 5, brand="again"))]
    )
    assert shard.counters[ITEM_FEATURES] == TopicCounts(3, 2, 1, 0)
    shard.create_checkpoint(tmp_path / "c")
    with open_shard_reader(tmp_path / "c") as reader:
        (item,) = reader.scan_items()
    assert item.raw_features == {"brand": "again"}
    (order,) = np.frombuffer(item.order, ORDER)
    assert (order["features_version"], order["features_offset"], order["features_index"]) == (5, 1, 0)


def test_a_key_without_value_deletes_at_the_stored_version_and_a_later_event_of_that_version_recreates(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    shard.apply([features_record(0, upsert(A, 7, brand="x")), SourceRecord(ITEM_FEATURES, 0, 1, str(A).encode(), None)])
    order, row = row_of(shard, 0, A)
    assert row is None and order["dead"] == 1 and order["features_version"] == 7
    shard.apply([features_record(2, upsert(A, 7, brand="y"))])
    assert row_of(shard, 0, A)[1] is not None
    assert shard.counters[ITEM_FEATURES] == TopicCounts(3, 3, 0, 0)


def test_bad_updates_become_dead_letters_and_their_neighbours_are_applied(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    stranger = next(i for i in range(100) if partition_of(i, 2) == 1)
    mixed = features_record(0, upsert(A, 1), {"op": "upsert"}, upsert(stranger, 1), upsert(B, 1))
    broken = SourceRecord(ITEM_FEATURES, 0, 1, b"k", b"{not json", (("h", None),), 5)
    huge = new_items_record(0, embed(A, 1e300))
    result = shard.apply([mixed, broken, huge, SourceRecord(NEW_ITEMS, 0, 1, b"k", None), SourceRecord(ITEM_FEATURES, 0, 2, None, None)])
    assert shard.counters[ITEM_FEATURES] == TopicCounts(6, 2, 0, 4)
    assert shard.counters[NEW_ITEMS] == TopicCounts(2, 0, 0, 2)
    letters = [e for e in shard.pending_outbox(100) if e.topic.startswith(DEAD_LETTER_PREFIX)]
    found = {(s.topic, s.offset, s.index, s.code) for s in (decode_dead_letter(list(e.headers)) for e in letters)}
    assert found == {
        (ITEM_FEATURES, 0, 1, "bad_update"),
        (ITEM_FEATURES, 0, 2, "wrong_partition"),
        (ITEM_FEATURES, 1, 0, "not_json"),
        (ITEM_FEATURES, 2, 0, "empty_record"),
        (NEW_ITEMS, 0, 0, "embedding_not_float32"),
        (NEW_ITEMS, 1, 0, "empty_record"),
    }
    whole = next(e for e in letters if e.key == b"k" and e.topic.endswith(ITEM_FEATURES))
    assert whole.value == b"{not json" and ("h", None) in whole.headers
    assert sum(result.dead_letters.values()) == 6


def test_dead_letters_of_one_record_share_its_bytes_until_the_last_is_confirmed(tmp_path: Path) -> None:
    """256 rejected updates of a record of 4 MiB are not a write of 1 GiB."""
    shard = open_test_shard(tmp_path / "s")
    record = features_record(0, *({"op": "upsert", "note": "x" * 4_000} for _ in range(256)))
    result = shard.apply([record, features_record(1, {"op": "?"}), features_record(2, {"op": "!"})])
    stored = sum(len(value) for _, value in shard._database.scan("outbox"))
    assert stored < 1.3 * len(record.value or b"") and len(result.outbox) == 259
    assert [e.value for e in shard.pending_outbox(1_000)] == [e.value for e in result.outbox]
    shard.confirm_outbox(254)
    shard.close()
    again = open_test_shard(tmp_path / "s")
    left = again.pending_outbox(1_000)
    assert left == result.outbox[255:] and left[0].value == record.value


def test_a_page_of_the_outbox_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.shard.outbox.OUTBOX_PAGE_BYTES", 10_000)
    shard = open_test_shard(tmp_path / "s")
    shard.apply([features_record(i, {"op": "upsert", "note": "x" * 4_000}) for i in range(9)])
    pages, after = [], -1
    while page := shard.pending_outbox(100, after):
        pages.append(len(page))
        after = page[-1].sequence
    assert max(pages) == 3 and sum(pages) == 10


def test_an_embedding_alone_is_stored_and_makes_no_row(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    shard.apply([new_items_record(0, embed(A, 1, 2, 3, 4))])
    assert rows_of(shard, 0) == {}
    shard.apply([features_record(0, upsert(A, 1, brand="x"))])
    assert row_of(shard, 0, A)[1]["has_signature"] == 1


def test_every_version_receives_rows_and_deltas_in_shard_order(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
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


def test_only_what_is_stale_is_recomputed_and_skipped_work_is_counted(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    encoder = HashEncoder(0)
    shard.start_version(encoder, {})
    shard.apply([features_record(0, upsert(A, 1, brand="x", price=2.0, stock=1)), new_items_record(0, embed(A, 1, 2, 3, 4))])
    assert (encoder.encoded, encoder.rewritten) == (1, 0)
    identical = shard.apply([features_record(1, upsert(A, 2, stock=1, price=2.0, brand="x"))])
    assert dict(identical.work) == {"skipped_identical": 1} and (encoder.encoded, encoder.rewritten) == (1, 0)
    first = row_of(shard, 0, A)[1].copy()
    shard.apply([features_record(2, upsert(A, 3, brand="x", price=9.0, stock=5))])
    assert (encoder.encoded, encoder.rewritten) == (1, 1)
    order, row = row_of(shard, 0, A)
    assert row["bid"] == 9.0 and row["realtime"] == 5.0 and order["features_version"] == 3
    assert row["vector"].tobytes() == first["vector"].tobytes() and row["signature"].tobytes() == first["signature"].tobytes()
    shard.apply([new_items_record(1, embed(A, 4, 3, 2, 1))])
    assert (encoder.encoded, encoder.rewritten) == (1, 2)
    assert row_of(shard, 0, A)[1]["signature"].tobytes() != first["signature"].tobytes()
    shard.apply([features_record(3, upsert(A, 4, brand="z", price=9.0, stock=5))])
    assert (encoder.encoded, encoder.rewritten) == (2, 2)


def test_a_rewritten_row_has_the_bits_of_an_encoded_one(tmp_path: Path) -> None:
    log = [features_record(0, upsert(A, 1, brand="x", price=2.0, stock=1)), features_record(1, upsert(A, 2, brand="x", price=3.0, stock=2))]
    stepwise, at_once = open_test_shard(tmp_path / "a"), open_test_shard(tmp_path / "b")
    for shard in (stepwise, at_once):
        shard.start_version(HashEncoder(0), {})
    for record in log:
        stepwise.apply([record])
    at_once.apply(log)
    assert rows_of(stepwise, 0) == rows_of(at_once, 0)


def test_a_change_that_is_undone_within_one_batch_is_sent_again(tmp_path: Path) -> None:
    """An earlier life of this shard may have sent the middle state to readers before its last writes were lost."""
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    shard.apply([features_record(0, upsert(A, 1, price=1.0))])
    shard.apply([features_record(1, upsert(A, 2, price=5.0)), features_record(2, upsert(A, 3, price=1.0))])
    order, _ = row_of(shard, 0, A)
    assert order["features_version"] == 3


def test_a_version_starts_with_increments_of_what_comes_after_it(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.apply([features_record(0, upsert(A, 1))])
    started = shard.start_version(HashEncoder(4), {ITEM_FEATURES: 9, NEW_ITEMS: 0})
    assert started.building_from_offsets == {ITEM_FEATURES: 1, NEW_ITEMS: 0} and started.want_end_offsets[ITEM_FEATURES] == 9
    shard.apply([features_record(1, upsert(B, 1))])
    assert set(rows_of(shard, 4)) == {encode_index_key(B)}


def test_versions_and_their_fields_survive_a_restart_and_nothing_is_applied_without_their_encoder(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
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


def test_a_version_that_is_behind_takes_components_and_no_rows(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(4), {}, behind=True)
    shard.apply([features_record(0, upsert(A, 1))])
    assert rows_of(shard, 4) == {} and shard.needs_encoders() == [] and shard.next_offsets[ITEM_FEATURES] == 1


def test_a_stopped_version_leaves_nothing_and_can_start_anew(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(4), {})
    shard.start_version(HashEncoder(5), {})
    shard.apply([features_record(0, upsert(A, 1))])
    shard.stop_version(4)
    assert rows_of(shard, 4) == {} and len(rows_of(shard, 5)) == 1 and set(shard.versions) == {5}
    shard.start_version(HashEncoder(4), {})
    assert rows_of(shard, 4) == {}


def test_duplicates_are_dropped_and_a_hole_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    log = [features_record(i, upsert(A, i)) for i in range(4)]
    shard.apply(log[:3])
    before = everything(shard)
    assert shard.apply(log[:3]).updates == 0
    with pytest.raises(Incompatible, match="offset_gap"):
        shard.apply([log[3], features_record(5, upsert(A, 9))])
    assert everything(shard) == before


def test_the_outbox_keeps_what_is_not_confirmed_over_a_restart(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    for i in range(5):
        shard.apply([features_record(i, upsert(A, i, price=i + 1.0))])
    first = shard.pending_outbox(2)
    for entry in first:  # the first confirmation after opening removes what may be left of an earlier owner too
        shard.confirm_outbox(entry.sequence)
    left = shard.pending_outbox(100)
    shard.close()
    again = open_test_shard(tmp_path / "s")
    assert again.pending_outbox(100) == left and left[0].sequence == first[-1].sequence + 1
    again.apply([features_record(5, upsert(A, 9, price=50.0))])
    assert again.pending_outbox(1, after=left[-1].sequence)[0].sequence == left[-1].sequence + 1


def test_watermarks_come_at_most_ten_a_second_and_the_last_offsets_are_always_told(tmp_path: Path) -> None:
    clock = ManualClock()
    shard = open_test_shard(tmp_path / "s", clock)
    marks = []
    for i in range(10):
        marks += shard.apply([features_record(i, upsert(A, i))]).outbox
        clock.seconds += 0.03
    assert len(marks) == 3
    assert shard.watermark_due_in_s() is not None
    clock.seconds += 1
    (last,) = shard.write_watermark()
    assert decode_delta({}, last.value).header.next_offsets == (10, 0)
    assert shard.watermark_due_in_s() is None and shard.write_watermark() == []


def test_a_watermark_whose_write_failed_is_due_again_after_the_database_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    shard = open_test_shard(tmp_path / "s", clock)
    record = features_record(0, upsert(A, 0))

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("disk_full", "the disk is full")

    with monkeypatch.context() as full:
        full.setattr(shard._database, "write", fail)
        with pytest.raises(Unavailable):
            shard.apply([record])
    shard.recover()
    told = [*shard.apply([record]).outbox, *shard.write_watermark()]
    assert [decode_delta({}, one.value or b"").header.next_offsets for one in told] == [(1, 0)]


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
    assert shard.counters[ITEM_FEATURES] == TopicCounts(3200, 3200, 0, 0)
    assert len(sizes) == 1 + 2 and WRITE_BATCH_UPDATES_MAX == 2_000  # identity, then 25 + 15 records
    assert [written for written, _ in told] == [2, 3], "what a batch owes is handed over before the next is written"
    assert [entry for _, entries in told for entry in entries] == result.outbox


def test_large_changes_are_cut_into_delta_records_and_only_the_last_claims_the_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.shard.shard.plan_delta_cuts", lambda ends: plan_delta_cuts(ends, 1_500))
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    result = shard.apply([features_record(0, *(upsert(item, 1) for item in ITEMS[:20]))])
    headers = [decode_delta({}, e.value).header for e in result.outbox]
    assert len(headers) > 3 and [h.sequence for h in headers] == list(range(len(headers)))
    assert {h.next_offsets for h in headers[:-2]} == {(0, 0)} and {h.next_offsets for h in headers[-2:]} == {(1, 0)}


def test_a_directory_of_another_shard_or_index_is_refused(tmp_path: Path) -> None:
    open_test_shard(tmp_path / "s").close()
    with pytest.raises(Incompatible, match="other_shard"):
        open_shard(tmp_path / "s", 1, INIT, ManualClock())
    open_shard(tmp_path / "s", 0, INIT, ManualClock()).close()  # the refused open has let go of it


def test_a_checkpoint_is_one_moment_and_gives_live_items_in_key_order(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(2), {})
    shard.apply([features_record(0, upsert(B, 1, brand="b"), upsert(A, 1, brand="a"), upsert(C, 1), delete(C, 2))])
    shard.apply([new_items_record(0, embed(A, 1, 0, 0, 0), embed(ITEMS[9], 2, 0, 0, 0))])
    shard.create_checkpoint(tmp_path / "c")
    shard.apply([features_record(1, upsert(A, 2, brand="later"))])
    with open_shard_reader(tmp_path / "c") as reader:
        items = list(reader.scan_items())
        assert [i.key for i in items] == sorted(encode_index_key(i) for i in (A, B))
        assert {json.dumps(i.raw_features) for i in items} == {'{"brand": "a"}', '{"brand": "b"}'}
        by_key = {i.key: i for i in items}
        assert by_key[encode_index_key(A)].embedding.tolist() == [1, 0, 0, 0] and by_key[encode_index_key(B)].embedding is None
        assert reader.next_offsets == {ITEM_FEATURES: 1, NEW_ITEMS: 1} and set(reader.versions) == {2}
        increments = dict(reader.scan_increments(2))
        assert set(increments) == {encode_index_key(i) for i in (A, B, C)}
        order, _ = decode_increment(HashEncoder(2).layout, increments[encode_index_key(A)])
        assert order.tobytes() == by_key[encode_index_key(A)].order
        assert [i.key for i in reader.scan_items(encode_index_key(B))] == [i.key for i in items if i.key >= encode_index_key(B)]


def test_orders_of_rows_only_ever_advance(tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "s")
    shard.start_version(HashEncoder(0), {})
    seen = []
    events = [upsert(A, 1, brand="a"), upsert(A, 2, brand="b"), delete(A, 3), upsert(A, 4, brand="c")]
    for i, event in enumerate(events):
        shard.apply([features_record(i, event)])
        seen.append(row_of(shard, 0, A)[0])
        shard.apply([new_items_record(i, embed(A, i, 0, 0, 1))])
        seen.append(row_of(shard, 0, A)[0])
    assert all(is_newer(b, a) or b == a for a, b in itertools.pairwise(seen))


def test_a_row_from_other_inputs_is_never_the_base_of_a_rewrite(tmp_path: Path) -> None:
    """A version that was behind has rows of components as they once were: only their input hash says so."""
    shard = open_test_shard(tmp_path / "s")
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
