"""A few items of a version, and the rows of given items: what a canary looks at (streams/builders/canary_scores.py).

Invariants: the sample follows from the manifest alone, so every process reads the same one. The shard of an item is a hash of its id, so the items of some
shards are a fair sample of the catalogue. The sha256 of the files is not checked here: who serves them does that, and RocksDB's own checksum finds a
damaged block (Corrupted).

Arrays: R rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.index.parts import open_part
from infra.index.store import IndexStore, read_if_there
from infra.rocks import DEFAULT_FAMILY
from schemas.ids import decode_index_key, partition_of
from schemas.index.item_sample import SampledItem, decode_sample, sample_path
from schemas.index.keys import check_keys
from schemas.index.layout import RowLayout, decode_block, decode_increment
from schemas.index.manifest import Manifest, Part, Seal

SHARDS_SAMPLED_MAX = 4

Found = dict[bytes, tuple[np.ndarray | np.void, np.ndarray | None]]  # by index key: the stamp, and the row (None = deleted)


@dataclass(frozen=True)
class SampledRows:
    """Rows of some items: their index keys, and rows_R of the layout's dtype."""

    keys: Sequence[bytes]
    rows_R: np.ndarray


def read_item_sample(store: IndexStore, manifest: Manifest, items_max: int) -> list[SampledItem]:
    """Inputs of about `items_max` items as they were sealed, from a few shards; none from shards whose sample is gone. Raises Unavailable,
    Corrupted (`bad_sample`)."""
    filled = [seal for seal in manifest.seals if seal.rows > 0]
    shards = min(len(filled), SHARDS_SAMPLED_MAX)
    chosen = [filled[n * len(filled) // shards] for n in range(shards)]
    return [item for seal in chosen for item in _read_one(store, manifest, seal, -(-items_max // shards))]


def _read_one(store: IndexStore, manifest: Manifest, seal: Seal, items_max: int) -> list[SampledItem]:
    path = sample_path(manifest.version, manifest.revision, seal.shard, seal.data_digest)
    raw = read_if_there(store, path)
    items = [] if raw is None else decode_sample(raw)
    count = min(len(items), items_max)
    return [items[n * len(items) // count] for n in range(count)]


def find_rows(store: IndexStore, manifest: Manifest, keys: Sequence[bytes]) -> SampledRows:
    """The rows of these items in their order, without those that the version does not have. Raises Unavailable, Corrupted."""
    found = _find(store, manifest, keys)
    rows = [(key, row) for key in keys if key in found and (row := found[key][1]) is not None]
    return SampledRows([key for key, _ in rows], np.array([row for _, row in rows], manifest.layout.dtype))


def find_stamps(store: IndexStore, manifest: Manifest, keys: Sequence[bytes]) -> dict[bytes, np.ndarray | np.void]:
    """The stamps (STAMP) of the rows and tombstones of these items, without items that the version's files do not have. Raises Unavailable, Corrupted."""
    return {key: stamp for key, (stamp, _) in _find(store, manifest, keys).items()}


def _find(store: IndexStore, manifest: Manifest, keys: Sequence[bytes]) -> Found:
    layout, found = manifest.layout, Found()
    check_keys(keys, layout.id_kind)
    shard_of = {key: partition_of(decode_index_key(key, layout.id_kind), len(manifest.seals)) for key in keys}
    for seal in manifest.seals:
        if here := [key for key, shard in shard_of.items() if shard == seal.shard]:
            found |= _find_full(store, seal.full, layout, here)
            found |= _find_increments(store, seal.incremental, layout, here)
    return found


def _find_full(store: IndexStore, part: Part, layout: RowLayout, keys: Sequence[bytes]) -> Found:
    if not part.files:
        return {}
    with open_part(store, part) as database:
        blocks = {key: database.find_before(key) for key in keys}
    decoded: dict[bytes, Found] = {}
    for found in blocks.values():
        if found is not None and found[0] not in decoded:
            block = decode_block(layout, found[1])
            decoded[found[0]] = dict(zip(block.keys, zip(block.stamps, block.rows, strict=True), strict=True))
    return {key: decoded[found[0]][key] for key, found in blocks.items() if found is not None and key in decoded[found[0]]}


def _find_increments(store: IndexStore, part: Part, layout: RowLayout, keys: Sequence[bytes]) -> Found:
    if not part.files:
        return {}
    with open_part(store, part) as database:
        values = database.multi_get(DEFAULT_FAMILY, keys)
    return {key: decode_increment(layout, value) for key, value in zip(keys, values, strict=True) if value is not None}
