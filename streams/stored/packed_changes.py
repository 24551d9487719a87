"""Row changes of a micro-batch as delta records hold them, side by side in one buffer (FORMAT.md section 8).

Here: `pack_changes`. Not here: headers, checksums, and how many changes a record takes (schemas/index/layout.py); sending (streams/shard/outbox_sender.py).

Arrays: R changes, T bytes.
"""

from typing import NamedTuple

import numpy as np

from infra.joined import Joined, copy_into, join_stored
from schemas.model.compiled import kernel

_LENGTH_BYTES = 2  # of a key, before it


class PackedChanges(NamedTuple):
    """R changes in bytes_T (uint8). Change r ends at ends_R[r] (int64), and the next one begins there."""

    bytes_T: np.ndarray
    ends_R: np.ndarray


def pack_changes(keys: Joined, values: Joined) -> PackedChanges:
    """For each of R changes the length of its index key (uint16), the key, and the increment value. No key and no value is missing."""
    ends_R = np.cumsum(_LENGTH_BYTES + (keys.ends_R - keys.starts_R) + (values.ends_R - values.starts_R))
    bytes_T = np.empty(int(ends_R[-1]) if len(ends_R) else 0, np.uint8)
    _pack_changes(*keys, *values, bytes_T)
    return PackedChanges(bytes_T, ends_R)


@kernel
def _pack_changes(
    keys_T: np.ndarray,
    key_starts_R: np.ndarray,
    key_ends_R: np.ndarray,
    values_T: np.ndarray,
    starts_R: np.ndarray,
    ends_R: np.ndarray,
    out_T: np.ndarray,
) -> None:
    at = 0
    for r in range(starts_R.shape[0]):
        length = key_ends_R[r] - key_starts_R[r]
        out_T[at], out_T[at + 1] = np.uint8(length & 255), np.uint8(length >> 8)
        at = copy_into(keys_T, key_starts_R[r], key_ends_R[r], out_T, at + _LENGTH_BYTES)
        at = copy_into(values_T, starts_R[r], ends_R[r], out_T, at)


def compile_changes_packed() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    one = join_stored([b"a"])
    pack_changes(one, one)
