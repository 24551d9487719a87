"""What holds of every state of the control log, by name. A writer checks it before each exclusive create (infra/index/control_log.py).

The table of transitions (lifecycle.py) lists the effects of one entry. These exclude states that no sequence of entries may lead to, whatever a defect in
the fold does: an entry that was put can never be taken back. Pure.

    find_broken(state)            names of the invariants that a state breaks, with what breaks them
    find_broken_step(before, after)   the same for an entry, with what it may not change
"""

from collections.abc import Callable, Iterator

from schemas.index.control import ControlState
from schemas.index.lifecycle import FINAL, SERVABLE, State

_Find = Callable[[ControlState], str]
_FindStep = Callable[[ControlState, ControlState], str]


def _one_live(state: ControlState) -> str:
    return _differs("live", state.live, [v for v, s in state.versions.items() if s.state is State.LIVE])


def _one_backup(state: ControlState) -> str:
    return _differs("backup", state.backup, [v for v, s in state.versions.items() if s.state is State.BACKUP])


def _differs(name: str, named: int | None, found: list[int]) -> str:
    expected = [] if named is None else [named]
    return "" if found == expected else f"{name} is {named}, versions in that state are {found}"


def _served_is_whole(state: ControlState) -> str:
    chosen = state.pinned if state.pinned is not None else state.live
    if chosen is None:
        return ""
    status = state.versions.get(chosen)
    if status is None or status.state not in SERVABLE or status.revision < 0 or not status.manifest_sha256:
        return f"version {chosen} would be served, and has {'no entry' if status is None else f'state {status.state} and revision {status.revision}'}"
    return ""


def _wanted_is_new(state: ControlState) -> str:
    old = [s.version for s in state.versions.values() if s.wanted_revision is not None and s.wanted_revision <= s.revision]
    return f"versions {old} want a revision that is published" if old else ""


def _final_wants_nothing(state: ControlState) -> str:
    open_ones = [s.version for s in state.versions.values() if s.state in FINAL and s.wanted_revision is not None]
    return f"final versions {open_ones} want a revision" if open_ones else ""


def _next_number(before: ControlState, after: ControlState) -> str:
    return "" if after.next_number == before.next_number + 1 else f"{before.next_number} is followed by {after.next_number}"


def _identity_kept(before: ControlState, after: ControlState) -> str:
    if before.init is None:
        return "" if after.init is not None and after.index_id else "the first entry is no identity"
    same = after.init == before.init and after.index_id == before.index_id
    return "" if same else f"index {before.index_id} becomes {after.index_id}"


def _decided_grows(before: ControlState, after: ControlState) -> str:
    return "" if after.newest_decided >= before.newest_decided else f"{before.newest_decided} goes back to {after.newest_decided}"


def _revisions_grow(before: ControlState, after: ControlState) -> str:
    for version, status in after.versions.items():
        known = before.versions.get(version)
        if known is not None and (status.revision < known.revision or status.last_wanted < known.last_wanted):
            return f"version {version} goes from revision {known.revision} back to {status.revision}"
    return ""


def _final_stays(before: ControlState, after: ControlState) -> str:
    revived = [v for v, s in after.versions.items() if before.is_over(v) and s.state not in FINAL]
    return f"versions {revived} are over and come back" if revived else ""


def _only_final_forgotten(before: ControlState, after: ControlState) -> str:
    lost = [v for v, s in before.versions.items() if v not in after.versions and s.state not in FINAL]
    return f"versions {lost} are in use and forgotten" if lost else ""


# name -> check. Behind each: what a log that breaks it would do.
OF_STATE: dict[str, _Find] = {
    "one_live": _one_live,  # two workers' servers answer with two versions, and a rollback leaves one of them live
    "one_backup": _one_backup,  # a version that no entry can freeze is written to by every shard for good
    "served_is_whole": _served_is_whole,  # servers load a version without files
    "wanted_is_new": _wanted_is_new,  # seals of now become part of a manifest that exists, with other bytes
    "final_wants_nothing": _final_wants_nothing,  # files are removed while a build uses them
}
OF_STEP: dict[str, _FindStep] = {
    "next_number": _next_number,  # a gap, at which every reader stops
    "identity_kept": _identity_kept,  # rows of two indices mix
    "decided_grows": _decided_grows,  # a checkpoint record is decided twice, and two checkpoints share a version
    "revisions_grow": _revisions_grow,  # seals of a revision that was given up become part of a later one
    "final_stays": _final_stays,  # a version is served whose files are being removed
    "only_final_forgotten": _only_final_forgotten,  # files of a version in use are removed
}


def find_broken(state: ControlState) -> list[str]:
    """Invariants that a state breaks, as `name: what breaks it`; empty if it is sound."""
    return list(_named((name, find(state)) for name, find in OF_STATE.items()))


def find_broken_step(before: ControlState, after: ControlState) -> list[str]:
    """Invariants that an entry breaks, those of the state after it included."""
    return [*_named((name, find(before, after)) for name, find in OF_STEP.items()), *find_broken(after)]


def _named(found: Iterator[tuple[str, str]]) -> Iterator[str]:
    return (f"{name}: {what}" for name, what in found if what)
