"""What a shard has for others: dead letters, deltas and watermarks wait in its outbox until they are confirmed."""

from pathlib import Path

import pytest

from schemas.errors import Unavailable
from schemas.index.layout import decode_delta, plan_delta_cuts
from streams.shard.shard import Shard
from tests.streams.shard_world import (
    ITEMS,
    HashEncoder,
    ManualClock,
    features_record,
    open_test_shard,
    upsert,
)

A, B, C = ITEMS[:3]


def test_dead_letters_of_one_record_share_its_bytes_until_the_last_is_confirmed(tmp_path: Path) -> None:
    """256 rejected updates of a record of 4 MiB are not a write of 1 GiB."""
    shard = open_test_shard(tmp_path / "s")
    record = features_record(0, *({"op": "upsert", "note": "x" * 4_000} for _ in range(256)))
    result = shard.apply([record, features_record(1, {"op": "?"}), features_record(2, {"op": "!"})])
    stored = sum(len(value) for _, value in shard.database.scan("outbox"))
    assert stored < 1.3 * len(record.value or b"") and len(result.outbox) == 259
    assert [e.value for e in shard.pending_outbox(1_000)] == [e.value for e in result.outbox]
    shard.confirm_outbox(254)
    shard.close()
    again = open_test_shard(tmp_path / "s")
    left = again.pending_outbox(1_000)
    assert left == result.outbox[255:] and left[0].value == record.value


def test_a_page_of_the_outbox_is_bounded_in_bytes(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.shard.outbox.OUTBOX_PAGE_BYTES", 10_000)
    shard.apply([features_record(i, {"op": "upsert", "note": "x" * 4_000}) for i in range(9)])
    pages, after = [], -1
    while page := shard.pending_outbox(100, after):
        pages.append(len(page))
        after = page[-1].sequence
    assert max(pages) == 3 and sum(pages) == 10


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
    assert shard.write_due() == []
    clock.seconds += 1
    (last,) = shard.write_due()
    assert decode_delta({}, last.value).header.next_offsets == (10, 0)
    clock.seconds += 1
    assert shard.write_due() == [], "nothing is told twice"


def test_a_watermark_whose_write_failed_is_due_again_after_the_database_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    shard = open_test_shard(tmp_path / "s", clock)
    record = features_record(0, upsert(A, 0))

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("disk_full", "the disk is full")

    with monkeypatch.context() as full:
        full.setattr(shard.database, "write", fail)
        with pytest.raises(Unavailable):
            shard.apply([record])
    shard.recover()
    told = [*shard.apply([record]).outbox, *shard.write_due()]
    assert [decode_delta({}, one.value or b"").header.next_offsets for one in told] == [(1, 0)]


def test_large_changes_are_cut_into_delta_records_and_only_the_last_claims_the_offsets(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.shard.shard.plan_delta_cuts", lambda layout, keys: plan_delta_cuts(layout, keys, 1_500))
    shard.start_version(HashEncoder(0), {})
    result = shard.apply([features_record(0, *(upsert(item, 1) for item in ITEMS[:20]))])
    headers = [decode_delta({}, e.value).header for e in result.outbox]
    assert len(headers) > 3 and [h.sequence for h in headers] == list(range(len(headers)))
    assert {h.next_offsets for h in headers[:-2]} == {(0, 0)} and {h.next_offsets for h in headers[-2:]} == {(1, 0)}
