"""The control log, case by case: listed transitions and named refusals. What the fold promises whatever is appended: test_control_machine.py."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import pytest

from schemas.errors import Corrupted, Incompatible
from schemas.ids import IdKind
from schemas.index.control import ControlState, Entry, Init, decode_entry, encode_entry, fold_entry, plan_entry
from schemas.index.lifecycle import FINAL, Cause, EntryKind, State, next_state, transitions
from schemas.index.manifest import checked_name, decode_manifest, decode_seal, seal_path
from schemas.index.shard_snapshot import decode_snapshot
from tests.schemas.index.entries import act, appended, lived, log, publish, raw_entry, want

IDENTITY = Init(4, 4, IdKind.INT64, {"item-features": "aif.item-features"}, {"item-features": "uuid"})


def test_every_pair_is_a_listed_transition_or_a_named_refusal() -> None:
    listed = {(s, e): t for s, e, t in transitions()}
    for state, kind, cause in itertools.product(State, EntryKind, ("", *Cause)):
        expected = listed.get((state, f"{kind} ({cause})" if kind is EntryKind.WANT else str(kind)))
        if expected is not None:
            assert next_state(state, kind, cause) is expected
        else:
            with pytest.raises(Incompatible, match=f"refused_transition.*{state}"):
                next_state(state, kind, cause)


def test_a_final_state_is_left_by_nothing() -> None:
    assert not [s for s, _, _ in transitions() if s in FINAL]


def test_an_entry_survives_its_encoding() -> None:
    for one in (Entry(EntryKind.INIT, 0, by="w", init=IDENTITY), want(7), publish(7), Entry(EntryKind.REJECT, 1, version=8, reason="nan")):
        assert decode_entry(encode_entry(one)) == one


def test_the_bytes_of_an_entry_stay_the_same() -> None:
    sha256 = f"{7:064x}"
    assert encode_entry(want(7, 1)).decode() == (
        '{"at_ms":1,"cause":"checkpoint","check":"4ffbe45381ecf5d4",'
        f'"checkpoint_sha256":"{sha256}","encoder_fingerprint":"torch=1","kind":"want","revision":1,"version":7}}'
    )


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"version":1}', b'{"kind":"want"}', b"x" * 300_000])
def test_bytes_that_are_no_entry_are_corrupted(raw: bytes) -> None:
    with pytest.raises(Corrupted):
        fold_entry(ControlState(), 0, raw)


def test_an_index_that_is_begun_again_is_another_and_later_entries_do_not_change_which_it_is() -> None:
    begun = Entry(EntryKind.INIT, 1_000, "worker-1", init=IDENTITY)
    first, same, again = (appended(ControlState(), dataclasses.replace(begun, at_ms=at)) for at in (1_000, 1_000, 1_001))
    assert len(first.index_id) == 16 and first.index_id == same.index_id != again.index_id
    refused = fold_entry(appended(first, want(0)), 2, encode_entry(begun))
    assert refused.index_id == first.index_id and refused.refused


def test_a_gap_in_the_numbers_is_corrupted() -> None:
    with pytest.raises(Corrupted, match="control_log_gap"):
        fold_entry(ControlState(), 1, encode_entry(Entry(EntryKind.INIT, 0, init=IDENTITY)))


def test_nothing_precedes_init_and_nothing_repeats_it() -> None:
    with pytest.raises(Incompatible, match="no_index"):
        plan_entry(ControlState(), want(0))
    with pytest.raises(Incompatible, match="already_init"):
        plan_entry(log(), Entry(EntryKind.INIT, 0, init=IDENTITY))


def test_a_token_names_version_revision_and_manifest() -> None:
    state = log(*lived(0), want(0, 1, Cause.REVISE), publish(0, 1))
    assert str(state.versions[0].token) == "0.1-bbbbbbbb"


def test_of_the_versions_that_wait_only_the_newest_is_kept_and_the_one_that_builds_goes_on() -> None:
    state = log(want(0), want(1), want(2))
    assert [state.versions[v].state for v in (0, 1, 2)] == [State.WANTED, State.ABORTED, State.WANTED]
    assert state.building is not None and state.building.version == 0 and [s.version for s in state.receiving] == [0]


def test_a_rollback_holds_until_release() -> None:
    state = log(*lived(0, 1), act(EntryKind.ROLLBACK, 0))
    assert (state.live, state.backup, state.held) == (0, 1, True)
    assert not appended(state, act(EntryKind.RELEASE)).held


def test_a_frozen_version_comes_back_only_through_a_revived_revision() -> None:
    state = frozen_0()
    with pytest.raises(Incompatible, match="refused_transition"):
        plan_entry(state, act(EntryKind.ROLLBACK, 0))
    state = appended(state, want(0, 1, Cause.REVIVE), publish(0, 1))
    assert state.versions[0].state is State.PUBLISHED and state.versions[0].revision == 1


def test_a_revision_that_was_given_up_by_a_freeze_is_never_wanted_again() -> None:
    """Its seals may lie in the store; they are of a time before the freeze, so a revival must not take them."""
    state = log(*lived(0, 1), want(0, 1, Cause.REVISE))
    state = appended(state, *lived(2))
    assert (state.versions[0].state, state.versions[0].wanted_revision) == (State.FROZEN, None)
    with pytest.raises(Incompatible, match="wrong_revision"):
        plan_entry(state, want(0, 1, Cause.REVIVE))
    state = appended(state, want(0, 2, Cause.REVIVE))
    assert [s.version for s in state.receiving] == [0, 1, 2] and state.versions[0].is_reviving


def test_a_pinned_version_is_current_and_survives_promotions() -> None:
    state = log(*lived(0), act(EntryKind.PIN, 0))
    for v in (1, 2, 3):
        state = appended(state, *lived(v))
        assert [s.version for s in state.versions.values() if s.state is State.BACKUP] == [v - 1]
    assert state.current is not None and state.current.version == 0 and state.current.state is State.PUBLISHED
    with pytest.raises(Incompatible, match="unpin it first"):
        plan_entry(state, act(EntryKind.FREEZE, 0))
    assert appended(state, act(EntryKind.UNPIN)).current.version == 3  # type: ignore[union-attr]


def test_a_version_that_is_dropped_while_it_revives_waits_for_nothing() -> None:
    state = appended(frozen_0(), wished("promote"), act(EntryKind.DROP, 0))
    assert (state.versions[0].state, state.versions[0].wish, state.receiving) == (State.REMOVED, "", log(*lived(0, 1, 2)).receiving)


def test_a_refusal_names_the_version_which_a_command_may_have_chosen() -> None:
    with pytest.raises(Incompatible, match="refused_transition: rollback is not possible for version 0, which is frozen"):
        plan_entry(frozen_0(), act(EntryKind.ROLLBACK, 0))


def frozen_0() -> ControlState:
    return log(*lived(0, 1, 2))


def wished(wish: str, reason: str = "") -> Entry:
    return dataclasses.replace(want(0, 1, Cause.REVIVE), wish=wish, reason=reason, by="anna")


def test_a_wish_is_kept_until_its_version_is_live_and_a_rollback_s_holds_at_once() -> None:
    state = appended(frozen_0(), wished("rollback", "clicks fell"))
    assert state.held_why == "rollback by anna: clicks fell" and state.live == 2
    state = appended(state, publish(0, 1), act(EntryKind.PROMOTE, 0))
    assert (state.live, state.versions[0].wish, state.versions[0].reason, state.held) == (0, "", "rollback was wished", True)
    assert state.versions[2].turned_away


@pytest.mark.parametrize("newer", [act(EntryKind.HOLD), act(EntryKind.PIN, 2), act(EntryKind.ROLLBACK, 1)], ids=lambda e: e.kind)
def test_a_newer_hold_pin_or_rollback_ends_a_wish(newer: Entry) -> None:
    assert appended(frozen_0(), wished("promote"), newer).versions[0].wish == ""
    assert appended(frozen_0(), wished("promote"), act(EntryKind.RELEASE)).versions[0].wish == "promote"


def test_a_wish_is_for_a_revival_and_of_a_known_kind() -> None:
    with pytest.raises(Incompatible, match="unknown_wish"):
        plan_entry(frozen_0(), wished("elope"))
    with pytest.raises(Incompatible, match="unknown_wish"):
        plan_entry(frozen_0(), dataclasses.replace(want(2, 1, Cause.REVISE), wish="promote"))


def test_a_withheld_version_says_why_and_by_whom_until_it_is_approved_or_promoted_by_hand() -> None:
    withheld = dataclasses.replace(act(EntryKind.WITHHOLD, 0), reason="canary: odd", by="w1")
    state = appended(log(want(0), publish(0)), withheld)
    assert (state.versions[0].state, state.versions[0].withheld) == (State.PUBLISHED, True)
    assert (state.versions[0].reason, state.versions[0].by) == ("canary: odd", "w1")
    approved = appended(state, dataclasses.replace(act(EntryKind.APPROVE, 0), by="anna"))
    assert not approved.versions[0].withheld and approved.versions[0].approved and approved.versions[0].by == "anna"
    assert not appended(state, act(EntryKind.PROMOTE, 0)).versions[0].withheld


def test_a_version_that_was_rolled_back_from_is_known_for_it_until_somebody_promotes_it() -> None:
    state = appended(log(*lived(0, 1)), dataclasses.replace(act(EntryKind.ROLLBACK, 0), reason="worse", by="w1"))
    assert (state.versions[1].turned_away, state.versions[1].reason, state.versions[1].by) == (True, "rolled back from: worse", "w1")
    assert state.versions[0].reason == "worse" and state.held_why == "rollback by w1: worse"
    assert not appended(state, act(EntryKind.PROMOTE, 1)).versions[1].turned_away


def test_an_older_reader_passes_over_a_field_that_it_does_not_know() -> None:
    assert decode_entry(raw_entry({"at_ms": 1, "kind": "hold", "mood": "good"})) == Entry(EntryKind.HOLD, 1)


def test_a_flipped_bit_in_an_entry_is_found() -> None:
    """The digit of a version or the name of a field would otherwise be another decision."""
    for entry in (Entry(EntryKind.INIT, 0, by="w", init=IDENTITY), want(5), act(EntryKind.PROMOTE, 5)):
        raw = encode_entry(entry)
        for bit in range(8 * len(raw)):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Corrupted):
                decode_entry(bytes(flipped))


def test_a_manifest_is_published_only_for_the_revision_that_is_wanted() -> None:
    with pytest.raises(Incompatible, match="not_wanted"):
        plan_entry(log(want(0)), publish(0, 1))
    with pytest.raises(Incompatible, match="wrong_revision"):
        plan_entry(log(want(0), publish(0)), want(0, 2, Cause.REVISE))


def test_an_unknown_kind_stops_writers_and_not_readers() -> None:
    state = log(*lived(0))
    state = fold_entry(state, state.next_number, raw_entry({"at_ms": 1, "kind": "teleport"}))
    assert "teleport" in state.unknown_entry and state.current is not None
    with pytest.raises(Incompatible, match="teleport"):
        plan_entry(state, want(1))


@pytest.mark.parametrize(
    "changes", [{"version": []}, {"version": None}, {"version": "1"}, {"cause": {}}, {"at_ms": 1.5}, {"revision": True}]
)
def test_an_entry_with_a_field_of_another_type_is_corrupted(changes: dict[str, object]) -> None:
    raw = {"kind": "want", "at_ms": 1, "version": 1, "revision": 0, "cause": "checkpoint", **changes}
    with pytest.raises(Corrupted, match="bad_control_entry"):
        decode_entry(raw_entry(raw))


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": "2"},
        {"shards": True},
        {"topics": 5},
        {"topic_ids": {"a": 1}},
        {"topic_ids": []},
        {"format": None},
        {"id_kind": []},
        {"x": 1},
    ],
)
def test_an_index_without_the_types_of_its_identity_is_corrupted(changes: dict[str, object]) -> None:
    init = {"shards": 2, "user_partitions": 1, "id_kind": "int64", "topics": {"a": "b"}, **changes}
    for one in (init, [], "init", 1):
        with pytest.raises(Corrupted, match="bad_control_entry"):
            decode_entry(raw_entry({"kind": "init", "at_ms": 1, "init": one}))


BRACKETS = b"[" * 100_000


@pytest.mark.parametrize(
    "decode",
    [decode_entry, decode_manifest, partial(decode_seal, path=seal_path(7, 1, 3, checked_name("0" * 12, BRACKETS))), decode_snapshot],
)
def test_a_file_of_nothing_but_brackets_is_corrupted(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(Corrupted, match="does not read"):
        decode(BRACKETS)
