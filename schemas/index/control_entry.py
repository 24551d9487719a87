"""Entries of the control log: their fields, and their JSON (FORMAT.md section 7).

Invariant: an entry leaves out fields at their defaults, and a reader skips unknown fields. So an older reader reads a newer entry of a known kind. An entry
of an unknown kind is Incompatible, and bytes that are no entry are Corrupted.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import Incompatible
from schemas.fields import corrupted_as, read_fields
from schemas.ids import IdKind
from schemas.index.digest import checksum
from schemas.index.layout import FORMAT
from schemas.index.lifecycle import EntryKind
from schemas.limits import CONTROL_ENTRY_BYTES_MAX


@dataclass(frozen=True)
class Init:
    """The identity of an index (A1). Another number of shards or user partitions, id kind or topic is another index.

    - topics: whole name of each topic, by its name without prefix
    - topic_ids: Kafka's id of the topics whose offsets the index names, by name without prefix; empty where a broker has none
    - format: number of the index format
    """

    shards: int
    user_partitions: int
    id_kind: IdKind
    topics: Mapping[str, str]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class Entry:
    """One decision. Which fields matter depends on `kind`:

    - want: version, revision, cause, checkpoint_sha256, model_id, feature_schema, encoder_fingerprint, label; to revive: wish
    - reject: version, reason (with its code first)
    - publish: version, revision, manifest_sha256
    - promote, rollback, withhold, pin, freeze, drop, abort, approve: version
    - hold, release, unpin: nothing
    - init: init
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
    wish: str = ""
    init: Init | None = None


_FIELDS = {f.name for f in dataclasses.fields(Entry)}
_KINDS = tuple(EntryKind)  # a kind that is a list is compared, not hashed
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode_entry(entry: Entry) -> bytes:
    """The JSON bytes of an entry, without the fields that are at their defaults."""
    fields = {f.name: getattr(entry, f.name) for f in dataclasses.fields(Entry)}
    kept = {k: v for k, v in fields.items() if k in ("kind", "at_ms", "version", "revision") or v not in ("", None)}
    if entry.init is not None:
        kept["init"] = dataclasses.asdict(entry.init)
    return _JSON.encode(kept | {"check": _check(kept)}).encode()


def _check(fields: Mapping[str, Any]) -> str:
    """Checksum of an entry's fields, those included that this code does not know."""
    return checksum(_JSON.encode(fields).encode())


def decode_entry(raw: bytes) -> Entry:
    """Raises Corrupted (not an entry) or Incompatible (`unknown_entry_kind`)."""
    with corrupted_as("bad_control_entry", f"control entry of {len(raw)} bytes does not read"):
        if len(raw) > CONTROL_ENTRY_BYTES_MAX:
            raise ValueError(f"{len(raw)} bytes, expected at most {CONTROL_ENTRY_BYTES_MAX}")
        fields = json.loads(raw)
        if (check := fields.pop("check")) != _check(fields):
            raise ValueError(f"its checksum is {_check(fields)}, it says {check}")
        kind = fields["kind"]
    if kind not in _KINDS:
        raise Incompatible("unknown_entry_kind", f"control entry of kind {kind!r} is not known here; upgrade this process")
    with corrupted_as("bad_control_entry", f"control entry of kind {kind!r} does not have its fields"):
        return read_fields(Entry, {name: value for name, value in fields.items() if name in _FIELDS}, least=-1)
