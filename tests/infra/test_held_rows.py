"""Rows in compiled memory read as a dictionary does, however they grow, shrink, settle and are let go of."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.held_rows import UNKNOWN, HeldRows
from infra.joined import NONE, Joined, join_rows, join_runs, join_some, join_stored, pack_into, prefix_each, read_only

keys = st.binary(max_size=2) | st.sampled_from([b"eight by", b"eight bytes and", b"eight bytes and more", b"\0" * 8, b"\0" * 9])
values = st.none() | st.binary(max_size=40)
puts = st.tuples(st.lists(st.tuples(keys, values), max_size=6), st.booleans())
steps = st.lists(puts | st.sampled_from(["settle", "let go"]), max_size=20)


@settings(max_examples=150, deadline=None)
@given(steps, st.booleans())
def test_what_was_put_last_is_held_and_what_is_not_settled_is_never_let_go_of(taken: list[object], complete: bool) -> None:
    held, model, unsettled = HeldRows(complete), dict[bytes, bytes | None](), set[bytes]()
    for step in taken:
        if step == "settle":
            held.settle()
            unsettled = set()
        elif step == "let go":
            held.let_go()
            model, complete = {key: value for key, value in model.items() if key in unsettled}, False
        else:
            assert isinstance(step, tuple)
            rows, settled = step
            held.put(join_stored([key for key, _ in rows]), join_some([value for _, value in rows]), settled)
            model |= rows
            unsettled |= set() if settled else {key for key, _ in rows}
        asked = [*model, b"not there"]
        found = held.get(join_stored(asked))
        assert found.to_list() == [model.get(key) for key in asked]
        assert found.starts_R[-1] == (NONE if complete else UNKNOWN) and (found.starts_R[:-1] != UNKNOWN).all()
        waiting = dict(zip(*(joined.to_list() for joined in held.unsettled()), strict=True))
        assert (waiting, len(held)) == ({key: model[key] for key in unsettled}, len(model))


def test_a_value_that_changes_again_and_again_takes_no_more_memory() -> None:
    held, key = HeldRows(), join_stored([b"key"])
    for n in range(3_000):
        held.put(key, join_stored([bytes(100 + n % 8)]), settled=False)
    assert held.bytes < 1_000


@given(st.lists(st.lists(values, max_size=4), min_size=1, max_size=4), st.binary(max_size=3))
def test_values_side_by_side_are_those_that_lay_apart(runs: list[list[bytes | None]], prefix: bytes) -> None:
    whole = [value for run in runs for value in run]
    first = join_some(whole)
    cuts = [first.cut(sum(map(len, runs[:i])), sum(map(len, runs[: i + 1]))) for i in range(len(runs))]
    assert join_runs([join_some(run) for run in runs]).to_list() == join_runs(cuts).to_list() == whole
    there = [value for value in whole if value is not None]
    assert prefix_each(prefix, join_stored(there)).to_list() == [prefix + value for value in there]
    out_T = np.zeros(1 + int(first.sizes().sum()), np.uint8)
    assert pack_into(first, out_T, 1) == len(out_T) and out_T[1:].tobytes() == b"".join(there)


def test_rows_of_one_size_and_a_buffer_that_nobody_writes() -> None:
    rows = join_rows(np.frombuffer(b"abcdef", np.uint8).reshape(3, 2))
    assert rows.present() == [b"ab", b"cd", b"ef"] and rows.take(np.array([2, 0])).present() == [b"ef", b"ab"]
    assert not rows.bytes_T.flags.writeable and not read_only(np.zeros(2)).flags.writeable
    assert Joined(rows.bytes_T, np.array([-1]), np.array([-1])).to_list() == [None]


@given(st.lists(st.binary(max_size=3), max_size=6) | st.lists(st.binary(min_size=2, max_size=2), max_size=6))
def test_values_that_are_all_there_become_the_objects_that_they_were_made_of_also_in_another_order(values: list[bytes]) -> None:
    assert join_stored(values).present() == values
    assert join_stored(values).take(np.arange(len(values))[::-1]).present() == values[::-1]
