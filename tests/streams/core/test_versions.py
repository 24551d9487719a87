"""The plans for versions, case by case, and the law that following them ends."""

import dataclasses
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.index.control import ControlState, Entry, encode_entry, fold_entry
from schemas.index.lifecycle import Cause, EntryKind, State
from schemas.index.manifest import Part
from streams.core.shard_state import ShardVersion
from streams.core.version_plans import (
    Build,
    MarkBehind,
    Revision,
    Rewrite,
    SealShard,
    ShardFacts,
    Start,
    Stop,
    plan_promotion,
    plan_publications,
    plan_revisions,
    plan_shard,
    plan_wish,
)
from tests.schemas.index.entries import OURS, act, appended, lived, log, publish, want

THEIRS = "torch=2"
FULL = Part("versions/5/full/00000-a", (), 3)


Facts = partial(ShardVersion, 5, "", OURS, want_end_offsets={"item-features": 10, "new-items": 4})
WANTED = log(want(5))
LIVE = log(*lived(5))
REVISED = log(*lived(5), want(5, 1, Cause.REVISE))
FROZEN = log(*lived(5, 6, 7))
REVIVED = log(*lived(5, 6, 7), want(5, 1, Cause.REVIVE))
DONE = {"item-features": 10, "new-items": 4}

CASES = {
    "an empty log asks for nothing": (ControlState(), {}, DONE, []),
    "a wanted version is started": (WANTED, {}, {}, [Start(1, 5)]),
    "only the oldest wanted version is started": (log(want(5), want(6)), {}, {}, [Start(1, 5)]),
    "a version wanted by another encoder starts behind": (log(want(5, fingerprint=THEIRS)), {}, {}, [Start(1, 5, behind=True)]),
    "a started version of another encoder is marked": (log(want(5, fingerprint=THEIRS)), {5: Facts(full=FULL)}, DONE, [MarkBehind(1, 5)]),
    "a version that is behind is left alone": (log(want(5, fingerprint=THEIRS)), {5: Facts(behind=True)}, DONE, []),
    "behind and unpublished starts again under the right encoder": (WANTED, {5: Facts(behind=True)}, DONE, [Stop(1, 5)]),
    "behind and live needs a revive": (LIVE, {5: Facts(behind=True)}, DONE, []),
    "behind while it is revived starts again": (REVIVED, {v: Facts(full=FULL, behind=v == 5) for v in (5, 6, 7)}, DONE, [Stop(1, 5)]),
    "a started version is built": (WANTED, {5: Facts()}, {}, [Build(1, 5)]),
    "a live version that a new owner started is built again": (LIVE, {5: Facts()}, DONE, [Build(1, 5)]),
    "no seal before the shard caught up": (WANTED, {5: Facts(full=FULL)}, {"item-features": 10, "new-items": 3}, []),
    "sealed once caught up": (WANTED, {5: Facts(full=FULL)}, DONE, [SealShard(1, 5, 0)]),
    "sealed over empty partitions": (WANTED, {5: Facts(want_end_offsets={"item-features": 0}, full=FULL)}, {}, [SealShard(1, 5, 0)]),
    "nothing after the seal": (WANTED, {5: Facts(full=FULL, sealed_revision=0)}, DONE, []),
    "a revision is sealed again": (REVISED, {5: Facts(full=FULL, sealed_revision=0)}, DONE, [SealShard(1, 5, 1)]),
    "an overgrown incremental part is worked in before the seal": (
        REVISED,
        {5: Facts(full=FULL, sealed_revision=0, sealed_increments=2)},
        DONE,
        [Rewrite(1, 5)],
    ),
    "a small one is not": (REVISED, {5: Facts(full=FULL, sealed_revision=0, sealed_increments=1)}, DONE, [SealShard(1, 5, 1)]),
    "without a wanted revision nothing is worked in": (LIVE, {5: Facts(full=FULL, sealed_revision=0, sealed_increments=9)}, DONE, []),
    "a frozen version that is revived is started": (REVIVED, {6: Facts(full=FULL), 7: Facts(full=FULL)}, DONE, [Start(1, 5)]),
    "then built": (REVIVED, {5: Facts(), 6: Facts(full=FULL), 7: Facts(full=FULL)}, DONE, [Build(1, 5)]),
    "then sealed": (REVIVED, {5: Facts(full=FULL), 6: Facts(full=FULL), 7: Facts(full=FULL)}, DONE, [SealShard(1, 5, 1)]),
    "a frozen version is stopped": (FROZEN, {v: Facts(full=FULL, sealed_revision=0) for v in (5, 6, 7)}, DONE, [Stop(1, 5)]),
    "an aborted version is stopped": (log(want(5), act(EntryKind.ABORT, 5)), {5: Facts()}, DONE, [Stop(1, 5)]),
    "a version the log does not know yet is kept": (WANTED, {5: Facts(), 6: Facts()}, {}, [Build(1, 5)]),
    "a version that ended so long ago that the log's fold has forgotten it is stopped": (
        WANTED,
        {4: Facts()},
        {},
        [Stop(1, 4), Start(1, 5)],
    ),
    "an unknown entry stops planning": (dataclasses.replace(WANTED, unknown_entry="3: x"), {}, {}, []),
}


@pytest.mark.parametrize(("state", "versions", "offsets", "expected"), CASES.values(), ids=CASES)
def test_a_shard_does(state: ControlState, versions: dict[int, ShardVersion], offsets: dict[str, int], expected: list[object]) -> None:
    assert plan_shard(state, ShardFacts(1, offsets, versions), OURS) == expected


BESIDE = log(*lived(5, 6))
LOST_CASES = {  # the checkpoint of 5 cannot be read
    "the version that is served is waited for": (LIVE, {5: Facts(full=FULL)}, []),
    "also by a new owner": (LIVE, {}, []),
    "until another one is wanted": (
        log(*lived(5), want(6)),
        {5: Facts(full=FULL)},
        [MarkBehind(1, 5), Start(1, 6)],
    ),
    "a backup falls behind": (BESIDE, {5: Facts(full=FULL), 6: Facts(full=FULL, sealed_revision=0)}, [MarkBehind(1, 5)]),
    "one that is revived starts without rows": (REVIVED, {6: Facts(full=FULL), 7: Facts(full=FULL)}, [Start(1, 5, behind=True)]),
    "one that builds starts without rows": (WANTED, {}, [Start(1, 5, behind=True)]),
    "and does so once": (WANTED, {5: Facts(behind=True)}, []),
}


@pytest.mark.parametrize(("state", "versions", "expected"), LOST_CASES.values(), ids=LOST_CASES)
def test_a_shard_whose_version_lost_its_checkpoint(state: ControlState, versions: dict[int, ShardVersion], expected: list[object]) -> None:
    assert plan_shard(state, ShardFacts(1, DONE, versions), OURS, lost={5}) == expected


PUBLISHED = log(want(5), publish(5))
PROMOTIONS = {
    "nothing published": (WANTED, None),
    "the newest published": (log(want(5), publish(5), want(6), publish(6)), 6),
    "not while held": (log(want(5), publish(5), act(EntryKind.HOLD)), None),
    "again after the release": (log(want(5), publish(5), act(EntryKind.HOLD), act(EntryKind.RELEASE)), 5),
    "not while another is pinned": (log(*lived(5), want(6), publish(6), act(EntryKind.PIN, 5)), None),
    "nothing newer than the live one": (LIVE, None),
    "not one that its canary withholds": (log(want(5), publish(5), act(EntryKind.WITHHOLD, 5)), None),
    "an older one instead": (log(want(5), publish(5), want(6), publish(6), act(EntryKind.WITHHOLD, 6)), 5),
    "a withheld one that was approved": (log(want(5), publish(5), act(EntryKind.WITHHOLD, 5), act(EntryKind.APPROVE, 5)), 5),
    "not from a log with an unknown entry": (dataclasses.replace(PUBLISHED, unknown_entry="3: x"), None),
    "not the one that was rolled back": (
        log(
            *lived(5, 6),
            act(EntryKind.ROLLBACK, 5),
            act(EntryKind.RELEASE),
        ),
        None,
    ),
}


@pytest.mark.parametrize(("state", "expected"), PROMOTIONS.values(), ids=PROMOTIONS)
def test_promotion_takes(state: ControlState, expected: int | None) -> None:
    assert plan_promotion(state) == expected


def wish(kind: str, version: int = 5) -> Entry:
    return dataclasses.replace(want(version, 1, Cause.REVIVE), wish=kind)


def then(state: ControlState, *entries: Entry) -> ControlState:
    for entry in entries:
        state = fold_entry(state, state.next_number, encode_entry(entry))
    assert not state.refused
    return state


WISHES = {
    "nothing wished": (FROZEN, None),
    "not before it is published": (then(FROZEN, wish("promote")), None),
    "once it is": (then(FROZEN, wish("promote"), publish(5, 1)), 5),
    "a rollback under its own hold": (then(FROZEN, wish("rollback"), publish(5, 1)), 5),
    "under a hold that was there before": (then(FROZEN, act(EntryKind.HOLD), wish("promote"), publish(5, 1)), 5),
    "not under a newer hold": (then(FROZEN, wish("promote"), publish(5, 1), act(EntryKind.HOLD)), None),
    "once only": (then(FROZEN, wish("promote"), publish(5, 1), act(EntryKind.PROMOTE, 5)), None),
    "not from a log with an unknown entry": (
        dataclasses.replace(then(FROZEN, wish("promote"), publish(5, 1)), unknown_entry="30: x"),
        None,
    ),
    "a revival without a wish": (then(FROZEN, want(5, 1, Cause.REVIVE), publish(5, 1)), None),
}


@pytest.mark.parametrize(("state", "expected"), WISHES.values(), ids=WISHES)
def test_a_wish_is_fulfilled(state: ControlState, expected: int | None) -> None:
    assert plan_wish(state) == expected


def test_what_is_wanted_can_be_published_a_revived_version_too() -> None:
    assert plan_publications(log(want(5), want(6))) == [Revision(5, 0)]
    assert plan_publications(REVISED) == [Revision(5, 1)]
    assert plan_publications(LIVE) == []
    assert plan_publications(dataclasses.replace(REVISED, unknown_entry="9: x")) == []
    revive = Entry(EntryKind.WANT, 9, version=5, revision=1, cause=Cause.REVIVE)
    assert plan_publications(fold_entry(FROZEN, FROZEN.next_number, encode_entry(revive))) == [Revision(5, 1)]


def test_a_revision_is_due_by_the_store_s_time_of_the_last_publish() -> None:
    assert plan_revisions(LIVE, {}, 1_001, 1_000) == []
    assert plan_revisions(LIVE, {}, 1_002, 1_000) == [Revision(5, 1)]
    assert plan_revisions(LIVE, {5: 1_500}, 2_000, 1_000) == []
    assert plan_revisions(REVISED, {}, 9_999, 1_000) == []
    assert plan_revisions(dataclasses.replace(LIVE, unknown_entry="9: x"), {}, 9_999, 1_000) == []
    assert plan_revisions(WANTED, {}, 9_999, 1_000) == []
    assert [r.version for r in plan_revisions(FROZEN, {}, 9_999, 1_000)] == [6, 7]


@given(st.permutations(range(6)), st.integers(0, 5))
def test_following_the_plan_ends_with_every_receiving_version_sealed(order: list[int], restarts: int) -> None:
    """Whatever is repeated or forgotten in between: the plan only looks at facts."""
    versions: dict[int, ShardVersion] = {}
    for step in range(12):
        actions = plan_shard(REVISED, ShardFacts(0, DONE, versions), OURS)
        if not actions:
            break
        if step in order[:restarts]:
            continue  # killed before the action had an effect: it is planned again
        match actions[0]:
            case Start(_, v, _):
                versions[v] = Facts()
            case Build(_, v):
                versions[v] = dataclasses.replace(versions[v], full=FULL)
            case Rewrite(_, v):
                versions[v] = dataclasses.replace(versions[v], sealed_increments=0)
            case SealShard(_, v, r):
                versions[v] = dataclasses.replace(versions[v], sealed_revision=r)
    assert versions == {5: Facts(full=FULL, sealed_revision=1)}


def test_a_pinned_backup_that_an_older_version_overtook_is_not_promoted_once_it_is_unpinned() -> None:
    state = log(*lived(0, 1, 2, 3), want(0, 1, Cause.REVIVE), publish(0, 1), act(EntryKind.PIN, 2), act(EntryKind.PROMOTE, 0))
    assert (state.live, state.backup, state.versions[2].state) == (0, 3, State.PUBLISHED)
    state = appended(state, act(EntryKind.UNPIN))
    assert plan_promotion(state) is None and state.versions[2].turned_away
    assert plan_promotion(appended(state, act(EntryKind.APPROVE, 2))) == 2
