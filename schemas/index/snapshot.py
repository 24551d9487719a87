"""Snapshots of shards: what a new owner starts from when it has no directory of the shard (FORMAT.md section 9, protocol A7). Values and JSON, no I/O.

A snapshot is a checkpoint of the shard's own RocksDB directory, put into the index store file by file, its manifest last: without the
manifest there is no snapshot. It belongs to one shard of one index (`identity`) and is of one moment (`next_offsets`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import Corrupted
from schemas.index.layout import FORMAT
from schemas.index.manifest import PartFile, decode_document, encode_document


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """One snapshot.

    identity      the shard's own words for what it belongs to (index, N, id kind, topic ids, format of its components); compared as a whole
    next_offsets  next offset per source topic: a replay from there completes it
    updates       updates consumed since offset 0, of all topics
    parts         directories of the full parts that its versions use: kept while the snapshot is (B12)
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
    """Raises Corrupted (`bad_snapshot`) or Incompatible (`snapshot_format`)."""
    fields = decode_document("snapshot", raw)
    try:
        files = tuple(PartFile(**f) for f in fields.pop("files"))
        return ShardSnapshot(files=files, parts=tuple(fields.pop("parts")), **fields)
    except (TypeError, KeyError) as error:
        raise Corrupted("bad_snapshot", f"snapshot does not have the fields of format {FORMAT}: {error}") from error
