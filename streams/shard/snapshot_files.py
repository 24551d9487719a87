"""Snapshots of shards in the index store: writing one from a checkpoint, finding them, restoring one for a new owner (protocol A7, A8).

Invariants: a snapshot is a checkpoint of one moment, so its components, rows, counters and next offsets belong together. Its manifest is put last, so a
snapshot that is not complete is not found. A restored directory has exactly the bytes that were put (size and sha256 of every file). It is
synced and gets its name in one rename. A kill before that leaves a folder that no process opens and that the next start removes.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from infra.failpoints import failpoint
from infra.files import fsync, fsync_tree, is_disk_full, sha256_of_file, staging_folder
from infra.index.parts import new_unique
from infra.index.store import IndexStore
from infra.rocks_checks import NOTE_NAME
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.index.manifest import PartFile
from schemas.index.shard_snapshot import ShardSnapshot, decode_snapshot, encode_snapshot, snapshot_file_path, snapshot_manifest_path
from streams.shard.shard_reader import open_shard_reader

ORIGIN_NAME = "snapshot"  # a file in a restored directory: which snapshot it began as
_MANIFEST_NAME = snapshot_manifest_path(0, "x").rpartition("/")[2]
_OWN_NAMES = ("MANIFEST-", "CURRENT", "OPTIONS-", NOTE_NAME)  # with *.sst and *.log, the files that opening the directory takes


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot in the store, and when it was put by the store's clock."""

    snapshot: ShardSnapshot
    put_ms: int


def write_snapshot(store: IndexStore, shard: int, identity: str, checkpoint: Path) -> ShardSnapshot:
    """Puts the checkpoint of a shard into the store. It must not be used afterwards, because its files may be the store's."""
    described = describe_checkpoint(checkpoint, shard, identity)
    names = sorted(p.name for p in checkpoint.iterdir() if p.suffix in (".sst", ".log") or p.name.startswith(_OWN_NAMES))
    files = tuple(PartFile(name, (checkpoint / name).stat().st_size, sha256_of_file(checkpoint / name)) for name in names)
    snapshot = dataclasses.replace(described, files=files).named(new_unique())
    for name in names:
        store.put_file(snapshot_file_path(snapshot, name), checkpoint / name)
    failpoint("before-snapshot")
    store.put_bytes(snapshot_manifest_path(shard, snapshot.unique), encode_snapshot(snapshot))
    return snapshot


def describe_checkpoint(checkpoint: Path, shard: int, identity: str) -> ShardSnapshot:
    """What a checkpoint says of itself, as a snapshot without name and files. `identity` is what the shard belongs to (core/shard_state.py)."""
    with open_shard_reader(checkpoint) as reader:
        parts = tuple(sorted(v.full.directory for v in reader.versions.values() if v.full is not None and v.full.files))
        updates = sum(c.consumed for c in reader.state.counters.values())
        return ShardSnapshot(shard, "", identity, (), reader.next_offsets, updates, parts)


def list_snapshots(store: IndexStore, shard: int) -> tuple[list[FoundSnapshot], list[str]]:
    """Snapshots of a shard, the one with the least to replay first; and the faults of the manifests of others. Raises Unavailable if the store does not
    answer."""
    found, wrong = [], []
    for path in store.list(f"snapshots/{shard:05d}/"):
        if not path.endswith(f"/{_MANIFEST_NAME}"):
            continue
        try:
            snapshot = decode_stored_snapshot(store, path)
            found.append(FoundSnapshot(snapshot, store.stat(path).put_ms))
        except (Corrupted, Incompatible) as error:
            wrong.append(f"{path}: {error}")
        except Unavailable as error:
            if error.code != "missing_file":  # removed between the list and the read
                raise
    return sorted(found, key=lambda f: (sum(f.snapshot.next_offsets.values()), f.put_ms), reverse=True), wrong


def decode_stored_snapshot(store: IndexStore, path: str) -> ShardSnapshot:
    """The snapshot whose manifest is at `path`. Raises Corrupted (`bad_snapshot`), Incompatible, Unavailable (`missing_file`)."""
    snapshot = decode_snapshot(store.get(path))
    if snapshot_manifest_path(snapshot.shard, snapshot.unique) != path:
        raise Corrupted("bad_snapshot", f"{path} is shard {snapshot.shard}'s snapshot {snapshot.unique}")
    return snapshot


def restore_snapshot(store: IndexStore, snapshot: ShardSnapshot, directory: Path) -> None:
    """Makes `directory`, which must not exist, the shard as it was. Raises Corrupted (`bad_snapshot_file`), Unavailable (`missing_file`, `disk_full`)."""
    try:
        with staging_folder(directory, "restore") as staged:
            for file in snapshot.files:
                _fetch_file(store, snapshot, file, staged)
            (staged / ORIGIN_NAME).write_text(snapshot.unique)
            fsync_tree(staged)
            staged.rename(directory)
            fsync(directory.parent)
    except OSError as error:
        code = "disk_full" if is_disk_full(error) else "snapshot_unrestored"
        raise Unavailable(code, f"{snapshot.directory} could not be restored to {directory}: {error}", 5.0) from error


def _fetch_file(store: IndexStore, snapshot: ShardSnapshot, file: PartFile, into: Path) -> None:
    """Table files are linked where possible, because no process writes them again; the others are copied, because RocksDB writes them in place."""
    try:
        store.fetch(f"{snapshot.directory}/files", file, into / Path(file.name).name, link=file.name.endswith(".sst"))
    except Corrupted as error:
        raise Corrupted("bad_snapshot_file", f"{error.message}; the next source is tried") from error
