"""Index keys of many ids as bytes and as arrays: FORMAT.md sections 2 and 4. No I/O.

Invariant: no key goes into an array before its length was compared with its id kind. Compiled look-ups rely on it.

Arrays: R keys.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from schemas.errors import Corrupted
from schemas.ids import IdKind
from schemas.limits import TEXT_ID_BYTES_MAX

_INT64_KEY_BYTES = 8
_LENGTH_BYTES = 2
_SIGN_BIT = np.uint64(1 << 63)


def check_keys(keys: Sequence[bytes], kind: IdKind) -> None:
    """Raise Corrupted (`bad_key`) unless all index keys are of this kind: 8 bytes, or 1 to 128 bytes of UTF-8."""
    sizes = set(map(len, keys))
    if kind is IdKind.INT64:
        if not sizes <= {_INT64_KEY_BYTES}:
            raise Corrupted("bad_key", f"index keys of {sorted(sizes)[:8]} bytes, an int64 id has {_INT64_KEY_BYTES}")
        return
    if sizes and not 1 <= min(sizes) <= max(sizes) <= TEXT_ID_BYTES_MAX:
        raise Corrupted("bad_key", f"index keys of {min(sizes)} to {max(sizes)} bytes, a text id has 1 to {TEXT_ID_BYTES_MAX}")
    try:
        b"\n".join(keys).decode()  # no character goes across the end of a line
    except UnicodeDecodeError as error:
        raise Corrupted("bad_key", f"an index key of a text catalogue is not UTF-8: {error}") from error


def int64_ids(keys: Sequence[bytes]) -> np.ndarray:
    """The ids of R index keys of an int64 catalogue: int64 [R]. Raises Corrupted (`bad_key`)."""
    check_keys(keys, IdKind.INT64)
    return (np.frombuffer(b"".join(keys), ">u8").astype(np.uint64) ^ _SIGN_BIT).view(np.int64)


def encode_keys(keys: Sequence[bytes], kind: IdKind) -> bytes:
    """The keys section of a block."""
    lengths = b"" if kind is IdKind.INT64 else np.fromiter(map(len, keys), "<u2", len(keys)).tobytes()
    return lengths + b"".join(keys)


def decode_keys(raw: bytes, rows: int, kind: IdKind) -> list[bytes]:
    """The keys of a block, strictly ascending. Raises Corrupted (`bad_block_size`, `bad_key`, `unsorted_block`)."""
    if kind is IdKind.INT64:
        ends = list(range(_INT64_KEY_BYTES, rows * _INT64_KEY_BYTES + 1, _INT64_KEY_BYTES))
        first = 0
    else:
        first = rows * _LENGTH_BYTES
        lengths = np.frombuffer(raw, "<u2", rows) if first <= len(raw) else np.zeros(rows, "<u2")
        ends = (np.cumsum(lengths, dtype=np.int64) + first).tolist()
    if ends[-1] != len(raw):
        raise Corrupted("bad_block_size", f"the keys of a block of {rows} rows end at {ends[-1]}, its header says {len(raw)}")
    keys = [raw[a:b] for a, b in zip([first, *ends], ends, strict=False)]
    check_keys(keys, kind)
    if any(a >= b for a, b in pairwise(keys)):
        raise Corrupted("unsorted_block", f"the keys of a block of {rows} rows are not in strictly ascending order")
    return keys
