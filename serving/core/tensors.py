"""Tensors of the Open Inference Protocol: names of datatypes, raw little-endian bytes, plain JSON values; and back.

Values of fixed size are read in place, without a loop (10^4 int64 ids: 1 us). A BYTES tensor is a list of byte strings, each preceded by its length in
four bytes, little-endian.
Source: KServe, Open Inference Protocol v2; Triton, binary tensor data extension.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.errors import RejectedInput
from schemas.limits import CANDIDATES_MAX

Values = np.ndarray | list[bytes]

BYTES = "BYTES"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_JSON_KINDS: Mapping[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}
_LENGTH_BYTES = 4
_DIMENSIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor. `values` in row-major order: an array of its datatype, or a list of bytes for BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Values


def count_elements(name: str, datatype: str, shape: Sequence[Any]) -> int:
    """How many values a shape has. Raises RejectedInput (`bad_tensor`) if datatype or shape is invalid, or the values are too many."""
    if datatype != BYTES and datatype not in DTYPES:
        known = ", ".join((*DTYPES, BYTES))
        raise RejectedInput("bad_tensor", f"{name}: {datatype[:20]!r} is no datatype; expected one of {known}")
    if not 1 <= len(shape) <= _DIMENSIONS_MAX or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape):
        shown = str(list(shape[:_DIMENSIONS_MAX]))[:120]
        raise RejectedInput("bad_tensor", f"{name}: shape {shown} is none; expected 1 to {_DIMENSIONS_MAX} whole numbers from 0")
    if (count := math.prod(shape)) > CANDIDATES_MAX:  # before a loop over them, which would keep all other requests waiting
        raise RejectedInput("bad_tensor", f"{name}: shape {list(shape)} has {count} values, expected at most {CANDIDATES_MAX}; send fewer")
    return count


def decode_raw(name: str, datatype: str, shape: Sequence[Any], raw: bytes | memoryview) -> Tensor:
    """A tensor from its raw bytes. Raises RejectedInput (`bad_tensor`) if bytes and shape do not match."""
    count = count_elements(name, datatype, shape)
    if datatype == BYTES:
        return Tensor(name, datatype, tuple(shape), _decode_bytes(name, count, raw))
    dtype = DTYPES[datatype]
    if len(raw) != count * dtype.itemsize:
        raise RejectedInput(
            "bad_tensor",
            f"{name}: {datatype} of shape {list(shape)} has {count * dtype.itemsize} bytes, the body brings {len(raw)}; correct one of them",
        )
    return Tensor(name, datatype, tuple(shape), np.frombuffer(raw, dtype))


def _decode_bytes(name: str, count: int, raw: bytes | memoryview) -> list[bytes]:
    raw, at, values = bytes(raw), 0, list[bytes]()
    if count * _LENGTH_BYTES > len(raw):
        raise RejectedInput("bad_tensor", f"{name}: {count} values need at least {count * _LENGTH_BYTES} bytes, the body brings {len(raw)}")
    for _ in range(count):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(raw[at:start], "little")
        values.append(raw[start:at])
    if at != len(raw):
        raise RejectedInput(
            "bad_tensor",
            f"{name}: the lengths of its {count} values end at byte {at} of {len(raw)}; put 4 bytes of length before each value",
        )
    return values


def decode_data(name: str, datatype: str, shape: Sequence[Any], data: Any) -> Tensor:
    """A tensor from a JSON list of plain values. Raises RejectedInput (`bad_tensor`)."""
    count = count_elements(name, datatype, shape)
    if not isinstance(data, list) or len(data) != count:
        found = f"{len(data)} values" if isinstance(data, list) else type(data).__name__
        raise RejectedInput(
            "bad_tensor", f"{name}: shape {list(shape)} has {count} values, data has {found}; send a flat list of that length"
        )
    kinds = set(map(type, data))
    if datatype == BYTES:
        return Tensor(name, datatype, tuple(shape), _encode_texts(name, kinds, data))
    dtype = DTYPES[datatype]
    if not kinds <= set(_JSON_KINDS[dtype.kind]):
        raise _wrong_values(name, datatype, kinds)
    try:
        with np.errstate(over="raise"):
            return Tensor(name, datatype, tuple(shape), np.array(data, dtype))
    except (OverflowError, FloatingPointError) as error:
        raise RejectedInput("bad_tensor", f"{name}: a value does not fit {datatype}: {error}") from error


def _encode_texts(name: str, kinds: set[type], data: list[Any]) -> list[bytes]:
    if not kinds <= {str}:
        raise _wrong_values(name, BYTES, kinds)
    try:
        return [text.encode() for text in data]
    except UnicodeEncodeError as error:
        raise RejectedInput("bad_tensor", f"{name}: a text is not Unicode: {error.reason}; send UTF-8 without lone surrogates") from error


def _wrong_values(name: str, datatype: str, kinds: set[type]) -> RejectedInput:
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    return RejectedInput(
        "bad_tensor", f"{name}: data has values of {found}; {datatype} takes plain numbers, BOOL true and false, BYTES texts"
    )


def encode_raw(tensor: Tensor) -> bytes:
    """The raw bytes of a tensor."""
    if isinstance(tensor.values, np.ndarray):
        return tensor.values.astype(DTYPES[tensor.datatype], copy=False).tobytes()
    return b"".join(part for value in tensor.values for part in (len(value).to_bytes(_LENGTH_BYTES, "little"), value))


def encode_data(tensor: Tensor) -> list[Any]:
    """The values as a flat list for JSON. REQUIRES: BYTES values are UTF-8."""
    if isinstance(tensor.values, np.ndarray):
        plain: list[Any] = tensor.values.tolist()
        return plain
    return [value.decode() for value in tensor.values]
