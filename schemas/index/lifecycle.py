"""The life of a version, as a table: state and entry to the next state. `control.py` folds the log with it.

    wanted -> published -> live -> backup -> frozen -> removed          rejected, aborted and removed are final

*Building* and *sealed* are facts of single shards, not states. The effects of an entry on *other* versions are in control.py. Wanted, published, live and
backup versions receive increments and deltas. A frozen version receives none. It comes back only through a new revision (cause `revive`).
After a failed canary comes `withhold`: the version stays published, and is not promoted automatically until `approve` (streams/versions/promotion.py).
Invariant: a pair of state and entry that is not in the table is refused, by name.
"""

import enum

from schemas.errors import Incompatible


class State(enum.StrEnum):
    """Where a version stands."""

    NONE = "none"
    WANTED = "wanted"
    PUBLISHED = "published"
    LIVE = "live"
    BACKUP = "backup"
    FROZEN = "frozen"
    REMOVED = "removed"
    REJECTED = "rejected"
    ABORTED = "aborted"


class EntryKind(enum.StrEnum):
    """The kinds of control entries. In the table `want` is split by its cause, because the cause decides in which states it is possible."""

    INIT = "init"
    WANT = "want"
    REJECT = "reject"
    PUBLISH = "publish"
    WITHHOLD = "withhold"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    HOLD = "hold"
    RELEASE = "release"
    PIN = "pin"
    UNPIN = "unpin"
    APPROVE = "approve"
    ABORT = "abort"
    FREEZE = "freeze"
    DROP = "drop"


class Cause(enum.StrEnum):
    """Why a revision is wanted."""

    CHECKPOINT = "checkpoint"
    REVISE = "revise"
    REVIVE = "revive"
    ADOPT = "adopt"


class Wish(enum.StrEnum):
    """What an operator asked of a frozen version: it becomes live as soon as it is revived. A rollback holds from the moment it is asked for."""

    NONE = ""
    PROMOTE = "promote"
    ROLLBACK = "rollback"


RECEIVES_INCREMENTS = frozenset({State.WANTED, State.PUBLISHED, State.LIVE, State.BACKUP})
SERVABLE = frozenset({State.PUBLISHED, State.LIVE, State.BACKUP})
FINAL = frozenset({State.REMOVED, State.REJECTED, State.ABORTED})

# (state, entry, cause of a want or "") -> state
_TABLE: dict[tuple[State, EntryKind, str], State] = {
    (State.NONE, EntryKind.WANT, Cause.CHECKPOINT): State.WANTED,
    (State.NONE, EntryKind.WANT, Cause.ADOPT): State.WANTED,
    (State.NONE, EntryKind.REJECT, ""): State.REJECTED,
    (State.WANTED, EntryKind.PUBLISH, ""): State.PUBLISHED,
    (State.WANTED, EntryKind.ABORT, ""): State.ABORTED,
    (State.PUBLISHED, EntryKind.WANT, Cause.REVISE): State.PUBLISHED,
    (State.PUBLISHED, EntryKind.PUBLISH, ""): State.PUBLISHED,
    (State.PUBLISHED, EntryKind.WITHHOLD, ""): State.PUBLISHED,
    (State.PUBLISHED, EntryKind.APPROVE, ""): State.PUBLISHED,
    (State.PUBLISHED, EntryKind.PROMOTE, ""): State.LIVE,
    (State.PUBLISHED, EntryKind.PIN, ""): State.PUBLISHED,
    (State.PUBLISHED, EntryKind.FREEZE, ""): State.FROZEN,
    (State.LIVE, EntryKind.WANT, Cause.REVISE): State.LIVE,
    (State.LIVE, EntryKind.PUBLISH, ""): State.LIVE,
    (State.LIVE, EntryKind.PIN, ""): State.LIVE,
    (State.BACKUP, EntryKind.WANT, Cause.REVISE): State.BACKUP,
    (State.BACKUP, EntryKind.PUBLISH, ""): State.BACKUP,
    (State.BACKUP, EntryKind.PROMOTE, ""): State.LIVE,
    (State.BACKUP, EntryKind.ROLLBACK, ""): State.LIVE,
    (State.BACKUP, EntryKind.PIN, ""): State.BACKUP,
    (State.BACKUP, EntryKind.FREEZE, ""): State.FROZEN,
    (State.FROZEN, EntryKind.WANT, Cause.REVIVE): State.FROZEN,
    (State.FROZEN, EntryKind.PUBLISH, ""): State.PUBLISHED,
    (State.FROZEN, EntryKind.DROP, ""): State.REMOVED,
}

# What the promotion of another version does to this one; a pinned backup becomes published instead, because it is still served.
MOVED_BY_PROMOTE = (
    (State.LIVE, State.BACKUP),
    (State.BACKUP, State.FROZEN),
    (State.BACKUP, State.PUBLISHED),
    (State.PUBLISHED, State.FROZEN),
)


# An operator's choices for a version in a state, for the message of a refusal. Most entries are the system's own, and no commands.
_NEXT_STEP = {
    State.NONE: "there is no such version: `aif index list`",
    State.WANTED: "it is being built: wait until it is published (`aif status`), or end that with `aif index abort`",
    State.PUBLISHED: "possible are `aif index promote`, `approve`, `pin` and `revise`",
    State.LIVE: "possible are `aif index pin`, `aif index revise`, and `aif index rollback`, which goes back to the version before",
    State.BACKUP: "possible are `aif index promote`, `rollback`, `pin` and `revise`",
    State.FROZEN: "its rows stand still: `aif index promote` lets them catch up and makes it live, then it can be pinned; `aif index drop` removes it",
    **dict.fromkeys(FINAL, "nothing is possible any more: publish its checkpoint again, which makes a new version"),
}


def next_state(state: State, entry: EntryKind, cause: str = "", name: str = "a version") -> State:
    """The state of a version after an entry that names it; `cause` counts for a `want` alone. Raises Incompatible (`refused_transition`), which has
    its `name` and the possible commands."""
    after = _TABLE.get((state, entry, cause if entry is EntryKind.WANT else ""))
    if after is None:
        raise Incompatible("refused_transition", f"{entry} is not possible for {name}, which is {state}; {_NEXT_STEP[state]}")
    return after


def transitions() -> list[tuple[State, str, State]]:
    """The table as (state, entry, state) for diagrams and tests."""
    return [(s, f"{e} ({c})" if c else str(e), t) for (s, e, c), t in _TABLE.items()]


def describe_diagram() -> str:
    """The table as a Mermaid state diagram, for ARCHITECTURE.md, with what entries that name *another* version do (control.py)."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for before, entry, after in transitions():
        arrows.setdefault((before, after), []).append(entry)
    drawn = [f"    {_drawn(before)} --> {after}: {', '.join(entries)}" for (before, after), entries in arrows.items()]
    drawn += [f"    {before} --> {after}: promote of another" for before, after in MOVED_BY_PROMOTE]
    drawn.append(f"    {State.WANTED} --> {State.ABORTED}: a newer one is wanted")
    drawn += [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(["stateDiagram-v2", *drawn])


def _drawn(state: State) -> str:
    return "[*]" if state is State.NONE else str(state)
