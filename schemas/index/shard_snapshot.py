"""Snapshots of shards: what a new owner starts from if it has no directory of the shard (FORMAT.md section 9, protocol A7). Values and their JSON; no I/O.

A snapshot is a checkpoint of the shard's own RocksDB directory, put into the index store file by file.
Invariant: its manifest is put last, so without the manifest there is no snapshot. It belongs to one shard of one index (`identity`) and to one moment
(`next_offsets`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.fields import corrupted_as, read_fields
from schemas.index.layout import FORMAT
from schemas.index.manifest import UNIQUE_DIGITS, PartFile, checked_name, decode_document, encode_document


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """One snapshot.

    - unique: the `<unique>` of its place in the store, with a checksum of all the rest (`named`)
    - identity: its index, number of shards, id kind, topic ids and format of components, in a text that is compared as a whole
    - files: files of the checkpoint
    - next_offsets: the next offset of each source topic: applying the log from there completes it
    - updates: number of updates consumed since offset 0, of all topics
    - parts: directories of the full parts that its versions use; they are kept as long as the snapshot (B12)
    """

    shard: int
    unique: str
    identity: str
    files: tuple[PartFile, ...]
    next_offsets: Mapping[str, int]
    updates: int
    parts: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        """Where its files are."""
        return snapshot_directory(self.shard, self.unique)

    def named(self, unique: str) -> "ShardSnapshot":
        """The same with a unique name that has its checksum."""
        return dataclasses.replace(self, unique=checked_name(unique, encode_snapshot(dataclasses.replace(self, unique=unique))))


def snapshot_directory(shard: int, unique: str) -> str:
    """Place of a snapshot in the store."""
    return f"snapshots/{shard:05d}/{unique}"


def snapshot_manifest_path(shard: int, unique: str) -> str:
    """Place of a snapshot's manifest in the store."""
    return f"{snapshot_directory(shard, unique)}/snapshot.json"


def snapshot_file_path(snapshot: ShardSnapshot, name: str) -> str:
    """Place of one file of a snapshot."""
    return f"{snapshot.directory}/files/{name}"


def encode_snapshot(snapshot: ShardSnapshot) -> bytes:
    """Bytes of a snapshot's manifest."""
    return encode_document("snapshot", dataclasses.asdict(snapshot))


def decode_snapshot(raw: bytes) -> ShardSnapshot:
    """The snapshot in these bytes. Raises Corrupted (`bad_snapshot`), Incompatible (`snapshot_format`)."""
    fields = decode_document("snapshot", raw)
    with corrupted_as("bad_snapshot", f"snapshot does not have the fields of format {FORMAT}"):
        snapshot = read_fields(ShardSnapshot, fields)
        if snapshot.named(snapshot.unique[:UNIQUE_DIGITS]) != snapshot:
            raise ValueError(f"its bytes are not those that its name {snapshot.unique} has the checksum of")
        return snapshot
