"""Entries of a control log and the states after them, for the tests of everything that reads one."""

import json
from collections.abc import Mapping

from schemas.ids import IdKind
from schemas.index.control import ControlState, Entry, Init, fold_entry, plan_entry
from schemas.index.digest import checksum
from schemas.index.lifecycle import Cause, EntryKind

INIT = Entry(EntryKind.INIT, 0, init=Init(2, 2, IdKind.INT64, {}))
OURS = "torch=1"  # the encoder that wants


def want(version: int, revision: int = 0, cause: Cause = Cause.CHECKPOINT, fingerprint: str = OURS) -> Entry:
    named = {"version": version, "revision": revision, "cause": cause}
    return Entry(EntryKind.WANT, 1, **named, checkpoint_sha256=f"{version:064x}", encoder_fingerprint=fingerprint)  # type: ignore[arg-type]


def publish(version: int, revision: int = 0, at_ms: int = 2) -> Entry:
    return Entry(EntryKind.PUBLISH, at_ms, version=version, revision=revision, manifest_sha256="b" * 64)


def act(kind: EntryKind, version: int = -1, at_ms: int = 3) -> Entry:
    return Entry(kind, at_ms, version=version)


def lived(*versions: int) -> list[Entry]:
    """Each of them wanted, published and promoted, sequentially."""
    return [entry for v in versions for entry in (want(v), publish(v), act(EntryKind.PROMOTE, v))]


def appended(state: ControlState, *entries: Entry) -> ControlState:
    """The state after these entries. Raises Incompatible at one that makes no sense."""
    for entry in entries:
        state = fold_entry(state, state.next_number, plan_entry(state, entry))
    return state


def log(*entries: Entry) -> ControlState:
    """The state of an index after these entries."""
    return appended(ControlState(), INIT, *entries)


def raw_entry(fields: Mapping[str, object]) -> bytes:
    """An entry with these fields, whatever they are, and the right checksum."""
    encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
    return encode({**fields, "check": checksum(encode(fields).encode())}).encode()
