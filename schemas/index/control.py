"""The control log: entries as JSON, and the pure fold that turns a log into what is wanted, live, pinned (protocol B1 to B5).

    fold_entry(state, number, raw bytes) -> state        one entry
    plan_entry(state, entry) -> bytes                    checked against the fold, ready to be put at `state.next_number`

The log is the only truth about versions. Any worker may append; whoever loses the number reads on and decides again.
An entry kind this code does not know sets `unknown_entry`: reconciling stops, serving goes on. A refused entry (two writers that
raced past each other cannot make one, a broken tool can) changes nothing and is listed in `refused`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import Corrupted, Incompatible
from schemas.ids import IdKind
from schemas.index.layout import FORMAT
from schemas.index.lifecycle import FINAL, RECEIVES_INCREMENTS, Cause, EntryKind, State, next_state
from schemas.limits import CONTROL_ENTRY_BYTES_MAX
from schemas.token import VersionToken


@dataclass(frozen=True)
class Init:
    """The identity of an index (A1). Another N, id kind or topic is another index. topic_ids may be empty where a broker has none."""

    shards: int
    user_partitions: int
    id_kind: IdKind
    topics: Mapping[str, str]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class Entry:
    """One decision. Which fields matter depends on `kind`:

    want     version, revision, cause, checkpoint_sha256, model_id, feature_schema, encoder_fingerprint, label
    reject   version, reason (with its code first)
    publish  version, revision, manifest_sha256
    promote, rollback, pin, freeze, drop, abort, approve   version
    hold, release, unpin   nothing
    init     init
    """

    kind: EntryKind
    at_ms: int
    by: str = ""
    version: int = -1
    revision: int = 0
    cause: str = ""
    reason: str = ""
    checkpoint_sha256: str = ""
    model_id: str = ""
    feature_schema: str = ""
    encoder_fingerprint: str = ""
    label: str = ""
    manifest_sha256: str = ""
    init: Init | None = None


@dataclass(frozen=True)
class VersionStatus:
    """One version in the fold. `wanted_revision` is set while a revision is wanted and not yet published; `ended_at_ms` once it is final.

    last_wanted: the highest revision ever wanted. A number is never used again: seals of one that was given up are of another time, and
    must not become part of a revision that is wanted after a freeze.
    frozen_revision: the revision it had when it was last frozen; whoever loaded that one or an older one has missed changes since.
    """

    version: int
    state: State
    checkpoint_sha256: str = ""
    model_id: str = ""
    feature_schema: str = ""
    encoder_fingerprint: str = ""
    label: str = ""
    reason: str = ""
    cause: str = ""
    wanted_revision: int | None = None
    wanted_at_ms: int = 0
    revision: int = -1
    manifest_sha256: str = ""
    published_at_ms: int = 0
    ended_at_ms: int = 0
    last_wanted: int = -1
    frozen_revision: int = -1

    @property
    def next_revision(self) -> int:
        """The revision that may be wanted next."""
        return max(self.revision, self.last_wanted) + 1

    @property
    def is_reviving(self) -> bool:
        """Whether a frozen version is on its way back: its shards write rows again, nobody serves it yet (B11)."""
        return self.state is State.FROZEN and self.wanted_revision is not None

    @property
    def token(self) -> VersionToken:
        """Token of the last published revision."""
        return VersionToken(self.version, self.revision, self.manifest_sha256[:8])


@dataclass(frozen=True)
class ControlState:
    """The fold of a log up to `next_number`."""

    next_number: int = 0
    init: Init | None = None
    versions: Mapping[int, VersionStatus] = field(default_factory=dict)
    live: int | None = None
    backup: int | None = None
    pinned: int | None = None
    held: bool = False
    unknown_entry: str = ""
    refused: tuple[str, ...] = ()

    @property
    def current(self) -> VersionStatus | None:
        """What servers should serve: the pinned version, else the live one."""
        chosen = self.pinned if self.pinned is not None else self.live
        return None if chosen is None else self.versions[chosen]

    @property
    def receiving(self) -> tuple[VersionStatus, ...]:
        """Versions for which shards write increments and deltas, oldest first: wanted ones only once they build, frozen ones once they revive."""
        building = self.building
        return tuple(
            s
            for v, s in sorted(self.versions.items())
            if (s.state in RECEIVES_INCREMENTS and (s.state is not State.WANTED or s is building)) or s.is_reviving
        )

    @property
    def building(self) -> VersionStatus | None:
        """The one new version that builds: the oldest wanted (B4)."""
        return min((s for s in self.versions.values() if s.state is State.WANTED), key=lambda s: s.version, default=None)

    @property
    def newest_decided(self) -> int:
        """Highest version in a want or reject; checkpoint records are read from the offset after it (B3)."""
        return max(self.versions, default=-1)


_FIELDS = {f.name for f in dataclasses.fields(Entry)}


def encode_entry(entry: Entry) -> bytes:
    """JSON of an entry, defaults left out."""
    fields = {f.name: getattr(entry, f.name) for f in dataclasses.fields(Entry)}
    kept = {k: v for k, v in fields.items() if k in ("kind", "at_ms", "version", "revision") or v not in ("", None)}
    if entry.init is not None:
        kept["init"] = dataclasses.asdict(entry.init)
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def decode_entry(raw: bytes) -> Entry:
    """Raises Corrupted (not an entry) or Incompatible (`unknown_entry_kind`)."""
    try:
        if len(raw) > CONTROL_ENTRY_BYTES_MAX:
            raise ValueError(f"{len(raw)} bytes, expected at most {CONTROL_ENTRY_BYTES_MAX}")
        fields = json.loads(raw)
        kind = fields.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupted("bad_control_entry", f"control entry of {len(raw)} bytes does not read: {error}") from error
    if kind not in set(EntryKind):
        raise Incompatible("unknown_entry_kind", f"control entry of kind {kind!r} is not known here; upgrade this process")
    try:
        init = fields.pop("init", None)
        decoded_init = None if init is None else Init(**{**init, "id_kind": IdKind(init["id_kind"])})
        return Entry(EntryKind(kind), init=decoded_init, **{k: v for k, v in fields.items() if k in _FIELDS})
    except (TypeError, ValueError, KeyError) as error:
        raise Corrupted("bad_control_entry", f"control entry of kind {kind!r} does not have its fields: {error}") from error


def fold_entry(state: ControlState, number: int, raw: bytes) -> ControlState:
    """The state after entry `number`. Raises Corrupted if the bytes are no entry or the number leaves a gap."""
    if number != state.next_number:
        raise Corrupted("control_log_gap", f"entry {number} follows {state.next_number - 1}; an entry of the control log is missing")
    after = dataclasses.replace(state, next_number=number + 1)
    try:
        return _apply(after, decode_entry(raw))
    except Incompatible as error:
        if error.code == "unknown_entry_kind":
            return dataclasses.replace(after, unknown_entry=f"{number}: {error.message}")
        return dataclasses.replace(after, refused=(*state.refused, f"{number}: {error.message}"))


def plan_entry(state: ControlState, entry: Entry) -> bytes:
    """The bytes of an entry after the same checks as the fold. Raises Incompatible with what is possible instead."""
    if state.unknown_entry:
        raise Incompatible(
            "unknown_entry_kind", f"the control log holds an entry this code does not know ({state.unknown_entry}); upgrade before writing"
        )
    _apply(state, entry)
    return encode_entry(entry)


def _apply(state: ControlState, entry: Entry) -> ControlState:
    if state.init is None and entry.kind is not EntryKind.INIT:
        raise Incompatible(
            "no_index", f"{entry.kind} before init: the index store is empty; start a worker or run `aif topics apply` first"
        )
    return _EFFECTS[entry.kind](state, entry)


def _set(state: ControlState, status: VersionStatus, **fields: Any) -> ControlState:
    return dataclasses.replace(state, versions={**state.versions, status.version: status}, **fields)


def _status(state: ControlState, entry: Entry) -> VersionStatus:
    return state.versions.get(entry.version) or VersionStatus(entry.version, State.NONE)


def _moved(state: ControlState, entry: Entry) -> VersionStatus:
    """The entry's version in its next state, by the table."""
    status = _status(state, entry)
    if entry.version < 0 or (status.state is State.NONE and entry.kind not in (EntryKind.WANT, EntryKind.REJECT)):
        raise Incompatible(
            "unknown_version", f"{entry.kind} names version {entry.version}, which the index does not have; it has {sorted(state.versions)}"
        )
    after = next_state(status.state, entry.kind, entry.cause)
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
    if entry.cause not in (Cause.REVISE, Cause.REVIVE) and entry.version < state.newest_decided:
        raise Incompatible(
            "late_version",
            f"want {entry.version}: {state.newest_decided} is decided already, and versions are decided in their order; publish it again",
        )
    if entry.cause in (Cause.REVISE, Cause.REVIVE):
        return _set(state, dataclasses.replace(status, wanted_revision=entry.revision, wanted_at_ms=entry.at_ms, cause=entry.cause))
    status = dataclasses.replace(
        status,
        wanted_revision=0,
        wanted_at_ms=entry.at_ms,
        **{f: getattr(entry, f) for f in ("cause", "checkpoint_sha256", "model_id", "feature_schema", "encoder_fingerprint", "label")},
    )
    return _set(_abort_overtaken(state, entry.version, entry.at_ms), status)


def _abort_overtaken(state: ControlState, newest: int, at_ms: int) -> ControlState:
    """Of the new versions that wait behind the one that builds, only the newest is kept (B4)."""
    waiting = [s for s in state.versions.values() if s.state is State.WANTED and s is not state.building and s.version < newest]
    aborted = {
        s.version: dataclasses.replace(s, state=State.ABORTED, wanted_revision=None, reason=f"overtaken by {newest}", ended_at_ms=at_ms)
        for s in waiting
    }
    return dataclasses.replace(state, versions={**state.versions, **aborted})


def _reject(state: ControlState, entry: Entry) -> ControlState:
    return _set(state, dataclasses.replace(_moved(state, entry), reason=entry.reason))


def _abort(state: ControlState, entry: Entry) -> ControlState:
    return _set(state, dataclasses.replace(_moved(state, entry), reason=entry.reason or "aborted", wanted_revision=None))


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
    versions[entry.version] = _moved(state, entry)
    backup = state.live
    for v, status in state.versions.items():
        overtaken = status.state is State.PUBLISHED and v < entry.version
        if v not in (entry.version, backup, state.pinned) and (status.state is State.BACKUP or overtaken):
            versions[v] = _frozen(status)
        elif v == state.pinned and v not in (entry.version, backup) and status.state is State.BACKUP:
            versions[v] = dataclasses.replace(status, state=State.PUBLISHED)
    if backup is not None:
        versions[backup] = dataclasses.replace(state.versions[backup], state=State.BACKUP)
    return dataclasses.replace(state, versions=versions, live=entry.version, backup=backup)


def _frozen(status: VersionStatus) -> VersionStatus:
    return dataclasses.replace(status, state=State.FROZEN, wanted_revision=None, frozen_revision=status.revision)


def _rollback(state: ControlState, entry: Entry) -> ControlState:
    """As promote, and nothing is promoted by itself until a release."""
    return dataclasses.replace(_promote(state, entry), held=True)


def _pin(state: ControlState, entry: Entry) -> ControlState:
    return _set(state, _moved(state, entry), pinned=entry.version)


def _plain(state: ControlState, entry: Entry) -> ControlState:
    """approve, freeze, drop: only the table's move; not for the version that is served."""
    if entry.kind is not EntryKind.APPROVE and entry.version == state.pinned:
        raise Incompatible("pinned", f"{entry.kind} {entry.version}: the version is pinned; unpin it first")
    moved = dataclasses.replace(_moved(state, entry), wanted_revision=None)
    moved = _frozen(moved) if moved.state is State.FROZEN else moved
    return _set(state, moved, backup=None if state.backup == entry.version else state.backup)


def _hold(state: ControlState, _: Entry) -> ControlState:
    return dataclasses.replace(state, held=True)


def _release(state: ControlState, _: Entry) -> ControlState:
    return dataclasses.replace(state, held=False)


def _unpin(state: ControlState, _: Entry) -> ControlState:
    return dataclasses.replace(state, pinned=None)


_EFFECTS: dict[EntryKind, Callable[[ControlState, Entry], ControlState]] = {
    EntryKind.INIT: _init,
    EntryKind.WANT: _want,
    EntryKind.REJECT: _reject,
    EntryKind.PUBLISH: _publish,
    EntryKind.PROMOTE: _promote,
    EntryKind.ROLLBACK: _rollback,
    EntryKind.PIN: _pin,
    EntryKind.APPROVE: _plain,
    EntryKind.ABORT: _abort,
    EntryKind.FREEZE: _plain,
    EntryKind.DROP: _plain,
    EntryKind.HOLD: _hold,
    EntryKind.RELEASE: _release,
    EntryKind.UNPIN: _unpin,
}

assert set(_EFFECTS) == set(EntryKind)
