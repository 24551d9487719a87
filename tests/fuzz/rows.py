"""Forged records of index-deltas through a server's own readers into its tables, beside a plain decoder of FORMAT.md and a plain fold.

Here: the forger, the plain reader and `try_records`. `python -m tests.fuzz.rows SEEDS RECORDS` runs it in a process of its own, with the kernels as served.
"""

import hashlib
import itertools
import random
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.kafka.reader import SourceRecord
from schemas.ids import IdKind, encode_index_key
from schemas.index.layout import Column, RowLayout, find_delta
from schemas.topics import INDEX_DELTAS
from serving.engine.tables.arena import open_arrays, plan_arena, plan_arena_bytes, reset_arrays
from serving.engine.tables.changes import encode_ids
from serving.engine.tables.tables import Tables
from serving.versions.deltas import decode_changes

VERSION, SHARD, ROOM = 17, 3, 64
COLUMNS = (Column("vector", "<f2", 3), Column("category", "<i4", 1))
ROW_BYTES = 10
IDS = {IdKind.INT64: [-(1 << 63), -1, 0, 7, (1 << 63) - 1], IdKind.TEXT: ["a", "eight by", "x" * 128, "é", "item-1"]}
HEADER = struct.Struct("<4sHHqIQqqq")
BLOCK = struct.Struct("<4sHBBII")
STAMP = struct.Struct("<qqHqHQB")
ODD_NUMBERS = (-(1 << 63), -(1 << 47), -2, -1, 0, 1, 2, 255, 256, 65_535, 1 << 31, (1 << 32) - 1, (1 << 47) - 1, 1 << 47, (1 << 63) - 1)
ODD_KEYS = (b"", b"\0", b"\xff" * 8, b"1234567", b"123456789", b"k" * 16, b"k" * 129, b"\xc3", b"k" * 65_535)


@dataclass
class Found:
    """What became of some records."""

    refused: int = 0
    applied: int = 0
    rows: dict[bytes, tuple[tuple[int, ...], bytes | None]] = field(default_factory=dict)


@dataclass
class Forged:
    """A changed row before it is put into a block."""

    key: bytes
    stamp: list[int]
    row: bytes


def forge_delta(chance: random.Random, kind: IdKind) -> bytes:
    """A record with right checksums. Most have one or two wrong fields, some none, some wrong bytes anywhere."""
    wrong = chance.choices((0, 1, 2, 5), (2, 5, 2, 1))[0]
    places = [chance.choice(("header", "count", "lengths", "key", "keys", "stamp", "row", "bytes", "end", "block")) for _ in range(wrong)]
    header = [b"AIFD", 2, 0, VERSION, SHARD, chance.randrange(9), 5, 5, 1_000]
    if "header" in places:
        place = chance.choice((1, 3, 4, 5, 6, 7, 8))
        low, high = {1: (0, 1 << 16), 4: (0, 1 << 32), 5: (0, 1 << 64)}.get(place, (-(1 << 63), 1 << 63))
        header[place] = chance.choice([n for n in ODD_NUMBERS if low <= n < high])
    body = HEADER.pack(*header) + _forge_block(chance, kind, places)
    if "end" in places:
        body = chance.choice((body[: chance.randrange(len(body))], body + chance.randbytes(3), body * 2))
    return _sealed(body)


def _sealed(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=8).digest()


def _forge_block(chance: random.Random, kind: IdKind, places: list[str]) -> bytes:
    """A block of up to five rows, or nothing."""
    ids = chance.sample(IDS[kind], chance.choice((0, 1, 2, 3, 5)))
    rows = [_forge_row(chance, encode_index_key(one), places) for one in ids]
    rows.sort(key=lambda row: row.key)
    if "keys" in places:
        chance.shuffle(rows)
        rows += rows[:1]
    if not rows and "block" not in places:
        return b""
    lengths = [len(row.key) for row in rows]
    if "lengths" in places and lengths:
        lengths[chance.randrange(len(lengths))] = chance.choice((0, 7, 9, 16, 65_535))
    keys = (struct.pack(f"<{len(rows)}H", *lengths) if kind is IdKind.TEXT else b"") + b"".join(row.key for row in rows)
    head: list[Any] = [b"AIFB", 2, list(IdKind).index(kind), 0, len(rows), len(keys)]
    if "block" in places:
        place = chance.choice((1, 2, 4, 5))
        head[place] = chance.choice([n for n in ODD_NUMBERS if 0 <= n < {1: 1 << 16, 2: 1 << 8}.get(place, 1 << 32)])
    if "count" in places:
        head[4] = chance.choice((0, 1, len(rows) + 1, (1 << 32) - 1))
    columns = b"".join(row.row[:6] for row in rows) + b"".join(row.row[6:] for row in rows)
    body = BLOCK.pack(*head) + keys + b"".join(STAMP.pack(*row.stamp) for row in rows) + columns
    if "bytes" in places:
        at = chance.randrange(len(body))
        body = body[:at] + chance.randbytes(chance.choice((0, 1, 4))) + body[at + chance.choice((0, 1, 4)) :]
    return _sealed(body)


def _forge_row(chance: random.Random, key: bytes, places: list[str]) -> Forged:
    stamp = [
        chance.randrange(4),
        chance.randrange(4),
        chance.randrange(2),
        chance.randrange(-1, 3),
        0,
        chance.randrange(99),
        int(chance.random() < 0.3),
    ]
    if "key" in places and chance.random() < 0.5:
        key = chance.choice(ODD_KEYS)
    if "stamp" in places and chance.random() < 0.5:
        place = chance.choice((0, 1, 3, 6))
        stamp[place] = chance.choice((2, 7, 255)) if place == 6 else chance.choice(ODD_NUMBERS)
    row = bytes(ROW_BYTES) if stamp[6] else chance.randbytes(ROW_BYTES)
    if "row" in places and chance.random() < 0.5:
        row = chance.choice((b"", row[:-1], row * 2, chance.randbytes(ROW_BYTES)))
    return Forged(key, stamp, row)


def read_plainly(raw: bytes, kind: IdKind) -> list[tuple[bytes, tuple[int, ...], bytes | None]] | None:
    """The changes for the version in a record, by FORMAT.md alone; None if no shard writes such a record."""
    if len(raw) < HEADER.size + 8 or not _is_sealed(raw):
        return None
    magic, number, _, version, shard, _, *offsets, source_ms = HEADER.unpack_from(raw)
    if (magic, number, shard) != (b"AIFD", 2, SHARD) or version < -1 or source_ms < 0 or not all(0 <= o < 1 << 47 for o in offsets):
        return None
    block = raw[HEADER.size : -8]
    return [] if version != VERSION or not block else _read_block_plainly(block, kind)


def _is_sealed(raw: bytes) -> bool:
    return hashlib.blake2b(raw[:-8], digest_size=8).digest() == raw[-8:]


def _read_block_plainly(raw: bytes, kind: IdKind) -> list[tuple[bytes, tuple[int, ...], bytes | None]] | None:
    if len(raw) < BLOCK.size + 8 or not _is_sealed(raw):
        return None
    magic, number, kind_number, _, rows, key_bytes = BLOCK.unpack_from(raw)
    if (magic, number, kind_number) != (b"AIFB", 2, list(IdKind).index(kind)) or rows == 0:
        return None
    if len(raw) != BLOCK.size + key_bytes + rows * (STAMP.size + ROW_BYTES) + 8:
        return None
    section = raw[BLOCK.size : BLOCK.size + key_bytes]
    lengths = [8] * rows
    if kind is IdKind.TEXT:
        if key_bytes < 2 * rows:
            return None
        lengths, section = list(struct.unpack_from(f"<{rows}H", section)), section[2 * rows :]
    if sum(lengths) != len(section):
        return None
    keys, at = [], 0
    for length in lengths:
        keys.append(section[at : at + length])
        at += length
    if not all(_is_key(key, kind) for key in keys) or any(a >= b for a, b in itertools.pairwise(keys)):
        return None
    at = BLOCK.size + key_bytes
    stamps = [STAMP.unpack_from(raw, at + i * STAMP.size) for i in range(rows)]
    if any(o[6] > 1 or o[0] < 0 or not (-1 <= o[1] < 1 << 47 and -1 <= o[3] < 1 << 47) for o in stamps):
        return None
    at += rows * STAMP.size
    found = []
    for i, (key, stamp) in enumerate(zip(keys, stamps, strict=True)):
        row = raw[at + 6 * i : at + 6 * i + 6] + raw[at + 6 * rows + 4 * i : at + 6 * rows + 4 * i + 4]
        found.append((key, stamp, None if stamp[6] else row))
    return found


def _is_key(key: bytes, kind: IdKind) -> bool:
    if kind is IdKind.INT64:
        return len(key) == 8
    try:
        return 1 <= len(key) <= 128 and bool(key.decode())
    except UnicodeDecodeError:
        return False


def fold_plainly(rows: dict[bytes, tuple[tuple[int, ...], bytes | None]], key: bytes, stamp: tuple[int, ...], row: bytes | None) -> None:
    """FORMAT.md section 3: neither component goes back, and one advances."""
    if key in rows:
        features, embedding = (stamp[:3], rows[key][0][:3]), (stamp[3:5], rows[key][0][3:5])
        if features[0] < features[1] or embedding[0] < embedding[1] or (features[0] == features[1] and embedding[0] == embedding[1]):
            return
    rows[key] = stamp, row


def make_empty(kind: IdKind) -> Tables:
    """Tables without rows, in ordinary memory."""
    layout = RowLayout(COLUMNS, kind)
    plan = plan_arena(layout, plan_arena_bytes(layout, ROOM, 16 * ROOM), ROOM, 16 * ROOM)
    arrays = open_arrays(plan, bytearray(plan.size_bytes))
    reset_arrays(arrays)
    return Tables(layout, plan, arrays)


def try_records(seed: int, records: int, kind: IdKind) -> Found:
    """Forge records, read them as a server does, and compare each decision and then all rows with the plain reader. Raises AssertionError."""
    chance, tables, found = random.Random(seed), make_empty(kind), Found()
    for number in range(records):
        raw = forge_delta(chance, kind)
        expected = read_plainly(raw, kind)
        delta = find_delta({VERSION: tables.layout}, SHARD, raw)
        assert (delta is None) == (expected is None), f"seed {seed}, {kind} record {number}: {raw.hex()[:400]}"
        batch = decode_changes(SourceRecord(INDEX_DELTAS, SHARD, number, None, raw), delta, VERSION, tables.layout)
        if batch.changes is not None:
            found.applied += tables.apply(batch.changes).applied
        found.refused += delta is None
        for change in expected or ():
            fold_plainly(found.rows, *change)
    assert rows_of(tables, found.rows, kind) == {key: row for key, (_, row) in found.rows.items()}, f"seed {seed}, {kind}"
    assert tables.rows == sum(row is not None for _, row in found.rows.values()), f"seed {seed}, {kind}"
    return found


def rows_of(tables: Tables, wanted: Mapping[bytes, object], kind: IdKind) -> dict[bytes, bytes | None]:
    """The row bytes of each key in the tables; None where it is deleted or unknown."""
    found: dict[bytes, bytes | None] = {}
    for key in wanted:
        item = key.decode() if kind is IdKind.TEXT else int.from_bytes(key) - (1 << 63)
        rows = tables.find(encode_ids([item], kind))
        found[key] = None if rows[0] < 0 else tables.rows_at(rows).tobytes()
    return found


if __name__ == "__main__":
    for its_seed in range(int(sys.argv[1])):
        for id_kind in IdKind:
            try_records(its_seed, int(sys.argv[2]), id_kind)
