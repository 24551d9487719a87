"""Rows, stamps, blocks, increments and delta records as bytes: FORMAT.md sections 2 to 5 and 8. No I/O.

Invariants: a decode checks magic, format, checksum and sizes before it gives anything, and raises Corrupted, so a reader never sees a torn row (I3). Increments
have no checksum of their own: those of RocksDB cover them. A checksum does not say who wrote the bytes, so a decode also checks id
kind, keys and stamps: compiled readers rely on them.

Arrays: R rows. A row is one element of a packed structured array whose fields are the columns; a stamp is one element of a STAMP array.
"""

import hashlib
import re
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from schemas.errors import Corrupted, Incompatible
from schemas.ids import IdKind
from schemas.index.keys import decode_keys, encode_keys
from schemas.limits import DELTA_RECORD_BYTES_MAX
from schemas.model.spec import ModelSpec

FORMAT = 2
REQUIRED = 1  # column flag: a reader that does not know the column must refuse the version

# FORMAT.md section 3. Compared field by field, never as bytes.
STAMP = np.dtype(
    [
        ("features_version", "<i8"),
        ("features_offset", "<i8"),
        ("features_index", "<u2"),
        ("embedding_offset", "<i8"),
        ("embedding_index", "<u2"),
        ("input_hash", "<u8"),
        ("dead", "u1"),
    ]
)
ONE_STAMP = struct.Struct("<qqHqHQB")  # the same, as plain numbers
DEAD_AT = STAMP.itemsize - 1  # the place of `dead`
assert STAMP.itemsize == ONE_STAMP.size == 37

_BLOCK_HEADER = struct.Struct("<4sHBBII")
_DELTA_HEADER = struct.Struct("<4sHHqIQqqq")
_LENGTH_BYTES = 2  # of a text key in a block
_CHECKSUM_BYTES = 8
_DELTA_ROOM_BYTES = 1024  # for what a delta record holds besides changes
_BLOCK_MAGIC, _DELTA_MAGIC = b"AIFB", b"AIFD"
_ID_KINDS = (IdKind.INT64, IdKind.TEXT)
OFFSET_END = 1 << 47  # of Kafka offsets: with an index of 16 bits they are packed into one int64 (serving/engine/tables/changes.py)

WATERMARK_VERSION = -1


def _checksum(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_CHECKSUM_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a row: its name, its NumPy dtype code, the number of elements in a row, and its flags (REQUIRED or 0)."""

    name: str
    dtype: str
    width: int
    flags: int = REQUIRED


@dataclass(frozen=True)
class RowLayout:
    """The column directory of a version and its id kind: enough to read any of its bytes without the model."""

    columns: tuple[Column, ...]
    id_kind: IdKind

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The packed structured dtype of a row. A column of one element is a scalar field."""
        return np.dtype([(c.name, c.dtype) if c.width == 1 else (c.name, c.dtype, (c.width,)) for c in self.columns])

    @property
    def row_bytes(self) -> int:
        """Size of a row without key and stamp."""
        return self.dtype.itemsize

    def to_dict(self) -> dict[str, Any]:
        """The layout as a manifest holds it; `decode_layout` reads it."""
        return {"id_kind": str(self.id_kind), "columns": [[c.name, c.dtype, c.width, c.flags] for c in self.columns]}


def row_layout(spec: ModelSpec) -> RowLayout:
    """The layout of a model's rows (FORMAT.md section 3)."""
    columns = (
        Column("vector", "<f2", spec.width),
        Column("bridge", "<f2", spec.bridges),
        Column("signature", "u1", spec.signature_bytes),
        Column("has_signature", "u1", 1),
        Column("category", "<i4", 1),
        Column("bid", "<f4", 1),
        Column("realtime", "<f4", len(spec.schema.realtime_features)),
    )
    return RowLayout(tuple(c for c in columns if c.width > 0), spec.schema.id_kind)


# By name the dtype of a known column, and its width where that is not the model's: readers take views of these types.
KNOWN_COLUMNS: Mapping[str, tuple[str, int | None]] = {
    "vector": ("<f2", None),
    "bridge": ("<f2", None),
    "signature": ("u1", None),
    "has_signature": ("u1", 1),
    "category": ("<i4", 1),
    "bid": ("<f4", 1),
    "realtime": ("<f4", None),
}
_DTYPE = re.compile("[<|]?(f[248]|[iu][1248])")
_COLUMN_WIDTH_MAX = 1 << 16


def _decode_column(name: Any, dtype: Any, width: Any, flags: Any) -> Column:
    if [type(one) for one in (name, dtype, width, flags)] != [str, str, int, int]:
        raise TypeError(f"a column is {[name, dtype, width, flags]}, expected a name, a dtype, a width and flags")
    known_dtype, known_width = KNOWN_COLUMNS.get(name, (dtype, None))
    if not _DTYPE.fullmatch(dtype) or dtype != known_dtype or width != (known_width or width) or not 1 <= width <= _COLUMN_WIDTH_MAX:
        raise ValueError(
            f"column {name[:80]!r} has dtype {dtype[:80]!r} and width {width}, expected {known_dtype[:80]!r} and {known_width or 'at least 1'}"
        )
    return Column(name, dtype, width, flags)


def decode_layout(raw: Mapping[str, Any]) -> RowLayout:
    """The layout in a manifest. Raises Incompatible (`unknown_column`) if it requires a column that this code does not know; KeyError, TypeError or
    ValueError, which decode_manifest maps, if it is no layout."""
    layout = RowLayout(tuple(_decode_column(*c) for c in raw["columns"]), IdKind(raw["id_kind"]))
    if not layout.columns or len({c.name for c in layout.columns}) != len(layout.columns):
        raise ValueError(f"expected columns of different names, found {[c.name for c in layout.columns]}")
    unknown = [c.name for c in layout.columns if c.flags & REQUIRED and c.name not in KNOWN_COLUMNS]
    if unknown:
        raise Incompatible("unknown_column", f"the version requires columns {unknown} that this code does not know; upgrade the reader")
    return layout


def _bad_order(shown: object) -> Corrupted:
    return Corrupted(
        "bad_stamp",
        f"no shard writes the stamp {shown}: versions count from 0, offsets from -1 to {OFFSET_END - 1}, and the delete flag is 0 or 1",
    )


def check_stamps(stamps: np.ndarray) -> None:
    """Raise Corrupted (`bad_stamp`) unless a shard can have written all of a STAMP array."""
    bad = (stamps["features_version"] < 0) | (stamps["dead"] > 1)
    for offsets in (stamps["features_offset"], stamps["embedding_offset"]):
        bad |= (offsets < -1) | (offsets >= OFFSET_END)
    if bad.any():
        raise _bad_order(stamps[bad][0])


# --- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowBlock:
    """R rows in key order: their index keys, stamps (STAMP [R]), and rows ([R] of the layout's dtype; zeros where dead)."""

    keys: Sequence[bytes]
    stamps: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def encode_block(layout: RowLayout, block: RowBlock) -> bytes:
    """The bytes of one columnar block (FORMAT.md section 4)."""
    keys = encode_keys(block.keys, layout.id_kind)
    header = _BLOCK_HEADER.pack(_BLOCK_MAGIC, FORMAT, _ID_KINDS.index(layout.id_kind), 0, len(block), len(keys))
    body = b"".join((header, keys, block.stamps.tobytes(), *(np.ascontiguousarray(block.rows[c.name]).tobytes() for c in layout.columns)))
    return body + _checksum(body)


def _checked(raw: bytes, magic: bytes, header: struct.Struct, what: str) -> tuple[Any, ...]:
    """Header fields after the checks that every decode begins with."""
    if len(raw) < header.size + _CHECKSUM_BYTES or raw[:4] != magic:
        raise Corrupted(f"bad_{what}", f"{len(raw)} bytes that begin with {raw[:4]!r} are not a {what} (expected {magic!r})")
    if _checksum(raw[:-_CHECKSUM_BYTES]) != raw[-_CHECKSUM_BYTES:]:
        raise Corrupted(
            f"bad_{what}_checksum", f"the checksum of a {what} of {len(raw)} bytes does not match: bytes were changed after it was written"
        )
    fields = header.unpack_from(raw)
    if fields[1] != FORMAT:
        raise Incompatible(f"{what}_format", f"{what} has format {fields[1]}, this code reads {FORMAT}")
    return fields


def decode_block(layout: RowLayout, raw: bytes, may_be_dead: bool = False) -> RowBlock:
    """The block in these bytes: at least one row, keys in strictly ascending order. `may_be_dead`: whether rows may be deletes, as in a delta record.

    Raises Corrupted (`bad_block`, `bad_block_checksum`, `bad_block_size`, `bad_key`, `unsorted_block`, `bad_stamp`), Incompatible (`block_format`,
    `block_id_kind`).
    """
    _, _, kind, _, rows, key_bytes = _checked(raw, _BLOCK_MAGIC, _BLOCK_HEADER, "block")
    if kind != _ID_KINDS.index(layout.id_kind):
        raise Incompatible(
            "block_id_kind", f"block has ids of kind {kind}, the manifest says {layout.id_kind}: {_ID_KINDS.index(layout.id_kind)}"
        )
    if rows == 0:
        raise Corrupted("bad_block", "a block has no rows, expected at least one")
    expected = _BLOCK_HEADER.size + key_bytes + rows * (STAMP.itemsize + layout.row_bytes) + _CHECKSUM_BYTES
    if len(raw) != expected:
        raise Corrupted("bad_block_size", f"block of {rows} rows has {len(raw)} bytes, its layout needs {expected}")
    at = _BLOCK_HEADER.size + key_bytes
    keys = decode_keys(raw[_BLOCK_HEADER.size : at], rows, layout.id_kind)
    stamps = np.frombuffer(raw, STAMP, rows, at)
    check_stamps(stamps)
    if not may_be_dead and stamps["dead"].any():
        raise Corrupted("bad_stamp", "a block of a full part has a deleted row; deletes are in incremental parts and delta records only")
    at += stamps.nbytes
    decoded = np.empty(rows, layout.dtype)
    for column in layout.columns:
        values = np.frombuffer(raw, column.dtype, rows * column.width, at)
        decoded[column.name] = values if column.width == 1 else values.reshape(rows, column.width)
        at += values.nbytes
    return RowBlock(keys, stamps, decoded)


# --- incremental part: one value per key -----------------------------------------------------------------------------


def encode_increment(stamp: np.ndarray, row: np.ndarray | None) -> bytes:
    """Value of an incremental row: its stamp (one STAMP element), then the row unless it is a tombstone."""
    return stamp.tobytes() + (b"" if row is None else row.tobytes())


def decode_increment(layout: RowLayout, raw: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """(stamp, row): an element of STAMP, and one of the layout's dtype, or None for a tombstone. Raises Corrupted (`bad_increment`,
    `bad_stamp`)."""
    if len(raw) < STAMP.itemsize:
        raise Corrupted("bad_increment", f"incremental row of {len(raw)} bytes, expected at least {STAMP.itemsize}")
    version, features_offset, _, embedding_offset, _, _, dead = fields = ONE_STAMP.unpack_from(raw)
    if version < 0 or not (-1 <= features_offset < OFFSET_END and -1 <= embedding_offset < OFFSET_END) or dead > 1:
        raise _bad_order(fields)
    expected = STAMP.itemsize + (0 if dead else layout.row_bytes)
    if len(raw) != expected:
        raise Corrupted("bad_increment", f"incremental row of {len(raw)} bytes (dead = {dead}), expected {expected}")
    return np.frombuffer(raw, STAMP, 1)[0], None if dead else np.frombuffer(raw, layout.dtype, 1, STAMP.itemsize)[0]


def stack_increments(layout: RowLayout, pairs: Sequence[tuple[bytes, bytes]]) -> RowBlock:
    """At least one incremental row, each as (index key, value), in one block. The keys are not checked. Raises Corrupted (`bad_increment`, `bad_stamp`)."""
    whole = STAMP.itemsize + layout.row_bytes
    sizes_R = np.fromiter((len(value) for _, value in pairs), np.int64, len(pairs))
    stacked = b"".join([value.ljust(whole, b"\0")[:whole] for _, value in pairs])
    rows_R = np.frombuffer(stacked, np.dtype([("stamp", STAMP), ("row", layout.dtype)]))
    stamps = np.ascontiguousarray(rows_R["stamp"])
    if (sizes_R != np.where(stamps["dead"] != 0, STAMP.itemsize, whole)).any():
        found = sorted(set(sizes_R.tolist()))[:8]
        raise Corrupted("bad_increment", f"incremental rows of {found} bytes, expected {whole}, or {STAMP.itemsize} where one is deleted")
    check_stamps(stamps)
    return RowBlock([key for key, _ in pairs], stamps, np.ascontiguousarray(rows_R["row"]))


def list_increments(block: RowBlock) -> list[tuple[bytes, bytes]]:
    """The rows of a block as (index key, value of an incremental row)."""
    dead = block.stamps["dead"].tolist()
    return [
        (key, encode_increment(stamp, None if is_dead else row))
        for key, stamp, row, is_dead in zip(block.keys, block.stamps, block.rows, dead, strict=True)
    ]


# --- deltas ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeltaHeader:
    """What a delta record says besides rows.

    - version: whose rows they are; WATERMARK_VERSION if no version receives any
    - sequence: counts up by one in a shard, again from its snapshot under a new owner
    - next_offsets: of item-features and new-items in the shard after the batch
    - source_ms: record time of the newest source record in it
    """

    version: int
    shard: int
    sequence: int
    next_offsets: tuple[int, int]
    source_ms: int


@dataclass(frozen=True, slots=True)
class DeltaRecord:
    """A header and the changed rows, deletes among them; None without any."""

    header: DeltaHeader
    block: RowBlock | None = None

    @property
    def changes(self) -> list[tuple[bytes, bytes]]:
        """The rows as (index key, value of an incremental row)."""
        return [] if self.block is None else list_increments(self.block)


def encode_delta(header: DeltaHeader, block: bytes = b"") -> bytes:
    """One Kafka record of index-deltas (FORMAT.md section 8). `block`: what `encode_block` made of the changed rows; nothing for a watermark."""
    h = header
    head = _DELTA_HEADER.pack(_DELTA_MAGIC, FORMAT, 0, h.version, h.shard, h.sequence, *h.next_offsets, h.source_ms)
    return head + block + _checksum(head + block)


def decode_delta(layout_of: Mapping[int, RowLayout], raw: bytes) -> DeltaRecord:
    """The delta record in these bytes. It has no rows if `layout_of`, which gives layouts by version, does not have its version.

    Raises Corrupted (`bad_delta`, `bad_delta_checksum`, `bad_delta_header`, and those of `decode_block`), Incompatible (`delta_format`, `block_format`,
    `block_id_kind`).
    """
    _, _, _, version, shard, sequence, next_features, next_embeddings, source_ms = _checked(raw, _DELTA_MAGIC, _DELTA_HEADER, "delta")
    header = DeltaHeader(version, shard, sequence, (next_features, next_embeddings), source_ms)
    if version < WATERMARK_VERSION or source_ms < 0 or not all(0 <= offset < OFFSET_END for offset in header.next_offsets):
        raise Corrupted("bad_delta_header", f"no shard writes a delta record with {header}")
    layout, block = layout_of.get(version), raw[_DELTA_HEADER.size : -_CHECKSUM_BYTES]
    return DeltaRecord(header, decode_block(layout, block, may_be_dead=True) if block and layout is not None else None)


def find_delta(layout_of: Mapping[int, RowLayout], partition: int, raw: bytes) -> DeltaRecord | None:
    """As `decode_delta`, of a record in a partition of index-deltas; None where no shard wrote it there, whatever its checksum says.

    The index's own shards write one format, and the layout of the version's manifest. If one of theirs is passed over, the next sequence shows it.
    """
    try:
        delta = decode_delta(layout_of, raw)
    except (Corrupted, Incompatible):
        return None
    return delta if delta.header.shard == partition else None


def plan_delta_cuts(layout: RowLayout, keys: Sequence[bytes], bytes_max: int = DELTA_RECORD_BYTES_MAX) -> list[slice]:
    """Which changed rows of a micro-batch go into which delta record, so that each record has at most `bytes_max`, or one row."""
    ends = list(accumulate(len(key) + _LENGTH_BYTES + STAMP.itemsize + layout.row_bytes for key in keys))
    cuts, start, before = list[slice](), 0, 0
    while start < len(ends):
        end = max(start + 1, bisect_right(ends, before + bytes_max - _DELTA_ROOM_BYTES))
        cuts.append(slice(start, end))
        start, before = end, ends[end - 1]
    return cuts
