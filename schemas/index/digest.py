"""Digests of shards and versions (FORMAT.md section 6), and the merged view that they are taken over.

There are two digests, one over the bytes of rows and one over the hashes of inputs. Equal data digests with different row digests mean a difference of
arithmetic, not of data. Stamps and positions are in neither.
Invariant: a digest does not depend on the cut of rows into blocks, nor on their division between full part and increments.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from schemas.ids import IdKind
from schemas.index.keys import check_keys
from schemas.index.layout import STAMP, RowBlock, RowLayout, stack_increments


def checksum(raw: bytes) -> str:
    """BLAKE2b-64 in hex, of a small file: it finds what a disk has changed, and is no proof against who would change it."""
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def merge_parts(layout: RowLayout, full: Iterable[RowBlock], increments: Iterable[tuple[bytes, bytes]]) -> Iterator[RowBlock]:
    """Yields the merged view in key order: an increment wins over the row of the full part, and a tombstone removes it.

    full         blocks in key order, each with a row at least
    increments   (index key, increment value) in key order, tombstones included

    No block that is yielded has dead rows; a block may be empty. Raises Corrupted (`bad_key`, `bad_increment`, `bad_stamp`).
    """
    pending = iter(increments)
    head = next(pending, None)
    for block in full:
        upto: list[tuple[bytes, bytes]] = []
        while head is not None and head[0] <= block.keys[-1]:
            upto.append(head)
            head = next(pending, None)
        yield block if not upto else _merge_block(layout, block, upto)
    rest: list[tuple[bytes, bytes]] = []
    while head is not None:
        rest.append(head)
        if len(rest) == 4096:
            yield _block_of(layout, rest)
            rest = []
        head = next(pending, None)
    yield _block_of(layout, rest)


def _block_of(layout: RowLayout, changes: Sequence[tuple[bytes, bytes]]) -> RowBlock:
    """The live rows of some increments. Raises Corrupted (`bad_key`, `bad_increment`, `bad_stamp`)."""
    check_keys([key for key, _ in changes], layout.id_kind)
    if not changes:
        return RowBlock([], np.empty(0, STAMP), np.empty(0, layout.dtype))
    block = stack_increments(layout, changes)
    live = np.flatnonzero(block.stamps["dead"] == 0)
    return RowBlock([block.keys[place] for place in live.tolist()], block.stamps[live], block.rows[live])


def _merge_block(layout: RowLayout, block: RowBlock, changes: Sequence[tuple[bytes, bytes]]) -> RowBlock:
    changed = {k for k, _ in changes}
    kept = np.array([k not in changed for k in block.keys])
    new = _block_of(layout, changes)
    keys = [k for k, keep in zip(block.keys, kept, strict=True) if keep] + list(new.keys)
    by_key = sorted(range(len(keys)), key=keys.__getitem__)
    stamps, rows = np.concatenate((block.stamps[kept], new.stamps)), np.concatenate((block.rows[kept], new.rows))
    return RowBlock([keys[i] for i in by_key], stamps[by_key], rows[by_key])


class ShardDigest:
    """Takes the blocks of a shard's merged view in key order. At the end `rows` is their number of rows, and the two digests are 32 hex digits each."""

    def __init__(self, layout: RowLayout, model_id: str, lsh_version: str) -> None:
        self._layout = layout
        self._of_rows = hashlib.blake2b(digest_size=16)
        self._of_data = hashlib.blake2b(f"{model_id}\0{lsh_version}\0".encode(), digest_size=16)
        self.rows = 0

    def update(self, block: RowBlock) -> None:
        """Adds the rows of a block."""
        self.rows += len(block)
        self._of_rows.update(self._with_keys(block.keys, block.rows))
        self._of_data.update(self._with_keys(block.keys, np.ascontiguousarray(block.stamps["input_hash"])))

    def _with_keys(self, keys: Sequence[bytes], values: np.ndarray) -> bytes:
        """For each row the length of its key (uint16), the key, and the value, as bytes."""
        if self._layout.id_kind is IdKind.INT64:
            out = np.empty(len(keys), [("length", "<u2"), ("key", "V8"), ("value", f"V{values.itemsize}")])
            out["length"] = 8
            out["key"] = np.frombuffer(b"".join(keys), "V8")
            out["value"] = values.view(f"V{values.itemsize}")
            return out.tobytes()
        raw, size = values.tobytes(), values.itemsize
        return b"".join(len(k).to_bytes(2, "little") + k + raw[i * size : (i + 1) * size] for i, k in enumerate(keys))

    @property
    def hexdigest(self) -> str:
        """Digest over (key, row bytes)."""
        return self._of_rows.hexdigest()

    @property
    def data_hexdigest(self) -> str:
        """Digest over (model, LSH version, key, input hash)."""
        return self._of_data.hexdigest()


def version_digest(shard_digests: Sequence[str]) -> str:
    """The digest of a version, 64 hex digits, from the digests of its shards in their order."""
    return hashlib.sha256("".join(shard_digests).encode()).hexdigest()
