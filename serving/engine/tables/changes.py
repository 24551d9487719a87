"""Row changes as arrays: decoded in a follower's thread or the loader, then applied by the engine in bounded turns.

A row stamp is packed into three int64, which compare by the row-stamp rule: features version; features offset and index; embedding offset and index.
Offset and index are packed as offset * 2^16 + index. An index fits into 16 bits, and every decode refuses offsets from 2^47 on.

Arrays: C changes, N bytes of text ids.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import Corrupted, RejectedInput
from schemas.ids import Id, IdKind
from schemas.index.keys import check_keys, int64_ids
from schemas.index.layout import RowBlock

_INDEX_BITS = 16
_OFFSET_MAX = (1 << 47) - 1


@dataclass(frozen=True, slots=True)
class TextIds:
    """Text ids side by side: id i is bytes_N[starts_C[i] : starts_C[i + 1]]."""

    bytes_N: np.ndarray
    starts_C: np.ndarray

    def __len__(self) -> int:
        return len(self.starts_C) - 1


IdArray = np.ndarray | TextIds  # int64 [C], or text


@dataclass(frozen=True, slots=True)
class Changes:
    """C changes in log order: ids, packed stamps int64 [C, 3], dead uint8 [C], rows of the layout's dtype [C] (anything where dead).

    Raises Corrupted (`bad_changes`) if these are not as many: compiled code takes C from one of them.
    """

    ids: IdArray
    stamps_C3: np.ndarray
    dead_C: np.ndarray
    rows_C: np.ndarray

    def __post_init__(self) -> None:
        counts = len(self.ids), len(self.stamps_C3), len(self.dead_C), len(self.rows_C)
        if len(set(counts)) != 1:
            raise Corrupted(
                "bad_changes", "row changes have {} ids, {} stamps, {} delete flags and {} rows, expected equal numbers".format(*counts)
            )

    def __len__(self) -> int:
        return len(self.dead_C)


def covered_stamp(features_offset: int) -> int:
    """The lowest packed features' stamp that item-features up to this next offset do not cover: column 1 of `pack_stamps`."""
    return min(features_offset, _OFFSET_MAX) << _INDEX_BITS


def list_ids(ids: IdArray) -> Sequence[int | bytes]:
    """The ids one by one: numbers, or bytes of text."""
    if isinstance(ids, TextIds):
        raw = ids.bytes_N.tobytes()
        return [raw[start:end] for start, end in itertools.pairwise(ids.starts_C.tolist())]
    return list(ids.tolist())


def take_ids(ids: IdArray, places: np.ndarray) -> IdArray:
    """The ids at some places."""
    if isinstance(ids, TextIds):
        starts, ends = ids.starts_C[:-1][places].tolist(), ids.starts_C[1:][places].tolist()
        return pack_text_ids([ids.bytes_N[start:end].tobytes() for start, end in zip(starts, ends, strict=True)])
    return ids[places]


def pack_text_ids(keys: Sequence[bytes]) -> TextIds:
    """Text ids from their bytes."""
    return _pack(b"".join(keys), map(len, keys), len(keys))


def _pack(joined: bytes, lengths: Iterable[int], count: int) -> TextIds:
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=starts[1:])
    return TextIds(np.frombuffer(joined, np.uint8), starts)


def pack_keys(keys: Sequence[bytes], kind: IdKind) -> IdArray:
    """Ids from index keys. Raises Corrupted (`bad_key`)."""
    if kind is IdKind.INT64:
        return int64_ids(keys)
    check_keys(keys, kind)
    return pack_text_ids(keys)


def pack_stamps(stamps: np.ndarray) -> np.ndarray:
    """int64 [C, 3] from STAMP records [C]. `decide_newer` compares them by the row-stamp rule."""
    packed = np.empty((len(stamps), 3), np.int64)
    packed[:, 0] = stamps["features_version"]
    packed[:, 1] = (stamps["features_offset"] << _INDEX_BITS) + stamps["features_index"]
    packed[:, 2] = (stamps["embedding_offset"] << _INDEX_BITS) + stamps["embedding_index"]
    return packed


def changes_of(block: RowBlock, kind: IdKind) -> Changes:
    """The rows of a block, deletes among them. Raises Corrupted (`bad_key`)."""
    return Changes(pack_keys(block.keys, kind), pack_stamps(block.stamps), block.stamps["dead"].copy(), block.rows)


def encode_ids(ids: Sequence[Id] | np.ndarray, kind: IdKind) -> IdArray:
    """Ids of a request as arrays. Raises RejectedInput (`bad_id`) if they are not of the catalogue's kind."""
    return _encode_text(ids) if kind is IdKind.TEXT else _encode_int64(ids)


def _encode_int64(ids: Sequence[Id] | np.ndarray) -> np.ndarray:
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu":
            raise RejectedInput("bad_id", f"ids of type {ids.dtype}, this catalogue's ids are int64 numbers")
        return np.array(ids, np.int64)  # a copy: for the read-only array of a body, numba would compile the look-up again
    try:
        array = np.fromiter(ids, np.int64, len(ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise RejectedInput("bad_id", f"an id is not an int64 number: {error}") from error
    return array


def _encode_text(ids: Sequence[Id] | np.ndarray) -> TextIds:
    try:
        joined = "".join(ids)  # type: ignore[arg-type] # a number among them raises
        if not joined.isascii():
            return pack_text_ids([id_.encode() for id_ in ids])  # type: ignore[union-attr] # as above
    except (TypeError, AttributeError, UnicodeEncodeError) as error:
        raise RejectedInput("bad_id", f"an id is not valid text: {error}; this catalogue's ids are text") from error
    return _pack(joined.encode(), map(len, ids), len(ids))
