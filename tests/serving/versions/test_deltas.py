"""What a server makes of records of index-deltas that do not read, or that no shard wrote."""

from infra.processes import wait_until
from schemas.ids import encode_index_key
from schemas.index.layout import (
    Column,
    DeltaHeader,
    RowBlock,
    RowLayout,
    encode_block,
    encode_delta,
    encode_increment,
    row_layout,
    stack_increments,
)
from tests.serving.engine.samples import Version
from tests.serving.versions.deployment import WAIT_S, Deployment, changes, with_bids


def foreign_delta(version: Version, shard: int, changes: tuple[tuple[bytes, bytes], ...] = (), number: int = 1, sequence: int = 0) -> bytes:
    layout = row_layout(version.spec)
    block = encode_block(layout, stack_increments(layout, changes)) if changes else b""
    return encode_delta(DeltaHeader(number, shard, sequence, (99, 99), 5), block)


def flipped(raw: bytes) -> bytes:
    return raw[:10] + bytes([raw[10] ^ 1]) + raw[11:]


def test_records_of_index_deltas_that_no_shard_wrote_there_are_counted_and_passed_over(deployment: Deployment) -> None:
    """One such record kept every change behind it from the answers of all servers until the next revision, a day later."""
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    strangers = [b"", b"not a delta", bytes(200), flipped(foreign_delta(d.version, shard=0)), foreign_delta(d.version, shard=1)]
    for stranger in (*strangers, foreign_delta(d.version, shard=0, number=2)):  # the last one is another version's, and no stranger
        d.deltas.write_raw(0, stranger)
    newer = with_bids(d.version, list(range(10)), 60.0)
    d.deltas.write(newer, 1, changes(newer, list(range(10)), 2))
    wait_until(lambda: all(w["item-features"] == 10 for w in d.engine.status().residents[0].watermark), WAIT_S, f"{d.follower.last_error}")
    d.assert_serves(newer, 1)
    assert (d.follower.counters["strangers"], d.follower.counters["loads"], d.follower.last_error) == (len(strangers), 1, "")


def test_a_damaged_delta_of_the_shards_own_is_an_error_and_no_watermark_includes_it(deployment: Deployment) -> None:
    """Its sequence is missing in the next one. A bad copy next to the good one leaves none out."""
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    one, two, three = (foreign_delta(d.version, shard=0, sequence=sequence) for sequence in (4, 5, 6))
    for record in (one, flipped(two), two):
        d.deltas.write_raw(0, record)
    wait_until(lambda: d.engine.status().residents[0].watermark[0]["index-deltas"] == 3, WAIT_S, "the copy to be passed over")
    for record in (flipped(three), foreign_delta(d.version, shard=0, sequence=7)):
        d.deltas.write_raw(0, record)
    d.wait_error("delta_lost")
    assert d.engine.status().residents[0].watermark[0]["index-deltas"] == 3
    assert "`aif index revise 1`" in d.follower.behind
    d.publish(1, d.version, revision=1, positions=(5, 0))  # what the command brings about
    wait_until(lambda: not d.follower.behind and not d.follower.last_error, WAIT_S, "the next revision")


def test_a_copy_of_an_earlier_delta_and_a_stranger_leave_none_out(deployment: Deployment) -> None:
    """Frozen owners of a shard and mirrors of topics send such copies. The shard's next delta follows the one before the copy."""
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    one, two, three, four, six = (foreign_delta(d.version, shard=0, sequence=sequence) for sequence in (4, 5, 6, 7, 9))
    for record in (one, two, three, one, b"not a delta", four):
        d.deltas.write_raw(0, record)
    wait_until(lambda: d.engine.status().residents[0].watermark[0]["index-deltas"] == 6, WAIT_S, f"{d.follower.last_error}")
    assert (d.follower.last_error, d.follower.behind) == ("", "")
    for record in (one, b"not a delta", six):
        d.deltas.write_raw(0, record)
    d.wait_error("delta_lost")
    assert d.engine.status().residents[0].watermark[0]["index-deltas"] == 7


def test_a_server_that_starts_on_a_damaged_delta_serves_what_came_before_it_and_says_so(deployment: Deployment) -> None:
    d = deployment
    d.publish(1, d.version)
    for sequence, damage in ((4, False), (5, True), (6, False)):
        record = foreign_delta(d.version, shard=0, sequence=sequence)
        d.deltas.write_raw(0, flipped(record) if damage else record)
    d.follower.start()
    d.wait_live(1)
    d.assert_serves(d.version, 1)
    wait_until(lambda: "delta_lost" in d.follower.behind, WAIT_S, "the reason")
    d.publish(2, d.version, positions=(3, 0))
    d.wait_live(2)
    assert d.follower.behind == ""


def test_a_damaged_delta_that_is_the_first_one_of_a_version_is_an_error(deployment: Deployment) -> None:
    """The version begins after the record with sequence 4, which shows that 5 is missing. A foreign record there leaves none out."""
    d = deployment
    for sequence, damage in ((3, False), (4, False), (5, True), (6, False)):
        record = foreign_delta(d.version, shard=0, sequence=sequence)
        d.deltas.write_raw(0, flipped(record) if damage else record)
    d.publish(1, d.version, positions=(2, 0))
    d.follower.start()
    wait_until(lambda: "delta_lost" in d.follower.behind, WAIT_S, "the reason")
    assert d.engine.status().residents[0].watermark[0]["index-deltas"] == 2
    d.deltas.write_raw(0, b"not a delta")
    d.deltas.write_raw(0, foreign_delta(d.version, shard=0, number=2, sequence=7))
    d.publish(2, d.version, positions=(4, 0))
    d.wait_live(2)
    second = next(report for report in d.engine.status().residents if report.token.version == 2)
    assert second.watermark[0]["index-deltas"] == 6 and d.follower.behind == ""


def test_a_record_with_a_right_checksum_and_wrong_rows_is_counted_and_passed_over(deployment: Deployment) -> None:
    """A decode of one that took its keys for ids gave more ids than rows, and compiled code read past its arrays."""
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    [(item, stamp, row)] = changes(with_bids(d.version, [3], 60.0), [3], 9)
    key, value = encode_index_key(item), encode_increment(stamp, row)
    layout, wider = row_layout(d.version.spec), RowLayout((Column("vector", "u1", 50),), d.version.spec.schema.id_kind)
    good = stack_increments(layout, [(key, value)])
    flagged = good.stamps.copy()
    flagged["dead"] = 7
    forged = [
        encode_block(wider, stack_increments(wider, [(key, value[:37] + bytes(50))])),
        *(encode_block(layout, RowBlock([wrong], good.stamps, good.rows)) for wrong in (b"", key + key)),
        encode_block(layout, RowBlock([key], flagged, good.rows)),
    ]
    for sequence, block in enumerate(forged):
        d.deltas.write_raw(0, encode_delta(DeltaHeader(1, 0, sequence, (99, 99), 5), block))
    wait_until(lambda: d.follower.counters["strangers"] == len(forged), WAIT_S, f"{d.follower.last_error}")
    d.assert_serves(d.version, 1)
    newer = with_bids(d.version, list(range(10)), 60.0)
    d.deltas.write(newer, 1, changes(newer, list(range(10)), 2))
    wait_until(lambda: all(w["item-features"] == 10 for w in d.engine.status().residents[0].watermark), WAIT_S, f"{d.follower.last_error}")
    d.assert_serves(newer, 1)
    assert (d.follower.counters["strangers"], d.follower.counters["loads"], d.follower.last_error) == (len(forged), 1, "")
