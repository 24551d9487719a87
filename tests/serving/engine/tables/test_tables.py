"""Look-up and row changes against a plain dict and a plain fold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Incompatible
from schemas.ids import IdKind, encode_index_key
from schemas.index.layout import STAMP, Column, RowLayout, encode_increment
from serving.audit.version_rows import is_taken
from serving.engine.tables.arena import plan_arena, plan_arena_bytes
from serving.engine.tables.changes import Changes, covered_stamp, encode_ids, pack_stamps, pack_text_ids
from tests.schemas.index.stamp_rule import is_newer
from tests.serving.engine.samples import changes_of_pairs, empty_tables

COLUMNS = (Column("vector", "<f2", 3), Column("category", "<i4", 1))
LAYOUTS = {kind: RowLayout(COLUMNS, kind) for kind in IdKind}
INT64 = st.one_of(st.integers(-5, 5), st.integers(-(1 << 63), (1 << 63) - 1))
TEXT = st.one_of(st.sampled_from(["", "a", "aaaaaaaa", "aaaaaaaaa", "é"]), st.text(min_size=1, max_size=20)).filter(
    lambda text: 1 <= len(text.encode(errors="replace")) <= 128 and text.isprintable()
)
IDS = {IdKind.INT64: INT64, IdKind.TEXT: TEXT}


def change(layout, item, stamp, value):
    row = np.array((np.full(3, value), value), layout.dtype)
    return encode_index_key(item), encode_increment(stamp, None if stamp["dead"] else row)


def stamp_of(numbers, dead):
    version, offset, index, embedding_offset, embedding_index = numbers
    return np.array((version, offset, index, embedding_offset, embedding_index, 0, dead), STAMP)


@st.composite
def histories(draw, kind):
    """Changes of few ids with stamps from a small set (as logs give them: the features stamp is unique per change of an item)."""
    pool = draw(st.lists(IDS[kind], min_size=1, max_size=8, unique=True))
    numbers = st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(0, 1), st.integers(-1, 2), st.integers(0, 1))
    return draw(st.lists(st.tuples(st.sampled_from(pool), numbers, st.booleans()), max_size=40))


@pytest.mark.parametrize("kind", list(IdKind))
@given(data=st.data())
def test_changes_in_any_portions_leave_what_a_plain_fold_by_the_row_order_rule_leaves(kind: IdKind, data: st.DataObject) -> None:
    layout, history = LAYOUTS[kind], data.draw(histories(kind))
    tables, wanted = empty_tables(layout, 16, 400), {}
    pairs = []
    for number, (item, numbers, dead) in enumerate(history):
        stamp = stamp_of(numbers, dead)
        pairs.append(change(layout, item, stamp, number))
        if item not in wanted or is_newer(stamp, wanted[item][0]):
            wanted[item] = (stamp, number)
    size = data.draw(st.integers(1, 50))
    applied = [tables.apply(changes_of_pairs(layout, pairs[at : at + size])) for at in range(0, len(pairs), size)]
    assert sum(a.applied + a.superseded for a in applied) == len(history)
    assert {item: value_at(tables, item) for item in wanted} == {i: None if o["dead"] else v for i, (o, v) in wanted.items()}
    assert tables.rows == sum(not o["dead"] for o, _ in wanted.values())


@pytest.mark.parametrize("kind", list(IdKind))
@given(data=st.data())
def test_readers_that_forget_covered_deletes_hold_what_the_audit_holds(kind: IdKind, data: st.DataObject) -> None:
    """A watermark that rises between portions, of which some are older than it, as an owner that was set back sends them."""
    layout, history = LAYOUTS[kind], data.draw(histories(kind))
    tables, held, covered = empty_tables(layout, 16, 400), {}, 0
    for number, (item, numbers, dead) in enumerate(history):
        stamp = stamp_of(numbers, dead)
        if is_taken(stamp.item(), held[item][0] if item in held else None, covered):
            held[item] = (stamp.item(), None if dead else number)
        tables.apply(changes_of_pairs(layout, [change(layout, item, stamp, number)]), covered_stamp(covered))
        if data.draw(st.booleans()):
            covered += data.draw(st.integers(0, 1))
            tables.forget(encode_ids(list(held), kind), covered_stamp(covered))
            assert tables.used == sum(value is not None or stamp[1] >= covered for stamp, value in held.values())
        assert {one: value_at(tables, one) for one in held} == {one: value for one, (_, value) in held.items()}


@pytest.mark.parametrize("kind", list(IdKind))
def test_rows_of_covered_deletes_are_used_again_and_every_other_id_is_still_found(kind: IdKind) -> None:
    layout = LAYOUTS[kind]
    tables, kept = empty_tables(layout, 3, 24), [item_of(kind, i) for i in range(500)]
    tables.apply(changes_of_pairs(layout, [change(layout, item, stamp_of((1, 0, 0, 0, 0), 0), at) for at, item in enumerate(kept)]))
    for turn in range(1, 40):
        items = [item_of(kind, 1_000 * turn + i) for i in range(1_000)]
        tables.apply(changes_of_pairs(layout, [change(layout, item, stamp_of((1, turn, 0, 0, 0), 0), turn) for item in items]))
        tables.apply(changes_of_pairs(layout, [change(layout, item, stamp_of((2, turn, 0, 0, 0), 1), 0) for item in items[:-1]]))
        tables.forget(encode_ids(items, kind), covered_stamp(turn + 1))
        assert value_at(tables, items[0]) is None and value_at(tables, items[-1]) == turn
    assert (tables.not_servable, tables.used, tables.rows) == (0, 539, 539)
    assert [value_at(tables, item) for item in kept] == list(range(500))


def item_of(kind, number):
    return number if kind is IdKind.INT64 else f"{number:05d}"


def value_at(tables, item):
    row = tables.find(encode_ids([item], tables.layout.id_kind))[0]
    if row < 0:
        return None
    assert tables.id_at(row) == item
    assert (tables.columns["vector"][row] == tables.columns["category"][row]).all()
    return int(tables.columns["category"][row])


@given(
    stamp_a=st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(0, 65535), st.integers(-1, 3), st.integers(0, 65535)),
    stamp_b=st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(0, 65535), st.integers(-1, 3), st.integers(0, 65535)),
)
def test_packed_stamps_compare_as_the_row_stamp_rule(stamp_a: tuple[int, ...], stamp_b: tuple[int, ...]) -> None:
    layout, tables = LAYOUTS[IdKind.INT64], empty_tables(LAYOUTS[IdKind.INT64], 4)
    first, second = stamp_of(stamp_a, 0), stamp_of(stamp_b, 0)
    tables.apply(changes_of_pairs(layout, [change(layout, 1, first, 1)]))
    assert tables.apply(changes_of_pairs(layout, [change(layout, 1, second, 2)])).applied == bool(is_newer(second, first))


@given(seed=st.integers(0, 10_000))
def test_every_order_of_arrival_and_any_repeats_give_the_same_rows(seed: int) -> None:
    """Stamps of one item form a chain, as one source per component makes them: then the newest wins whatever comes first."""
    rng, layout = np.random.default_rng(seed), LAYOUTS[IdKind.INT64]
    history = [
        (item, stamp_of((1, step, 0, step // 2, 0), int(rng.random() < 0.3)), 10 * item + step) for item in range(3) for step in range(4)
    ]
    found = []
    for _ in range(2):
        tables, shuffled = empty_tables(layout, 8), [history[i] for i in rng.permutation(np.repeat(np.arange(len(history)), 2))]
        tables.apply(changes_of_pairs(layout, [change(layout, *entry) for entry in shuffled]))
        found.append([value_at(tables, item) for item in range(3)])
    newest = [history[4 * item + 3] for item in range(3)]
    assert found[0] == found[1] == [None if stamp["dead"] else value for _, stamp, value in newest]


@pytest.mark.parametrize("kind", list(IdKind))
@given(data=st.data())
def test_the_look_up_is_a_dict_and_an_unknown_id_is_never_an_index(kind: IdKind, data: st.DataObject) -> None:
    known = data.draw(st.lists(IDS[kind], max_size=60, unique=True))
    asked = data.draw(st.lists(st.one_of(IDS[kind], st.sampled_from(known)) if known else IDS[kind], max_size=60))
    layout, tables = LAYOUTS[kind], empty_tables(LAYOUTS[kind], 60, 60 * 80)
    tables.apply(changes_of_pairs(layout, [change(layout, item, stamp_of((1, 0, 0, 0, 0), 0), 0) for item in known]))
    rows = {item: row for row, item in enumerate(known)}
    assert tables.find(encode_ids(asked, kind)).tolist() == [rows.get(item, -1) for item in asked]


@pytest.mark.parametrize("kind", list(IdKind))
def test_a_full_arena_counts_new_ids_as_not_servable_and_still_updates_known_ones(kind: IdKind) -> None:
    layout = LAYOUTS[kind]
    items = [i if kind is IdKind.INT64 else f"id-{i}" for i in range(9000)]
    tables = empty_tables(layout, 3, 24)
    fresh = stamp_of((1, 0, 0, 0, 0), 0)
    applied = tables.apply(changes_of_pairs(layout, [change(layout, item, fresh, 1) for item in items]))
    assert applied.refused == len(items) - tables.used == tables.not_servable > 0
    unplaced = tables.not_servable
    again = [change(layout, items[-1], stamp_of((2, 1, 0, 0, 0), 0), 2), change(layout, items[-2], stamp_of((2, 1, 0, 0, 0), 1), 0)]
    assert (tables.apply(changes_of_pairs(layout, again)).refused, tables.not_servable) == (2, unplaced - 1), (
        "items are counted, not changes"
    )
    assert tables.apply(changes_of_pairs(layout, [change(layout, items[0], stamp_of((2, 0, 0, 0, 0), 0), 5)])).applied == 1
    assert value_at(tables, items[0]) == 5 and value_at(tables, items[-1]) is None


def test_a_version_that_does_not_fit_is_refused_by_name() -> None:
    layout = LAYOUTS[IdKind.INT64]
    with pytest.raises(Incompatible, match="arena_too_small") as raised:
        plan_arena(layout, 10_000, 5_000, 0)
    assert "larger arena" in raised.value.message


@given(rows=st.integers(0, 5000), mean=st.integers(1, 40), kind=st.sampled_from(list(IdKind)))
def test_the_default_arena_holds_the_version_and_at_least_half_as_many_new_ids(rows: int, mean: int, kind: IdKind) -> None:
    layout, id_bytes = LAYOUTS[kind], rows * mean if kind is IdKind.TEXT else 0
    plan = plan_arena(layout, plan_arena_bytes(layout, rows, id_bytes), rows, id_bytes)
    ends = {offset + int(np.prod(shape)) * np.dtype(dtype).itemsize for offset, dtype, shape in plan.arrays.values()}
    starts = sorted(offset for offset, _, _ in plan.arrays.values())
    assert plan.capacity >= 1.5 * rows - 1 and plan.id_bytes * max(rows, 1) >= id_bytes * plan.capacity * 0.99
    assert max(ends) <= plan.size_bytes and all(any(a <= e <= b for e in ends) for a, b in itertools.pairwise(starts))


def _hash_text(raw: bytes) -> int:
    """The hash of the kernels for ids of 9 to 15 bytes, before its last bijective step."""
    mask, mix_1, mix_2 = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
    h = ((len(raw) * mix_1 & mask) ^ int.from_bytes(raw[:8], "little")) * mix_2 & mask
    return h ^ (h >> 29) ^ int.from_bytes(raw[8:], "little")


def test_two_text_ids_of_one_hash_are_told_apart_by_their_bytes() -> None:
    first, layout = b"collision-00001", LAYOUTS[IdKind.TEXT]
    for number in range(1 << 16):
        start = number.to_bytes(8, "little")
        rest = _hash_text(first) ^ _hash_text(start + bytes(7))
        if rest < 1 << 56:
            break
    second = start + rest.to_bytes(7, "little")
    assert second != first and _hash_text(second) == _hash_text(first)
    tables, rows = empty_tables(layout, 4, 60), []
    for key in (first, second):
        stamps = pack_stamps(np.array([stamp_of((1, 0, 0, 0, 0), 0)]))
        made = Changes(
            pack_text_ids([key]), stamps, np.zeros(1, np.uint8), np.zeros(1, layout.dtype)
        )  # not decoded: the second is no UTF-8
        rows.append(tables.apply(made).rows.tolist())
    assert rows == [[0], [1]] and tables.find_any(pack_text_ids([second, first, first + b"x"])).tolist() == [1, 0, -1]
