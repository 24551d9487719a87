"""Record types in RocksDB's logs: the write-ahead logs and the MANIFEST.

RocksDB 9.8 reads a record whose type byte names a recycled log (5 to 8, 11) again and again, and an opening never returns. One flipped bit suffices:
type 1 becomes 5. So the types are checked before RocksDB reads them.

Source: RocksDB's log format. A file has blocks of 32 KiB. A record is a checksum (4 bytes), a length (2), a type (1) and its content. Zeros fill the end
of a block that has no room for a header.
"""

import struct
from pathlib import Path

from infra.rocks_errors import REBUILD
from schemas.errors import Corrupted

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_LAST_TYPE = 4  # 0 is preallocated space; 1 to 4 are a full record, and the first, middle and last piece of one


def check_logs(directory: Path) -> None:
    """Raises Corrupted (`database_corrupted`) if a record has a type that our databases never write; OSError if a file does not read."""
    for path in sorted((*directory.glob("*.log"), *directory.glob("MANIFEST-*"))):
        with path.open("rb") as log:
            begin = 0
            while block := log.read(_BLOCK_BYTES):
                _check_block(path, begin, block)
                begin += len(block)


def _check_block(path: Path, begin: int, block: bytes) -> None:
    at = 0
    while at + _HEADER.size <= len(block):
        _, length, kind = _HEADER.unpack_from(block, at)
        if kind > _LAST_TYPE:
            raise Corrupted(
                "database_corrupted",
                f"{path} is damaged: the record at byte {begin + at} has type {kind}, expected 0 to {_LAST_TYPE}; {REBUILD}",
            )
        if not kind and not length:
            return  # RocksDB goes on with the next block, too
        at += _HEADER.size + length
