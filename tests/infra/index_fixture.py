"""A small published version in a fresh store, for tests of what reads one."""

import dataclasses
import hashlib

import numpy as np

from infra.index.control_log import ControlLog, ensure_init
from infra.index.parts import write_full_part, write_incremental_part
from infra.index.store import IndexStore
from schemas.ids import IdKind, encode_index_key
from schemas.index.control import Entry, Init
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.layout import STAMP, Column, RowBlock, RowLayout, encode_increment
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import Manifest, Seal, checkpoint_path, encode_manifest, manifest_path

LAYOUT = RowLayout((Column("vector", "<f2", 8), Column("has_signature", "u1", 1), Column("bid", "<f4", 1)), IdKind.INT64)
INIT = Init(2, 2, IdKind.INT64, {})
MODEL, LSH = "model", "lsh-1"


WORK = {"build_computed": 3, "build_taken_over": 2, "rows_encoded": 4, "skipped_identical": 5}  # of every shard


def rows_block(first: int, rows: int) -> RowBlock:
    """`rows` rows with ids from `first` on; the same numbers every time."""
    random = np.random.default_rng(first)
    made = np.zeros(rows, LAYOUT.dtype)
    made["vector"] = random.normal(size=(rows, 8))
    made["bid"] = random.random(rows)
    stamps = np.zeros(rows, STAMP)
    stamps["features_offset"] = np.arange(rows)
    return RowBlock([encode_index_key(first + i) for i in range(rows)], stamps, made)


def increments(first: int, rows: int) -> list[tuple[bytes, bytes]]:
    """One change a row, every fourth a tombstone."""
    block = rows_block(first, rows)
    changes = []
    for i, key in enumerate(block.keys):
        stamp = block.stamps[i].copy()
        stamp["dead"] = i % 4 == 0
        changes.append((key, encode_increment(stamp, None if stamp["dead"] else block.rows[i])))
    return changes


def seal_shard(store: IndexStore, version: int, revision: int, shard: int) -> Seal:
    """Parts and seal of one shard: 500 full rows, 40 changes of which 20 are new keys."""
    blocks, changes = [rows_block(1000, 256), rows_block(2000, 244)], increments(2224, 40)
    full = write_full_part(store, version, shard, blocks, LAYOUT)
    incremental = write_incremental_part(store, version, revision, shard, changes)
    digest = ShardDigest(LAYOUT, MODEL, LSH)
    for block in merge_parts(LAYOUT, blocks, changes):
        digest.update(block)
    offsets = {"item-features": 10 + shard, "new-items": 5}
    return Seal(shard, full, incremental, 7, offsets, digest.rows, digest.hexdigest, digest.data_hexdigest, "encoder", 0, WORK)


def publish_version(store: IndexStore, *, promote: bool = True) -> Manifest:
    """A wanted, published and promoted version with two shards and a checkpoint file (whose content no test here reads)."""
    checkpoint = b"checkpoint"
    sha256 = hashlib.sha256(checkpoint).hexdigest()
    log = ControlLog(store)
    version = ensure_init(log, INIT, 1, "test").newest_decided + 1
    store.put_bytes(checkpoint_path(sha256), checkpoint)
    want = Entry(EntryKind.WANT, 1, "test", version, cause=str(Cause.CHECKPOINT), checkpoint_sha256=sha256, model_id=MODEL)
    log.append(lambda _: want)
    seals = tuple(seal_shard(store, version, 0, shard) for shard in range(2))
    manifest = Manifest(version, 0, MODEL, sha256, "schema", LSH, "encoder", LAYOUT, seals, 1)
    raw = encode_manifest(manifest)
    assert store.put_exclusive(manifest_path(version, 0), raw)
    publish = dataclasses.replace(want, kind=EntryKind.PUBLISH, cause="", manifest_sha256=hashlib.sha256(raw).hexdigest())
    log.append(lambda _: publish)
    if promote:
        log.append(lambda _: Entry(EntryKind.PROMOTE, 1, "test", version))
    return manifest
