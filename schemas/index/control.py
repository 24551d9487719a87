"""The control log: the pure fold that turns a log into the wanted, live and pinned versions (protocol B1 to B5).

    fold_entry(state, number, raw bytes) -> state        the state after one more entry
    plan_entry(state, entry) -> bytes                    an entry checked against the fold, ready to be put at `state.next_number`

Invariants:
- The log is the only truth about versions. Any worker may append; whoever finds its number taken reads on and decides again.
- An entry of a kind that this code does not know sets `unknown_entry`: reconciling stops, and serving goes on.
- A refused entry changes nothing and is listed in `refused`. Two writers that race cannot make one; a broken tool can.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import Corrupted, Incompatible
from schemas.index.control_entry import Entry, Init, decode_entry, encode_entry
from schemas.index.digest import checksum
from schemas.index.lifecycle import FINAL, RECEIVES_INCREMENTS, Cause, EntryKind, State, Wish, next_state
from schemas.limits import CONTROL_ENTRY_BYTES_MAX
from schemas.token import VersionToken

__all__ = ["ControlState", "Entry", "Init", "VersionStatus", "decode_entry", "encode_entry", "fold_entry", "plan_entry"]

FINAL_KEPT = 128  # versions, so that people see what became of the last ones
REFUSED_KEPT = 100  # entries


@dataclass(frozen=True)
class VersionStatus:
    """One version in the fold. Times are in milliseconds since 1970, 0 where it has not happened.

    - reason, by: why it is in its state, and who decided so
    - cause: why its newest revision was wanted
    - wanted_revision: the revision that is wanted and not yet published; None if absent
    - revision: the last published revision, -1 before the first
    - ended_at_ms: when it became removed, rejected or aborted
    - last_wanted: the highest revision that was ever wanted. A number is never used again: the seals of a revision that was given up are of another time.
      They must not become part of one that is wanted after a freeze
    - frozen_revision: its revision when it was last frozen. A reader that has loaded this revision or an older one has missed changes since
    - withheld: its canary failed
    - approved: an operator has overruled its canary, now or beforehand
    - turned_away: it was live and was rolled back from, or an older one was promoted while it was the pinned backup; nothing brings it back by itself
    - wish: what happens to it once its revival is published
    """

    version: int
    state: State
    checkpoint_sha256: str = ""
    model_id: str = ""
    feature_schema: str = ""
    encoder_fingerprint: str = ""
    label: str = ""
    reason: str = ""
    by: str = ""
    cause: str = ""
    wanted_revision: int | None = None
    wanted_at_ms: int = 0
    revision: int = -1
    manifest_sha256: str = ""
    published_at_ms: int = 0
    ended_at_ms: int = 0
    last_wanted: int = -1
    frozen_revision: int = -1
    withheld: bool = False
    approved: bool = False
    turned_away: bool = False
    wish: str = ""

    @property
    def next_revision(self) -> int:
        """The revision that may be wanted next."""
        return max(self.revision, self.last_wanted) + 1

    @property
    def is_reviving(self) -> bool:
        """Whether a frozen version is on its way back: its shards write rows again, no server serves it yet (B11)."""
        return self.state is State.FROZEN and self.wanted_revision is not None

    @property
    def token(self) -> VersionToken:
        """Token of the last published revision."""
        return VersionToken(self.version, self.revision, self.manifest_sha256[:8])


@dataclass(frozen=True)
class ControlState:
    """The fold of a log up to before entry `next_number`.

    - index_id: which index this is: a digest of its first entry, which says when and by whom it was begun
    - versions: by number: all that are not final, and the newest of the final ones (at least `FINAL_KEPT` of them, or all)
    - held: nothing is promoted by itself; `held_why` says who holds and why, and is empty without a hold
    - unknown_entry: number and kind of an entry that this code does not know, empty if absent
    - refused: number and reason of the newest entries that were refused, at most `REFUSED_KEPT`
    """

    next_number: int = 0
    init: Init | None = None
    index_id: str = ""
    versions: Mapping[int, VersionStatus] = field(default_factory=dict)
    live: int | None = None
    backup: int | None = None
    pinned: int | None = None
    held: bool = False
    held_why: str = ""
    unknown_entry: str = ""
    refused: tuple[str, ...] = ()

    @property
    def current(self) -> VersionStatus | None:
        """What servers should serve: the pinned version, else the live one."""
        chosen = self.pinned if self.pinned is not None else self.live
        return None if chosen is None else self.versions[chosen]

    @functools.cached_property
    def receiving(self) -> tuple[VersionStatus, ...]:
        """Versions for which shards write increments and deltas, oldest first. A wanted version is one once it builds, a frozen one while it revives."""
        building = self.building
        return tuple(
            s
            for v, s in sorted(self.versions.items())
            if (s.state in RECEIVES_INCREMENTS and (s.state is not State.WANTED or s is building)) or s.is_reviving
        )

    @property
    def building(self) -> VersionStatus | None:
        """The one new version that is built: the oldest of those that are wanted (B4). None if absent."""
        return min((s for s in self.versions.values() if s.state is State.WANTED), key=lambda s: s.version, default=None)

    @property
    def newest_decided(self) -> int:
        """The highest version that was wanted or rejected, -1 before the first. Checkpoint records are read from the offset after it (B3)."""
        return max(self.versions, default=-1)

    def is_over(self, version: int) -> bool:
        """Whether a version is final. One that the fold has forgotten is final too: versions are decided in their order, and only final ones are forgotten."""
        status = self.versions.get(version)
        return version <= self.newest_decided if status is None else status.state in FINAL


Effect = Callable[[ControlState, Entry], ControlState]


def fold_entry(state: ControlState, number: int, raw: bytes) -> ControlState:
    """The state after entry `number`. Raises Corrupted: `bad_control_entry` if the bytes are no entry, `control_log_gap` if the number is not the next."""
    if number != state.next_number:
        raise Corrupted("control_log_gap", f"entry {number} follows {state.next_number - 1}; an entry of the control log is missing")
    after = dataclasses.replace(state, next_number=number + 1)
    try:
        after = _forget_final(_apply(after, decode_entry(raw)))
        return after if after.init is state.init else dataclasses.replace(after, index_id=checksum(raw))
    except Incompatible as error:
        if error.code == "unknown_entry_kind":
            return dataclasses.replace(after, unknown_entry=f"{number}: {error.message}")
        return dataclasses.replace(after, refused=(*state.refused, f"{number}: {error.message}")[-REFUSED_KEPT:])


def plan_entry(state: ControlState, entry: Entry) -> bytes:
    """The bytes of an entry after the same checks as the fold. Raises Incompatible, with the possible entries.

    An entry that no reader would take (`entry_too_large`) is refused here too: once it has its number, it blocks the log permanently.
    """
    if state.unknown_entry:
        raise Incompatible(
            "unknown_entry_kind", f"the control log holds an entry this code does not know ({state.unknown_entry}); upgrade before writing"
        )
    _apply(state, entry)
    raw = encode_entry(entry)
    if len(raw) > CONTROL_ENTRY_BYTES_MAX:
        raise Incompatible(
            "entry_too_large", f"{entry.kind} takes {len(raw)} bytes, an entry has at most {CONTROL_ENTRY_BYTES_MAX}; shorten the reason"
        )
    return raw


def _apply(state: ControlState, entry: Entry) -> ControlState:
    if state.init is None and entry.kind is not EntryKind.INIT:
        raise Incompatible(
            "no_index", f"{entry.kind} before init: the index store is empty; start a worker or run `aif topics apply` first"
        )
    return _EFFECTS[entry.kind](state, entry)


def _forget_final(state: ControlState) -> ControlState:
    """The state without its oldest final versions. They are forgotten many at a time, because that copies the state."""
    if len(state.versions) < 2 * FINAL_KEPT:
        return state
    final = sorted(v for v, status in state.versions.items() if status.state in FINAL)
    if len(final) < 2 * FINAL_KEPT - 1:
        return state
    forgotten = set(final[:-FINAL_KEPT])
    return dataclasses.replace(state, versions={v: status for v, status in state.versions.items() if v not in forgotten})


def _set(state: ControlState, status: VersionStatus, **fields: Any) -> ControlState:
    return dataclasses.replace(state, versions={**state.versions, status.version: status}, **fields)


def _status(state: ControlState, entry: Entry) -> VersionStatus:
    return state.versions.get(entry.version) or VersionStatus(entry.version, State.NONE)


def _moved(state: ControlState, entry: Entry) -> VersionStatus:
    """The entry's version in its next state, by the table."""
    status = _status(state, entry)
    if entry.version < 0 or (status.state is State.NONE and entry.kind not in (EntryKind.WANT, EntryKind.REJECT)):
        raise Incompatible(
            "unknown_version",
            f"{entry.kind} names version {entry.version}, which the index does not have; it has {sorted(state.versions)[-20:]}: `aif index list` shows them",
        )
    after = next_state(status.state, entry.kind, entry.cause, f"version {entry.version}")
    return dataclasses.replace(status, state=after, ended_at_ms=entry.at_ms if after in FINAL else 0)


def _init(state: ControlState, entry: Entry) -> ControlState:
    if state.init is not None or entry.init is None:
        raise Incompatible("already_init", "the index has an identity already; another number of shards or id kind is another index store")
    return dataclasses.replace(state, init=entry.init)


def _want(state: ControlState, entry: Entry) -> ControlState:
    status = _moved(state, entry)
    if entry.revision != status.next_revision or status.wanted_revision is not None:
        raise Incompatible(
            "wrong_revision",
            f"want {entry.version}.{entry.revision}: published is {status.revision}, wanted is {status.wanted_revision}, "
            f"the next to be wanted is {status.next_revision}",
        )
    status = dataclasses.replace(status, last_wanted=entry.revision)
    if entry.cause not in (Cause.REVISE, Cause.REVIVE):
        _check_in_order(state, entry)
    if entry.cause in (Cause.REVISE, Cause.REVIVE):
        status = dataclasses.replace(status, wanted_revision=entry.revision, wanted_at_ms=entry.at_ms, cause=entry.cause)
        return _wish(_set(state, status), status, entry) if entry.wish else _set(state, status)
    status = dataclasses.replace(
        status,
        wanted_revision=0,
        wanted_at_ms=entry.at_ms,
        **{f: getattr(entry, f) for f in ("cause", "checkpoint_sha256", "model_id", "feature_schema", "encoder_fingerprint", "label")},
    )
    return _set(_abort_overtaken(state, entry.version, entry.at_ms), status)


def _check_in_order(state: ControlState, entry: Entry) -> None:
    """A new version has a number above all decided ones. A lower number that is not in the fold was forgotten, and is never used again."""
    if entry.version < state.newest_decided:
        raise Incompatible(
            "late_version",
            f"{entry.kind} {entry.version}: {state.newest_decided} is decided already, and versions are decided in their order; publish its "
            "checkpoint again, which makes a new version",
        )


def _reject(state: ControlState, entry: Entry) -> ControlState:
    status = _moved(state, entry)
    _check_in_order(state, entry)
    return _set(state, _explained(status, entry))


def _wish(state: ControlState, status: VersionStatus, entry: Entry) -> ControlState:
    """The newest wish replaces older ones. A wish to roll back holds at once: no newer version may go live meanwhile."""
    if entry.cause != Cause.REVIVE or entry.wish not in set(Wish):
        raise Incompatible("unknown_wish", f"wish {entry.wish!r} for cause {entry.cause!r}; a revival may be wished to be {[*Wish]}")
    state = _without_wishes(_hold(state, entry) if entry.wish == Wish.ROLLBACK else state)
    return _set(state, _explained(dataclasses.replace(status, wish=entry.wish), entry, f"{entry.wish} is wished"))


def _without_wishes(state: ControlState) -> ControlState:
    """A newer decision replaces earlier wishes."""
    return dataclasses.replace(state, versions={v: dataclasses.replace(s, wish="") if s.wish else s for v, s in state.versions.items()})


def _explained(status: VersionStatus, entry: Entry, otherwise: str = "") -> VersionStatus:
    return dataclasses.replace(status, reason=entry.reason or otherwise, by=entry.by)


def _abort_overtaken(state: ControlState, newest: int, at_ms: int) -> ControlState:
    """Of the new versions that wait behind the one that builds, only the newest is kept (B4)."""
    waiting = [s for s in state.versions.values() if s.state is State.WANTED and s is not state.building and s.version < newest]
    aborted = {
        s.version: dataclasses.replace(s, state=State.ABORTED, wanted_revision=None, reason=f"overtaken by {newest}", ended_at_ms=at_ms)
        for s in waiting
    }
    return dataclasses.replace(state, versions={**state.versions, **aborted})


def _judged(otherwise: str = "", **fields: Any) -> Effect:
    """Only the table's move, with these fields of the version and the entry's reason."""
    return lambda state, entry: _set(state, _explained(dataclasses.replace(_moved(state, entry), **fields), entry, otherwise))


def _publish(state: ControlState, entry: Entry) -> ControlState:
    status = _status(state, entry)
    if status.wanted_revision != entry.revision:
        raise Incompatible("not_wanted", f"publish {entry.version}.{entry.revision}: wanted is {status.wanted_revision}")
    moved = dataclasses.replace(
        _moved(state, entry),
        revision=entry.revision,
        manifest_sha256=entry.manifest_sha256,
        published_at_ms=entry.at_ms,
        wanted_revision=None,
    )
    return _set(state, moved)


def _promote(state: ControlState, entry: Entry) -> ControlState:
    """v becomes live, the former live version backup, the former backup and every older published version frozen.

    Never the pinned one: a pinned former backup is published, so it is served and written on, and there is one backup.
    """
    versions = dict(state.versions)
    promoted = _explained(_moved(state, entry), entry, _status(state, entry).wish and f"{_status(state, entry).wish} was wished")
    versions[entry.version] = dataclasses.replace(promoted, withheld=False, turned_away=False, wish="")
    backup = state.live
    for v, status in state.versions.items():
        overtaken = status.state is State.PUBLISHED and v < entry.version
        if v not in (entry.version, backup, state.pinned) and (status.state is State.BACKUP or overtaken):
            versions[v] = _frozen(status)
        elif v == state.pinned and v not in (entry.version, backup) and status.state is State.BACKUP:
            # Published and newer than the live version, it would be promoted by itself as soon as it is unpinned.
            versions[v] = dataclasses.replace(status, state=State.PUBLISHED, turned_away=status.turned_away or v > entry.version)
    if backup is not None:
        versions[backup] = _left(state, state.versions[backup], entry)
    return dataclasses.replace(state, versions=versions, live=entry.version, backup=backup)


def _left(state: ControlState, former: VersionStatus, entry: Entry) -> VersionStatus:
    """The live version that becomes the backup; of one that was rolled back from it is known for good."""
    former = dataclasses.replace(former, state=State.BACKUP)
    if entry.kind is not EntryKind.ROLLBACK and _status(state, entry).wish != Wish.ROLLBACK:
        return former
    return dataclasses.replace(former, turned_away=True, reason=f"rolled back from: {entry.reason or 'no reason given'}", by=entry.by)


def _frozen(status: VersionStatus) -> VersionStatus:
    return dataclasses.replace(status, state=State.FROZEN, wanted_revision=None, frozen_revision=status.revision, wish="")


def _rollback(state: ControlState, entry: Entry) -> ControlState:
    """As promote, and nothing is promoted by itself until a release."""
    return _hold(_promote(state, entry), entry)


def _pin(state: ControlState, entry: Entry) -> ControlState:
    return _without_wishes(_set(state, _moved(state, entry), pinned=entry.version))


def _plain(state: ControlState, entry: Entry) -> ControlState:
    """freeze, drop: only the table's move and the reason; not for the version that is served."""
    if entry.version == state.pinned:
        raise Incompatible("pinned", f"{entry.kind} {entry.version}: the version is pinned; unpin it first")
    moved = _explained(dataclasses.replace(_moved(state, entry), wanted_revision=None, wish=""), entry)
    moved = _frozen(moved) if moved.state is State.FROZEN else moved
    return _set(state, moved, backup=None if state.backup == entry.version else state.backup)


def _hold(state: ControlState, entry: Entry) -> ControlState:
    why = f"{entry.kind if entry.kind is not EntryKind.WANT else entry.wish} by {entry.by or 'somebody'}"
    return _without_wishes(dataclasses.replace(state, held=True, held_why=f"{why}: {entry.reason}" if entry.reason else why))


_EFFECTS: dict[EntryKind, Effect] = {
    EntryKind.INIT: _init,
    EntryKind.WANT: _want,
    EntryKind.REJECT: _reject,
    EntryKind.PUBLISH: _publish,
    EntryKind.PROMOTE: _promote,
    EntryKind.ROLLBACK: _rollback,
    EntryKind.PIN: _pin,
    EntryKind.WITHHOLD: _judged(withheld=True, approved=False),
    EntryKind.APPROVE: _judged("approved", withheld=False, approved=True),
    EntryKind.ABORT: _judged("aborted", wanted_revision=None),
    EntryKind.FREEZE: _plain,
    EntryKind.DROP: _plain,
    EntryKind.HOLD: _hold,
    EntryKind.RELEASE: lambda state, _: dataclasses.replace(state, held=False, held_why=""),
    EntryKind.UNPIN: lambda state, _: dataclasses.replace(state, pinned=None),
}

assert set(_EFFECTS) == set(EntryKind)
