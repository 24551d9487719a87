"""The rows that a replay left in the index store for a version to adopt (FORMAT.md section 1): the file that names them, and finding it.

replays/<label>/<shard>-<unique>/   full part of a shard
replays/<label>/replay.json         names them, put before the checkpoint record that becomes the version
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.index.store import IndexStore
from schemas.errors import AifError, Misconfigured
from schemas.fields import corrupted_as, read_fields
from schemas.index.manifest import Part, decode_document, encode_document

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ReplayedParts:
    """What a replay left for a version: a full part per shard, and the encoder that made them."""

    label: str
    checkpoint_sha256: str
    encoder_fingerprint: str
    parts: Mapping[int, Part]
    source_offsets: Mapping[int, Mapping[str, int]]


def replayed_path(label: str) -> str:
    """Place of the file that names the parts of an adopted replay."""
    return f"replays/{label}/replay.json"


def encode_replayed(replayed: ReplayedParts) -> bytes:
    """Bytes of that file."""
    return encode_document("replay", dataclasses.asdict(replayed))


def decode_replayed(raw: bytes) -> ReplayedParts:
    """Raises Corrupted (`bad_replay`) or Incompatible (`replay_format`)."""
    fields = decode_document("replay", raw)
    with corrupted_as("bad_replay", "it does not have the fields of an adopted replay"):
        return read_fields(ReplayedParts, fields)


def find_replayed(store: IndexStore, label: str, checkpoint_sha256: str) -> ReplayedParts | None:
    """The replay that a version of this label and checkpoint adopts; None if absent that can be used."""
    if not _LABEL.fullmatch(label):
        return None
    try:
        found = decode_replayed(store.get(replayed_path(label)))
    except AifError:
        return None
    return found if (found.label, found.checkpoint_sha256) == (label, checkpoint_sha256) else None


def check_label(store: IndexStore, label: str) -> None:
    """Raises Misconfigured: `replay_label` (no name for a folder), `label_taken`."""
    if not _LABEL.fullmatch(label):
        raise Misconfigured("replay_label", f"{label!r} cannot name a version here; use letters, digits and _ . -, at most 64")
    if store.exists(replayed_path(label)):
        raise Misconfigured("label_taken", f"the index store has a replay {label!r} already; choose another label")
