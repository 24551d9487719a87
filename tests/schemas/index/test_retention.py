"""Files that may be removed: case by case, and the laws: no file that is named, none too early, and in the end every file without a use."""

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import IdKind
from schemas.index import retention
from schemas.index.control import ControlState, Entry, encode_entry, fold_entry
from schemas.index.item_sample import sample_path
from schemas.index.layout import Column, RowLayout
from schemas.index.lifecycle import FINAL, Cause, EntryKind, State
from schemas.index.manifest import Manifest, Part, PartFile, Seal, checkpoint_path, manifest_path, seal_path
from schemas.index.retention import Removal, RetentionRules, StoreContent, StoreFile, plan_drops, plan_freezes, plan_removals
from schemas.index.shard_snapshot import ShardSnapshot, snapshot_file_path, snapshot_manifest_path
from tests.schemas.index.entries import act, appended, lived, log, publish, want

GRACE = 100
RULES = RetentionRules(keep_versions=3, grace_ms=GRACE)
LAYOUT = RowLayout((Column("bid", "<f4", 1),), IdKind.INT64)
SHARDS = 2


def part(directory: str) -> Part:
    return Part(directory, (PartFile("000001.sst", 1, "c" * 64),), 1)


def manifest(version: int, revision: int, full: str = "a") -> Manifest:
    seals = tuple(
        Seal(
            n,
            part(f"versions/{version}/full/{n:05d}-{full}"),
            part(f"versions/{version}/{revision}/incremental/{n:05d}-a"),
            0,
            {},
            1,
            "d",
            "e",
            "cpu",
        )
        for n in range(SHARDS)
    )
    return Manifest(version, revision, "m", "f" * 64, "s", "l", "cpu", LAYOUT, seals, 0)


def files_of(one: Manifest) -> list[str]:
    parts = [p for s in one.seals for p in (s.full, s.incremental)]
    seals = [seal_path(one.version, one.revision, s.shard, "a") for s in one.seals]
    samples = [sample_path(one.version, one.revision, s.shard, s.data_digest) for s in one.seals]
    return [manifest_path(one.version, one.revision), *seals, *samples, *(f"{p.directory}/000001.sst" for p in parts)]


def snapshot(shard: int, unique: str, *parts: str) -> ShardSnapshot:
    return ShardSnapshot(shard, unique, "i", (PartFile("000001.sst", 1, "c" * 64),), {}, 1, parts)


def content(
    manifests: Iterable[Manifest] = (), snapshots: Iterable[ShardSnapshot] = (), others: Iterable[str] = (), put_ms: int = 10
) -> StoreContent:
    manifests, snapshots = list(manifests), list(snapshots)
    paths = {p for m in manifests for p in files_of(m)} | set(others)
    for one in snapshots:
        paths |= {snapshot_manifest_path(one.shard, one.unique), snapshot_file_path(one, "000001.sst")}
    times = {snapshot_manifest_path(s.shard, s.unique): put_ms + place for place, s in enumerate(snapshots)}
    files = [StoreFile(p, times.get(p, put_ms), 1) for p in sorted(paths)]
    return StoreContent(files, {(m.version, m.revision): m for m in manifests}, (), snapshots)


def removed(state: ControlState, what: StoreContent) -> dict[str, int]:
    return {r.path: r.at_ms for r in plan_removals(state, what, RULES)}


def seals_of(one: Manifest) -> set[str]:
    return {p for p in files_of(one) if "/seals/" in p}


def test_frozen_versions_beyond_the_newest_are_dropped_and_no_other() -> None:
    assert plan_drops(log(*lived(1, 2, 3)), RULES) == []
    assert plan_drops(log(*lived(1, 2, 3, 4, 5)), RULES) == [1, 2]


def test_files_of_a_version_that_the_fold_has_forgotten_go_and_those_of_one_that_is_not_decided_stay() -> None:
    state = log(*lived(1, 2), act(EntryKind.REJECT, 9))  # 3 and 4: as if they had been wanted, and forgotten since
    what = content([manifest(3, 0)], others=[seal_path(4, 0, 0, "a"), seal_path(10, 0, 0, "a")])
    due = removed(state, what)
    assert set(due) == {*files_of(manifest(3, 0)), seal_path(4, 0, 0, "a")} and set(due.values()) == {what.files[0].put_ms + GRACE}


@pytest.mark.parametrize("protect", [act(EntryKind.HOLD), want(1, 1, Cause.REVIVE)])
def test_while_held_nothing_is_dropped_nor_what_is_being_revived(protect: Entry) -> None:
    assert 1 not in plan_drops(log(*lived(1, 2, 3, 4, 5), protect), RULES)


def held(*versions: int) -> ControlState:
    """1 and 2 were live before a hold; the others were published since."""
    since = [entry for v in versions for entry in (want(v), publish(v, 0))]
    return log(*lived(1, 2), act(EntryKind.HOLD), *since)


def test_of_versions_published_in_a_hold_only_the_newest_get_increments_and_only_a_few_stay() -> None:
    assert plan_freezes(held(3, 4)) == [] and plan_freezes(held(3, 4, 5, 6)) == [3, 4]
    assert plan_freezes(
        log(*lived(1, 2), want(3), publish(3, 0), act(EntryKind.WITHHOLD, 3), want(4), publish(4, 0), want(5), publish(5, 0))
    ) == [3]
    approved = [want(3), publish(3, 0), act(EntryKind.APPROVE, 3), want(4), publish(4, 0), want(5), publish(5, 0)]
    assert plan_freezes(log(*lived(1, 2), act(EntryKind.HOLD), *approved)) == []
    wished = dataclasses.replace(want(3, 1, Cause.REVIVE), wish="promote")
    revived = appended(held(3, 4, 5, 6, 7), act(EntryKind.FREEZE, 3), wished, publish(3, 1))
    assert plan_freezes(revived) == [4, 5], "a freeze would end the operator's wish before a worker promotes it"
    frozen = log(
        *lived(1, 2),
        act(EntryKind.HOLD),
        *(e for v in (3, 4, 5, 6, 7) for e in (want(v), publish(v, 0))),
        act(EntryKind.FREEZE, 3),
        act(EntryKind.FREEZE, 4),
    )
    assert plan_drops(frozen, RULES) == [3, 4]  # 1 and 2 are older than the live version, and stay
    assert plan_drops(log(*lived(1, 2, 3, 4, 5), act(EntryKind.HOLD)), RULES) == []


def test_a_pinned_version_is_never_dropped() -> None:
    state = log(*lived(1, 2), act(EntryKind.PIN, 1), *lived(3, 4, 5, 6, 7))
    assert 1 not in plan_drops(state, RULES) and state.versions[2].state is State.FROZEN and 2 in plan_drops(state, RULES)


def test_what_the_current_manifest_names_stays_for_ever_and_its_seals_go_after_the_grace_period() -> None:
    one = manifest(1, 0)
    assert set(removed(log(*lived(1)), content([one]))) == seals_of(one)
    wanted = seal_path(1, 1, 0, "a")
    assert set(removed(log(*lived(1), want(1, 1, Cause.REVISE)), content([one], others=[wanted]))) == seals_of(one)


def test_parts_stay_while_the_published_manifest_is_not_among_the_files() -> None:
    """A list of the store may be older than the manifest, or the manifest is lost and will come back from a copy."""
    first, second = manifest(1, 0), manifest(1, 1)
    state = log(*lived(1), want(1, 1, Cause.REVISE), publish(1, 1))
    unlisted = [f for f in content([first, second]).files if f.path != manifest_path(1, 1)]
    due = removed(state, dataclasses.replace(content([first]), files=unlisted))
    assert not [p for p in due if "/full/" in p or "/incremental/" in p]


def test_a_replaced_revision_goes_a_grace_period_after_the_next_manifest_and_the_full_part_they_share_stays() -> None:
    first, second = manifest(1, 0), manifest(1, 1)
    state = log(*lived(1), want(1, 1, Cause.REVISE), publish(1, 1))
    what = content([first, second])
    late = [dataclasses.replace(f, put_ms=500) if f.path.startswith("versions/1/1/") else f for f in what.files]
    due = removed(state, dataclasses.replace(what, files=late))
    assert due[manifest_path(1, 0)] == due["versions/1/0/incremental/00000-a/000001.sst"] == 500 + GRACE
    assert due[sample_path(1, 0, 0, "e")] == 500 + GRACE
    assert not [p for p in due if "/full/" in p or (p.startswith("versions/1/1/") and "/seals/" not in p)]


def test_a_replay_goes_a_grace_period_after_its_newest_file_so_not_while_it_is_being_put() -> None:
    paths = {"replays/a/parts/00000/000001.sst": 500, "replays/a/plan.json": 10, "replays/b/plan.json": 20}
    files = [StoreFile(path, put_ms, 1) for path, put_ms in paths.items()]
    due = removed(log(*lived(1)), StoreContent(files, {}, (), []))
    assert due == {files[0].path: 500 + GRACE, files[1].path: 500 + GRACE, files[2].path: 20 + GRACE}


def test_the_files_of_a_dropped_version_go_a_grace_period_after_the_drop_manifest_first() -> None:
    state = log(*lived(1, 2, 3), act(EntryKind.DROP, 1, at_ms=1_000))
    one = manifest(1, 0)
    plan = plan_removals(state, content([one], others=[checkpoint_path(f"{1:064x}"), checkpoint_path(f"{2:064x}")]), RULES)
    assert plan[0].path == manifest_path(1, 0)
    assert {r.path for r in plan} == {*files_of(one), checkpoint_path(f"{1:064x}")} and {r.at_ms for r in plan} == {1_000 + GRACE}


def test_what_a_crashed_build_left_goes_after_the_grace_period_but_not_while_a_build_is_open() -> None:
    orphan = "versions/1/full/00001-dead/000001.sst"
    assert removed(log(*lived(1)), content([manifest(1, 0)], others=[orphan]))[orphan] == 10 + GRACE
    assert orphan not in removed(log(want(1)), content(others=[orphan]))
    assert removed(log(want(1), act(EntryKind.ABORT, 1, at_ms=700)), content(others=[orphan]))[orphan] == 700 + GRACE


def test_a_part_that_only_a_shard_or_a_snapshot_uses_stays() -> None:
    directory = "versions/1/full/00001-mine"
    what = content([manifest(1, 0)], others=[f"{directory}/000001.sst"])
    assert f"{directory}/000001.sst" not in removed(log(*lived(1)), dataclasses.replace(what, used={directory}))
    named = content([manifest(1, 0)], [snapshot(1, "a", directory)], [f"{directory}/000001.sst"])
    assert f"{directory}/000001.sst" not in removed(log(*lived(1)), named)


def test_the_two_newest_snapshots_of_a_shard_stay_and_half_of_one_goes() -> None:
    half = "snapshots/00000/half/files/000001.sst"
    what = content(snapshots=[snapshot(0, "a", "elsewhere/x"), snapshot(0, "b"), snapshot(0, "c", ""), snapshot(1, "d")], others=[half])
    due = removed(log(), what)
    assert set(due) == {"snapshots/00000/a/snapshot.json", "snapshots/00000/a/files/000001.sst", half}
    assert due["snapshots/00000/a/snapshot.json"] == 12 + GRACE  # c pushed it out
    assert due[half] == 10 + GRACE  # its writer may still be putting it


def test_a_file_that_a_newer_snapshot_links_again_does_not_keep_an_older_snapshot() -> None:
    """All names of a linked file have the time of the last link."""
    what = content(snapshots=[snapshot(0, unique) for unique in "abc"])
    linked = [dataclasses.replace(f, put_ms=9_000) if f.path.endswith(".sst") else f for f in what.files]
    due = removed(log(), dataclasses.replace(what, files=linked))
    assert due == {"snapshots/00000/a/snapshot.json": 12 + GRACE, "snapshots/00000/a/files/000001.sst": 12 + GRACE}
    left = [f for f in linked if "/a/" not in f.path or f.path.endswith(".sst")]  # a kill after the manifest
    rest = [StoreFile("snapshots/00000/a/files/CURRENT", 10, 1), *left]
    half = removed(log(), dataclasses.replace(what, files=rest, snapshots=what.snapshots[1:]))
    assert half == {"snapshots/00000/a/files/CURRENT": 10 + GRACE, "snapshots/00000/a/files/000001.sst": 10 + GRACE}


def test_what_is_not_known_stays() -> None:
    strange = ["control/000000000", "notes.txt", "versions/77/full/00000-a/000001.sst", "versions/1/readme"]
    assert removed(log(*lived(1)), content(others=strange)) == {}


# --- laws ------------------------------------------------------------------------------------------------------------

_KINDS = [k for k in EntryKind if k is not EntryKind.INIT]
STEPS = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 3), st.integers(0, 2), st.sampled_from(list(Cause))), max_size=40)
TIMES = st.integers(0, 1_000)


def state_of(steps: list[tuple[EntryKind, int, int, Cause]]) -> ControlState:
    """Two versions, and then whatever was written, be it refused."""
    state = log(*lived(0, 1))
    for n, (k, v, r, c) in enumerate(steps):
        one = Entry(k, 50 + n, version=v, revision=r, cause=c if k is EntryKind.WANT else "", checkpoint_sha256=f"{v:064x}")
        state = fold_entry(state, state.next_number, encode_entry(one))
    return state


@st.composite
def stores(draw: st.DrawFn) -> tuple[ControlState, StoreContent]:
    state = state_of(draw(STEPS))
    made = [
        manifest(v, r, draw(st.sampled_from("ab")))
        for v, s in state.versions.items()
        for r in range(s.revision + 1 + (s.wanted_revision is not None))
    ]
    snapshots = [snapshot(n, u, f"versions/0/full/{n:05d}-{draw(st.sampled_from('abc'))}") for n in range(SHARDS) for u in "xyz"]
    orphans = [f"versions/{v}/full/{n:05d}-c/000001.sst" for v in range(3) for n in range(SHARDS)]
    what = content(made, snapshots, [*orphans, *(checkpoint_path(f"{v:064x}") for v in range(4))])
    files = [dataclasses.replace(f, put_ms=draw(TIMES)) for f in what.files]
    return state, dataclasses.replace(what, files=files)


def named_by_who_stays(state: ControlState, what: StoreContent) -> set[str]:
    """Directories that a reader of any version that is not over, or a new owner of a shard, may need. Written without the plan."""
    current = [m for (v, r), m in what.manifests.items() if state.versions[v].state not in FINAL and state.versions[v].revision == r]
    needed = {p.directory for m in current for s in m.seals for p in (s.full, s.incremental)}
    put = {f.path: f.put_ms for f in what.files}
    for n in range(SHARDS):
        of_shard = [s for s in what.snapshots if s.shard == n]
        newest = sorted(of_shard, key=lambda s: (-put[snapshot_manifest_path(n, s.unique)], s.unique))[:2]
        needed |= {s.directory for s in newest}
        needed |= {d for s in newest for d in s.parts if state.versions[0].state not in FINAL}
    return needed


def find_harm(state: ControlState, what: StoreContent, removals: list[Removal]) -> list[str]:
    needed = named_by_who_stays(state, what)
    current = {
        path(v, s.revision)
        for path in (manifest_path, lambda v, r: sample_path(v, r, 0, "e"))
        for v, s in state.versions.items()
        if s.state not in FINAL and s.revision >= 0
    }
    return [r.path for r in removals if r.path in current or any(r.path.startswith(f"{d}/") for d in needed)]


@given(stores())
def test_nothing_that_somebody_names_is_ever_removed_and_nothing_before_its_grace_period(made: tuple[ControlState, StoreContent]) -> None:
    state, what = made
    removals = plan_removals(state, what, RULES)
    assert find_harm(state, what, removals) == []
    for removal in removals:
        alike = removal.path.removesuffix("/snapshot.json").removesuffix("/files/000001.sst")  # files of one snapshot
        assert removal.at_ms >= min(f.put_ms for f in what.files if f.path.startswith(alike)) + GRACE


@given(stores(), st.data())
def test_removing_some_and_planning_again_ends_at_the_same_files(made: tuple[ControlState, StoreContent], data: st.DataObject) -> None:
    """A kill between any two removals: the rest is found again, and the kept files do not depend on it."""
    state, what = made
    kept = {f.path for f in what.files} - {r.path for r in plan_removals(state, what, RULES)}
    while removals := plan_removals(state, what, RULES):
        gone = {r.path for r in removals[: data.draw(st.integers(1, len(removals)))]}
        files = [f for f in what.files if f.path not in gone]
        manifests = {k: m for k, m in what.manifests.items() if manifest_path(*k) not in gone}
        snapshots = [s for s in what.snapshots if snapshot_manifest_path(s.shard, s.unique) not in gone]
        what = dataclasses.replace(what, files=files, manifests=manifests, snapshots=snapshots)
    assert {f.path for f in what.files} <= kept
    assert find_harm(state, what, []) == [] and named_by_who_stays(state, what)


def test_a_plan_that_forgets_the_full_parts_of_manifests_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = retention._Plan._name
    monkeypatch.setattr(retention._Plan, "_name", lambda self, ds, expiry: right(self, [d for d in ds if "/full/" not in d], expiry))
    with pytest.raises(AssertionError):
        test_nothing_that_somebody_names_is_ever_removed_and_nothing_before_its_grace_period()
