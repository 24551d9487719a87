"""Seals and manifests: what a version consists of (FORMAT.md section 6). Values, their JSON, and their places in the store; no I/O.

Invariant: a manifest names every file that a reader needs, with size and sha256, and its own sha256 is in the control log. So a flipped byte, a truncated file
and a missing file are found before they are served.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import Corrupted, Incompatible
from schemas.fields import corrupted_as, read_fields
from schemas.index.digest import checksum, version_digest
from schemas.index.layout import FORMAT, RowLayout, decode_layout
from schemas.limits import MANIFEST_BYTES_MAX

# Causes in a seal's `work`. The first of each line is work that was done, the others are work that was not needed.
ENCODED, REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES = "rows_encoded", "rows_rewritten", "skipped_identical", "skipped_no_features"
BUILD_COMPUTED, BUILD_TAKEN_OVER = "build_computed", "build_taken_over"
WORK_SKIPPED = frozenset({REWRITTEN, SKIPPED_IDENTICAL, SKIPPED_NO_FEATURES, BUILD_TAKEN_OVER})
_OF_VERSION = re.compile(r"versions/(\d+)/")
# Of a damaged copy. A canary has nothing to compare a new version with, so that needs an approval.
CHECKPOINT_REPAIR = "publish the same checkpoint again, which repairs it, or a new one, and then `aif index approve` its version"
UNIQUE_DIGITS = 12  # random ones, of a name in the store
_PLAIN_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")  # readers make files of these names and sums in folders of their own
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def describe_repair(path: str = "") -> str:
    """What an operator does about a file of the store that is damaged or gone, for the end of a message. `path`: its path, if that is known."""
    if path.startswith("checkpoints/"):
        return CHECKPOINT_REPAIR
    if path.startswith("snapshots/"):
        return "remove the snapshot's folder: an older snapshot is used, and the shard's owner writes the next one when it is due"
    if path and not path.startswith("versions/"):
        return "restore it from a copy of the store"
    version = found[1] if (found := _OF_VERSION.match(path)) else "VERSION"
    return f"publish the version again from its shards: `aif index revise {version}`"


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of a part: its name inside the part's directory, its size, and the lower-case hex sha256 of its bytes."""

    name: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not (_PLAIN_NAME.fullmatch(self.name) and _PLAIN_NAME.fullmatch(self.sha256)):
            raise ValueError(f"{self} is not a file inside the directory of its part")


@dataclass(frozen=True, slots=True)
class Part:
    """A full or incremental part. `directory` is a path inside the store. A part without rows and tombstones has no files."""

    directory: str
    files: tuple[PartFile, ...]
    rows: int
    tombstones: int = 0


@dataclass(frozen=True, slots=True)
class Seal:
    """One shard of a version, as it was at one moment.

    - delta_position: the offset in the shard's partition of index-deltas from which a reader of these parts continues
    - source_offsets: the next offset of each topic of the shard; the parts include all earlier records
    - rows, digest, data_digest: of the merged view of both parts
    - source_ms: record time of the newest source record in the parts, 0 if absent: how fresh a reader of these parts alone is
    - work: by cause: rows that were computed, and rows and updates that needed no network, since the version began in this shard
    """

    shard: int
    full: Part
    incremental: Part
    delta_position: int
    source_offsets: Mapping[str, int]
    rows: int
    digest: str
    data_digest: str
    encoder_fingerprint: str
    source_ms: int = 0
    work: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """One revision of a version: a seal of each shard, in the order of shards, and the facts that readers need."""

    version: int
    revision: int
    model_id: str
    checkpoint_sha256: str
    feature_schema: str
    lsh_version: str
    encoder_fingerprint: str
    layout: RowLayout
    seals: tuple[Seal, ...]
    created_ms: int

    @property
    def rows(self) -> int:
        """Items in the version when it was sealed."""
        return sum(s.rows for s in self.seals)

    @property
    def work(self) -> dict[str, int]:
        """Work of all shards, by cause."""
        causes = sorted({cause for seal in self.seals for cause in seal.work})
        return {cause: sum(seal.work.get(cause, 0) for seal in self.seals) for cause in causes}

    @property
    def digest(self) -> str:
        """Digest over all rows."""
        return version_digest([s.digest for s in self.seals])

    @property
    def data_digest(self) -> str:
        """Digest over all inputs."""
        return version_digest([s.data_digest for s in self.seals])


def manifest_path(version: int, revision: int) -> str:
    """Place of a manifest in the store."""
    return f"versions/{version}/{revision}/manifest.json"


def seal_path(version: int, revision: int, shard: int, unique: str) -> str:
    """Place of a seal in the store."""
    return f"versions/{version}/{revision}/seals/{shard:05d}-{unique}.json"


def checked_name(unique: str, raw: bytes) -> str:
    """A unique name with the checksum of the bytes that it stands for."""
    return f"{unique}-{checksum(raw)}"


def checkpoint_path(sha256: str) -> str:
    """Place of a validated checkpoint in the store."""
    return f"checkpoints/{sha256}.safetensors"


def checkpoint_uri(sha256: str) -> str:
    """The address in a checkpoint record of a file that is in the index store, wherever a process reaches the store."""
    return f"index:{checkpoint_path(sha256)}"


def encode_document(kind: str, fields: Mapping[str, Any]) -> bytes:
    """The JSON bytes of a file of the index store: its kind, the number of the format, and its fields."""
    return _JSON.encode({"format": FORMAT, "kind": kind, **fields}).encode()


def decode_document(kind: str, raw: bytes) -> dict[str, Any]:
    """The fields of a file of `kind`. Raises Corrupted (`bad_<kind>`), Incompatible (`<kind>_format`)."""
    if len(raw) > MANIFEST_BYTES_MAX:
        raise Corrupted(f"bad_{kind}", f"{kind} of {len(raw)} bytes, expected at most {MANIFEST_BYTES_MAX}")
    with corrupted_as(f"bad_{kind}", f"{kind} of {len(raw)} bytes does not read"):
        fields = json.loads(raw)
        found = (fields.pop("format"), fields.pop("kind"))
    if found != (FORMAT, kind):
        raise Incompatible(f"{kind}_format", f"{kind} says (format, kind) = {found}, this code reads {(FORMAT, kind)}")
    return dict(fields)


def encode_seal(seal: Seal) -> bytes:
    """Bytes of a seal file."""
    return encode_document("seal", dataclasses.asdict(seal))


def decode_seal(raw: bytes, path: str) -> Seal:
    """The seal in these bytes; `path` is its place in the store, whose name has their checksum.

    Raises Corrupted (`bad_seal`: other bytes than were put, or no seal), Incompatible (`seal_format`).
    """
    unique = path.rpartition("/")[2].removesuffix(".json").split("-", 1)[1]
    if unique != checked_name(unique[:UNIQUE_DIGITS], raw):
        raise Corrupted("bad_seal", f"{path} has other bytes than were put, which its name has the checksum of")
    fields = decode_document("seal", raw)
    with corrupted_as("bad_seal", f"seal does not have the fields of format {FORMAT}"):
        return read_fields(Seal, fields)


def encode_manifest(manifest: Manifest) -> bytes:
    """Bytes of a manifest file."""
    fields = {f.name: getattr(manifest, f.name) for f in dataclasses.fields(manifest)}
    return encode_document(
        "manifest", fields | {"layout": manifest.layout.to_dict(), "seals": [dataclasses.asdict(s) for s in manifest.seals]}
    )


def decode_manifest(raw: bytes, expected_sha256: str | None = None) -> Manifest:
    """The manifest in these bytes; `expected_sha256` is that of its `publish` entry, None if absent.

    Raises Corrupted (`bad_manifest`: other bytes than were published, or no manifest), Incompatible (`manifest_format`, `unknown_column`).
    """
    found = hashlib.sha256(raw).hexdigest()
    if expected_sha256 is not None and found != expected_sha256:
        raise Corrupted("bad_manifest", f"manifest of {len(raw)} bytes has sha256 {found}, its publish entry says {expected_sha256}")
    fields = decode_document("manifest", raw)
    with corrupted_as("bad_manifest", f"manifest does not have the fields of format {FORMAT}"):
        manifest = read_fields(Manifest, fields | {"layout": decode_layout(fields["layout"])})
        if [seal.shard for seal in manifest.seals] != list(range(len(manifest.seals))):
            raise ValueError("its seals are not those of shards 0, 1, 2 and so on")
        return manifest
