"""A few rows of a version, spread over its items, and the rows of given items: what a canary looks at (streams/builders/canary.py).

Here: which items a sample has, and where their rows are. Not here: reading whole parts (parts.py).
Invariants: the sample follows from the manifest alone, so everybody draws the same one; it costs a few blocks of a few shards, however large the version
is. The shard of an item is a hash of its id, so the items of some shards are a fair sample of the catalogue. The sha256 of the files is not checked here:
who serves them does that, and RocksDB's own checksum finds a damaged block (Corrupted).

Arrays: R rows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.index.parts import open_part
from infra.index.store import IndexStore
from infra.rocks import DEFAULT_FAMILY, Database
from schemas.ids import decode_index_key, partition_of
from schemas.index.keys import check_keys
from schemas.index.layout import RowBlock, RowLayout, decode_block, decode_increment
from schemas.index.manifest import Manifest, Part, Seal
from schemas.limits import TEXT_ID_BYTES_MAX

SHARDS_SAMPLED_MAX = 4
_BLOCKS_PER_SHARD = 16
_STEP_BYTES = 8
_LAST_KEY = b"\xff" * (TEXT_ID_BYTES_MAX + 1)

Rows = dict[bytes, np.ndarray | None]  # by index key; None = deleted


@dataclass(frozen=True)
class SampledRows:
    """Rows of some items: their index keys, and rows_R of the layout's dtype."""

    keys: Sequence[bytes]
    rows_R: np.ndarray


def sample_rows(store: IndexStore, manifest: Manifest, rows_max: int) -> SampledRows:
    """At most `rows_max` rows of the merged view, from a few shards, evenly spread over their keys. Raises Unavailable, Corrupted."""
    filled = [seal for seal in manifest.seals if seal.rows > 0]
    shards = min(len(filled), SHARDS_SAMPLED_MAX)
    chosen = [filled[n * len(filled) // shards] for n in range(shards)]
    return find_rows(store, manifest, [key for seal in chosen for key in _draw_keys(store, seal, manifest.layout, rows_max // shards)])


def find_rows(store: IndexStore, manifest: Manifest, keys: Sequence[bytes]) -> SampledRows:
    """The rows of these items in their order, without those that the version does not have. Raises Unavailable, Corrupted."""
    layout, found = manifest.layout, Rows()
    check_keys(keys, layout.id_kind)
    shard_of = {key: partition_of(decode_index_key(key, layout.id_kind), len(manifest.seals)) for key in keys}
    for seal in manifest.seals:
        if here := [key for key, shard in shard_of.items() if shard == seal.shard]:
            found |= _find_full(store, seal.full, layout, here)
            found |= _find_increments(store, seal.incremental, layout, here)
    rows = [(key, row) for key in keys if (row := found.get(key)) is not None]
    return SampledRows([key for key, _ in rows], np.array([row for _, row in rows], layout.dtype))


def _draw_keys(store: IndexStore, seal: Seal, layout: RowLayout, count: int) -> list[bytes]:
    """Some keys from each of a few blocks of the full part; if that is empty, the first keys of the increments."""
    if seal.full.files:
        with open_part(store, seal.full) as database:
            blocks = _spread_blocks(database, layout)
        each = -(-count // len(blocks))
        return [key for block in blocks for key in block.keys[:: -(-len(block) // each)]][:count]
    with open_part(store, seal.incremental) as database:
        return [key for key, _ in itertools.islice(database.scan(DEFAULT_FAMILY), count)]


def _spread_blocks(database: Database, layout: RowLayout) -> list[RowBlock]:
    """Blocks at even distances between the first and the last key, where a key counts as the number that its bytes after the common prefix make."""
    first, last = next(database.scan(DEFAULT_FAMILY))[0], database.find_before(_LAST_KEY)
    assert last is not None
    common = next((n for n, (a, b) in enumerate(zip(first, last[0], strict=False)) if a != b), min(len(first), len(last[0])))
    low, high = (int.from_bytes(key[common : common + _STEP_BYTES].ljust(_STEP_BYTES, b"\0")) for key in (first, last[0]))
    raw: dict[bytes, bytes] = {}
    for n in range(_BLOCKS_PER_SHARD):
        at = low + (high - low) * (2 * n + 1) // (2 * _BLOCKS_PER_SHARD)
        found = database.find_before(first[:common] + at.to_bytes(_STEP_BYTES))
        raw |= dict([found or last])
    return [decode_block(layout, raw[key]) for key in sorted(raw)]


def _find_full(store: IndexStore, part: Part, layout: RowLayout, keys: Sequence[bytes]) -> Rows:
    if not part.files:
        return {}
    with open_part(store, part) as database:
        blocks = {key: database.find_before(key) for key in keys}
    decoded: dict[bytes, dict[bytes, np.ndarray]] = {}
    for found in blocks.values():
        if found is not None and found[0] not in decoded:
            block = decode_block(layout, found[1])
            decoded[found[0]] = dict(zip(block.keys, block.rows, strict=True))
    return {key: decoded[found[0]].get(key) for key, found in blocks.items() if found is not None}


def _find_increments(store: IndexStore, part: Part, layout: RowLayout, keys: Sequence[bytes]) -> Rows:
    if not part.files:
        return {}
    with open_part(store, part) as database:
        values = database.multi_get(DEFAULT_FAMILY, keys)
    return {key: decode_increment(layout, value)[1] for key, value in zip(keys, values, strict=True) if value is not None}
