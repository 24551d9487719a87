"""Invariants of the control log: each is found when it is broken, and no log that the fold makes breaks one; final versions are forgotten."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from schemas.errors import Incompatible
from schemas.index.control import FINAL_KEPT, REFUSED_KEPT, ControlState, encode_entry, fold_entry
from schemas.index.control_fold import decode_fold, encode_fold
from schemas.index.control_invariants import OF_STATE, OF_STEP, find_broken_step
from schemas.index.lifecycle import EntryKind, State
from tests.schemas.index.entries import act, appended, lived, log, want

LIVED = log(*lived(1, 2, 3))  # 1 frozen, 2 backup, 3 live


def after(version: int | None = None, status: dict[str, Any] | None = None, **fields: Any) -> ControlState:
    """The state after one more entry, with something that no entry does."""
    state = appended(LIVED, act(EntryKind.HOLD))
    versions = dict(state.versions)
    if version is not None and status is None:
        del versions[version]
    elif version is not None and status is not None:
        versions[version] = dataclasses.replace(versions[version], **status)
    return dataclasses.replace(state, versions=versions, **fields)


BROKEN: dict[str, Callable[[], ControlState]] = {
    "one_live": lambda: after(1, {"state": State.LIVE}),
    "one_backup": lambda: after(backup=None),
    "served_is_whole": lambda: after(3, {"manifest_sha256": ""}),
    "wanted_is_new": lambda: after(3, {"wanted_revision": 0}),
    "final_wants_nothing": lambda: after(1, {"state": State.REMOVED, "wanted_revision": 1}),
    "next_number": lambda: after(next_number=LIVED.next_number),
    "identity_kept": lambda: after(index_id="another"),
    "decided_grows": lambda: after(3, None, live=None),
    "revisions_grow": lambda: after(1, {"revision": -1}),
    "only_final_forgotten": lambda: after(1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_named(name: str) -> None:
    assert name in [told.partition(":")[0] for told in find_broken_step(LIVED, BROKEN[name]())]


def test_a_version_that_comes_back_after_its_end_is_named() -> None:
    removed = appended(LIVED, act(EntryKind.DROP, 1))
    back = dataclasses.replace(removed, next_number=removed.next_number + 1, versions=LIVED.versions)
    assert [told.partition(":")[0] for told in find_broken_step(removed, back)] == ["final_stays"]
    assert {*BROKEN, "final_stays"} == OF_STATE.keys() | OF_STEP.keys()


def test_final_versions_are_forgotten_their_numbers_stay_used_and_they_stay_over() -> None:
    state = LIVED
    for version in range(4, 4 + 3 * FINAL_KEPT):
        state = fold_entry(state, state.next_number, encode_entry(act(EntryKind.REJECT, version)))
        assert find_broken_step(LIVED, dataclasses.replace(state, next_number=LIVED.next_number + 1)) == []
    assert {1, 2, 3} < state.versions.keys() and len(state.versions) < 3 + 2 * FINAL_KEPT and 4 not in state.versions
    assert state.is_over(4) and not state.is_over(3) and not state.is_over(state.newest_decided + 1)
    for late in (want(4), act(EntryKind.REJECT, 4)):
        with pytest.raises(Incompatible, match="late_version"):
            appended(state, late)


def test_refused_entries_are_kept_up_to_a_number() -> None:
    state = LIVED
    for _ in range(2 * REFUSED_KEPT):
        state = fold_entry(state, state.next_number, encode_entry(act(EntryKind.PROMOTE, 99)))
    assert len(state.refused) == REFUSED_KEPT and state.refused[-1].startswith(f"{state.next_number - 1}: ")


def test_a_fold_reads_back_as_the_state_that_was_written() -> None:
    state = appended(LIVED, act(EntryKind.PIN, 2), want(9), act(EntryKind.REJECT, 12), act(EntryKind.HOLD))
    state = fold_entry(state, state.next_number, encode_entry(act(EntryKind.DROP, 77)))
    raw = encode_fold(state, b"last")
    assert decode_fold(raw)[0] == state and encode_fold(decode_fold(raw)[0], b"last") == raw
