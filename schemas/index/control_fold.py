"""A fold of the control log as a file, so that a reader need not begin at entry 0 (FORMAT.md section 7).

    encode_fold(state, last) -> bytes        the state up to before entry `state.next_number`; `last` is the entry before that number
    decode_fold(raw) -> (state, checksum of `last`)

Invariants: the same entries give the same bytes, so of several writers it does not matter who is first. A fold with an
unknown field or kind of entry is unreadable, because this code would miss its meaning. The reader then takes an older fold, or the entries.
"""

import dataclasses
import json
from typing import Any

from schemas.errors import Corrupted
from schemas.fields import corrupted_as, read_fields
from schemas.index.control import ControlState, VersionStatus
from schemas.index.control_invariants import find_broken
from schemas.index.digest import checksum
from schemas.index.lifecycle import EntryKind

FOLD_FORMAT = 1
_KINDS = sorted(EntryKind)
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_STATUS = {f.name: f for f in dataclasses.fields(VersionStatus)}
_PLAIN = ("next_number", "index_id", "live", "backup", "pinned", "held", "held_why", "refused")


def encode_fold(state: ControlState, last: bytes) -> bytes:
    """The bytes of a fold of a log that begins with an identity and has no unknown entry."""
    assert state.init is not None and not state.unknown_entry
    fields = {
        "format": FOLD_FORMAT,
        "kinds": _KINDS,
        "last": checksum(last),
        "init": dataclasses.asdict(state.init),
        "versions": [_encode_status(status) for _, status in sorted(state.versions.items())],
        **{name: getattr(state, name) for name in _PLAIN},
    }
    return _JSON.encode(fields | {"check": checksum(_JSON.encode(fields).encode())}).encode()


def _encode_status(status: VersionStatus) -> dict[str, Any]:
    """Its fields without those at their defaults."""
    return {name: getattr(status, name) for name, f in _STATUS.items() if getattr(status, name) != f.default}


def decode_fold(raw: bytes) -> tuple[ControlState, str]:
    """The state, and the checksum of the last entry in it. Raises Corrupted (`bad_control_fold`): other bytes than were written, a fold of a newer release,
    or a state that no log leads to."""
    with corrupted_as("bad_control_fold", f"control fold of {len(raw)} bytes cannot be read"):
        fields = json.loads(raw)
        check = fields.pop("check")
        if check != checksum(_JSON.encode(fields).encode()):
            raise ValueError("its checksum is not that of its bytes")
        if fields.pop("format") != FOLD_FORMAT or not set(fields.pop("kinds")) <= set(_KINDS):
            raise ValueError("a newer release wrote it")
        last, statuses = str(fields.pop("last")), [read_fields(VersionStatus, status, least=-1) for status in fields.pop("versions")]
        if fields.keys() != {*_PLAIN, "init"}:
            raise ValueError(f"its fields are {sorted(fields)}, expected {sorted(_PLAIN)} and init")
        state = dataclasses.replace(read_fields(ControlState, fields), versions={status.version: status for status in statuses})
    if broken := find_broken(state):
        raise Corrupted("bad_control_fold", f"control fold of {len(raw)} bytes is the state of no log: {'; '.join(broken)}")
    return state, last
