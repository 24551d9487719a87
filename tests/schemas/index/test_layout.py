"""Bytes of rows, blocks, increments and deltas: golden files, round trips, and a flipped byte that is never read as data."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Corrupted, Incompatible
from schemas.ids import IdKind, decode_index_key, encode_index_key
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.keys import int64_ids
from schemas.index.layout import (
    STAMP,
    Column,
    DeltaHeader,
    DeltaRecord,
    RowBlock,
    RowLayout,
    decode_block,
    decode_delta,
    decode_increment,
    decode_layout,
    encode_block,
    encode_delta,
    encode_increment,
    list_increments,
    plan_delta_cuts,
    row_layout,
    stack_increments,
)
from tests.schemas.catalogue import small_spec
from tests.schemas.index.stamp_rule import is_newer

GOLDEN = Path(__file__).parent / "golden"
KINDS = list(IdKind)


def layout(kind: IdKind):  # type: ignore[no-untyped-def]
    return row_layout(small_spec(kind))


def keys_of(kind: IdKind, rows: int) -> list[bytes]:
    return sorted(encode_index_key(i * 7 - 20 if kind is IdKind.INT64 else f"item-{'é' * (i % 4)}{i}") for i in range(rows))


def block_of(kind: IdKind, rows: int, seed: int = 0) -> RowBlock:
    """Rows of seeded bytes, stamps counting up."""
    stamps = np.zeros(rows, STAMP)
    stamps["features_version"], stamps["features_offset"], stamps["embedding_offset"] = np.arange(rows), np.arange(rows) + 5, -1
    stamps["input_hash"] = np.arange(rows) * 31
    size = layout(kind).row_bytes
    raw = (np.arange(rows * size) * 13 + seed).astype(np.uint8).tobytes()
    return RowBlock(keys_of(kind, rows), stamps, np.frombuffer(raw, layout(kind).dtype))


HEADER = DeltaHeader(17, 1, 99, (12, 34), 1_700_000_000_000)


def changed_rows(kind: IdKind) -> RowBlock:
    """Three rows, the second one deleted."""
    block = block_of(kind, 3)
    stamps, rows = block.stamps.copy(), block.rows.copy()
    stamps["dead"][1], rows[1] = 1, np.zeros((), rows.dtype)
    return RowBlock(block.keys, stamps, rows)


def delta_of(kind: IdKind) -> bytes:
    return encode_delta(HEADER, encode_block(layout(kind), changed_rows(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_those_of_format_2(kind: IdKind) -> None:
    """Golden files: made once by this code, kept as they are. A difference means a new format number, not new files."""
    made = {"block": encode_block(layout(kind), block_of(kind, 5)), "delta": delta_of(kind)}
    for name, raw in made.items():
        assert raw == (GOLDEN / f"{name}.{kind}.2.bin").read_bytes(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 256])
def test_a_block_survives_its_encoding(kind: IdKind, rows: int) -> None:
    block = block_of(kind, rows)
    again = decode_block(layout(kind), encode_block(layout(kind), block))
    assert again.keys == block.keys and again.rows.tobytes() == block.rows.tobytes() and again.stamps.tobytes() == block.stamps.tobytes()
    if kind is IdKind.INT64:
        assert int64_ids(again.keys).tolist() == [decode_index_key(key, kind) for key in again.keys]


@pytest.mark.parametrize("kind", KINDS)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_data(kind: IdKind, position: int, bit: int) -> None:
    for raw, decode in (
        (encode_block(layout(kind), block_of(kind, 5)), lambda b: decode_block(layout(kind), b)),
        (delta_of(kind), lambda b: decode_delta({17: layout(kind)}, b)),
    ):
        damaged = bytearray(raw)
        damaged[position % len(raw)] ^= 1 << bit
        with pytest.raises(Corrupted):
            decode(bytes(damaged))


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_of_another_layout_is_corrupted_wherever_its_rows_seem_to_end(kind: IdKind) -> None:
    raw = delta_of(kind)
    for width in {*range(1, 400), 70_000} - {layout(kind).row_bytes}:
        with pytest.raises(Corrupted, match="bad_block_size"):
            decode_delta({17: RowLayout((Column("vector", "u1", width),), kind)}, raw)


@given(st.integers(0, 400))
def test_a_cut_block_is_never_read(length: int) -> None:
    raw = encode_block(layout(IdKind.INT64), block_of(IdKind.INT64, 5))
    with pytest.raises(Corrupted):
        decode_block(layout(IdKind.INT64), raw[: length % len(raw)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_delta_gives_back_its_header_and_rows(kind: IdKind) -> None:
    block = changed_rows(kind)
    read = decode_delta({17: layout(kind)}, delta_of(kind))
    assert read.header == HEADER and read.changes == list_increments(block)
    assert decode_delta({}, delta_of(kind)) == DeltaRecord(HEADER) == decode_delta({17: layout(kind)}, encode_delta(HEADER))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_cut_into_records_of_bounded_size(kind: IdKind) -> None:
    block = block_of(kind, 9)
    sizes = [
        len(encode_block(layout(kind), RowBlock(block.keys[i : i + 1], block.stamps[i : i + 1], block.rows[i : i + 1]))) for i in range(9)
    ]
    cuts = plan_delta_cuts(layout(kind), block.keys, bytes_max=1024 + 2 * max(sizes))
    assert [i for cut in cuts for i in range(9)[cut]] == list(range(9)) and len(cuts) > 1
    for cut in cuts:
        raw = encode_delta(HEADER, encode_block(layout(kind), RowBlock(block.keys[cut], block.stamps[cut], block.rows[cut])))
        assert len(raw) <= 1024 + 2 * max(sizes)
    assert [cut.stop - cut.start for cut in plan_delta_cuts(layout(kind), block.keys, bytes_max=1)] == [1] * 9
    assert plan_delta_cuts(layout(kind), []) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_a_full_part_has_no_deleted_row(kind: IdKind) -> None:
    raw = encode_block(layout(kind), changed_rows(kind))
    assert decode_block(layout(kind), raw, may_be_dead=True).stamps["dead"].tolist() == [0, 1, 0]
    with pytest.raises(Corrupted, match="bad_stamp"):
        decode_block(layout(kind), raw)


@pytest.mark.parametrize("kind", KINDS)
def test_increments_that_are_stacked_are_the_same_increments(kind: IdKind) -> None:
    pairs = list_increments(changed_rows(kind))
    assert list_increments(stack_increments(layout(kind), pairs)) == pairs
    for at, size in ((0, 37), (1, 38), (0, 36), (2, layout(kind).row_bytes + 38)):
        torn = list(pairs)
        torn[at] = torn[at][0], torn[at][1].ljust(size, b"\0")[:size]
        with pytest.raises(Corrupted, match="bad_increment"):
            stack_increments(layout(kind), torn)


def test_an_increment_of_the_wrong_size_is_corrupted() -> None:
    block = block_of(IdKind.INT64, 1)
    raw = encode_increment(block.stamps[0], block.rows[0])
    for bad in (raw[:-1], raw + b"\0", raw[:10]):
        with pytest.raises(Corrupted, match="bad_increment"):
            decode_increment(layout(IdKind.INT64), bad)


def test_a_required_column_that_is_not_known_refuses_the_version() -> None:
    raw = layout(IdKind.INT64).to_dict()
    raw["columns"].append(["first_layer", "<f2", 8, 1])
    with pytest.raises(Incompatible, match="first_layer"):
        decode_layout(raw)
    raw["columns"][-1][3] = 0
    assert decode_layout(raw).row_bytes == layout(IdKind.INT64).row_bytes + 16


STAMPS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.integers(-1, 1), st.integers(0, 1))


def stamp_of(values: tuple[int, ...]) -> np.ndarray:
    return np.array([(*values, 0, 0)], STAMP)[0]


@given(STAMPS, STAMPS)
def test_a_row_is_replaced_only_when_no_component_goes_back_and_one_advances(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    features, embedding = (b[:3] > a[:3]) - (b[:3] < a[:3]), (b[3:] > a[3:]) - (b[3:] < a[3:])
    assert bool(is_newer(stamp_of(b), stamp_of(a))) == (features >= 0 and embedding >= 0 and features + embedding > 0)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_merged_view_is_a_dictionary_with_increments_over_the_full_part(kind: IdKind, data: st.DataObject) -> None:
    every = keys_of(kind, 30)
    full_keys = data.draw(st.sets(st.sampled_from(every)))
    changed = data.draw(st.dictionaries(st.sampled_from(every), st.booleans()))
    rows, stamps = block_of(kind, 30, seed=1), block_of(kind, 30).stamps
    at = {k: i for i, k in enumerate(every)}
    blocks, ordered = [], sorted(full_keys)
    for start in range(0, len(ordered), 4):
        part = [at[k] for k in ordered[start : start + 4]]
        blocks.append(RowBlock([every[i] for i in part], stamps[part], rows.rows[part]))
    dead = stamps.copy()
    dead["dead"] = 1
    increments = [
        (k, encode_increment(stamps[at[k]], rows.rows[-1 - at[k]]) if alive else encode_increment(dead[at[k]], None))
        for k, alive in sorted(changed.items())
    ]
    expected = {k: rows.rows[at[k]].tobytes() for k in full_keys} | {
        k: rows.rows[-1 - at[k]].tobytes() for k, alive in changed.items() if alive
    }
    for key, alive in changed.items():
        if not alive:
            expected.pop(key, None)
    merged = [(k, b.rows[i].tobytes()) for b in merge_parts(layout(kind), blocks, increments) for i, k in enumerate(b.keys)]
    assert merged == sorted(expected.items())


def test_each_of_many_increments_beyond_the_full_part_is_in_the_merged_view_once() -> None:
    every = block_of(IdKind.INT64, 10_000)
    increments = [(k, encode_increment(o, r)) for k, o, r in zip(every.keys, every.stamps, every.rows, strict=True)]
    merged = list(merge_parts(layout(IdKind.INT64), [], increments))
    assert [k for block in merged for k in block.keys] == list(every.keys)


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_does_not_see_how_rows_are_cut_and_sees_one_changed_row(kind: IdKind) -> None:
    def digest(*blocks: RowBlock) -> tuple[int, str, str]:
        of = ShardDigest(layout(kind), "m", "l")
        for b in blocks:
            of.update(b)
        return of.rows, of.hexdigest, of.data_hexdigest

    golden = {"int64": "7a9ecdc93505c2eb1d716616813a4fd1 849a35c9ab75575c84564d7c497dca75"}
    golden["text"] = "cf396d7afd809645cb170adebf6a67bc f94f79bd643a0e873c5bf5d9a7b3a8cc"
    assert " ".join(digest(block_of(kind, 5))[1:]) == golden[kind], "digests stand in manifests: others mean a new format number"
    whole = block_of(kind, 10)
    halves = [RowBlock(whole.keys[a:b], whole.stamps[a:b], whole.rows[a:b]) for a, b in ((0, 3), (3, 10))]
    assert digest(whole) == digest(*halves)
    other = whole.rows.copy()
    other["category"][4] += 1
    changed = digest(RowBlock(whole.keys, whole.stamps, other))
    assert changed[1] != digest(whole)[1] and changed[2] == digest(whole)[2]
    inputs = whole.stamps.copy()
    inputs["input_hash"][4] += 1
    assert digest(RowBlock(whole.keys, inputs, whole.rows))[2] != digest(whole)[2]
