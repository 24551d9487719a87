"""Tensors in both forms: golden bytes, there and back, and every mismatch of bytes, shape and datatype refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from schemas.errors import RejectedInput
from serving.core.tensors import BYTES, DTYPES, Tensor, decode_data, decode_raw, encode_data, encode_raw


def same(a: Tensor, b: Tensor) -> bool:
    assert (a.name, a.datatype, a.shape) == (b.name, b.datatype, b.shape)
    if isinstance(a.values, np.ndarray):
        return bool(np.array_equal(a.values, b.values, equal_nan=a.datatype.startswith("FP")))
    return a.values == b.values


def test_raw_bytes_are_little_endian_and_texts_stand_behind_their_length() -> None:
    assert encode_raw(Tensor("a", "INT64", (2,), np.array([1, -2]))) == b"\1" + bytes(7) + b"\xfe" + b"\xff" * 7
    assert encode_raw(Tensor("a", "FP32", (1,), np.array([1.0], np.float32))) == b"\0\0\x80\x3f"
    assert encode_raw(Tensor("a", BYTES, (2,), [b"ab", b""])) == b"\2\0\0\0ab\0\0\0\0"


@given(st.sampled_from(sorted(DTYPES)), st.data())
def test_values_of_fixed_size_come_back_from_both_forms(datatype: str, data: st.DataObject) -> None:
    values = data.draw(npst.arrays(DTYPES[datatype], st.integers(0, 20)))
    tensor = Tensor("t", datatype, values.shape, values)
    assert same(decode_raw("t", datatype, values.shape, encode_raw(tensor)), tensor)
    if not np.isnan(values.astype(np.float64)).any():
        assert same(decode_data("t", datatype, values.shape, encode_data(tensor)), tensor)


@given(st.lists(st.text(), max_size=20))
def test_texts_come_back_from_both_forms(texts: list[str]) -> None:
    try:
        values = [text.encode() for text in texts]
    except UnicodeEncodeError:
        with pytest.raises(RejectedInput, match="Unicode"):
            decode_data("t", BYTES, [len(texts)], texts)
        return
    tensor = Tensor("t", BYTES, (len(values),), values)
    assert same(decode_raw("t", BYTES, [len(values)], encode_raw(tensor)), tensor)
    assert same(decode_data("t", BYTES, [len(values)], encode_data(tensor)), tensor)


@given(st.binary(max_size=60), st.lists(st.integers(-1, 1 << 33), max_size=9), st.sampled_from([*DTYPES, BYTES, "FP99"]))
def test_any_bytes_are_either_a_tensor_or_refused(raw: bytes, shape: list[int], datatype: str) -> None:
    try:
        found: Tensor | RejectedInput = decode_raw("t", datatype, shape, raw)
    except RejectedInput as refusal:
        found = refusal
    if isinstance(found, Tensor):
        assert encode_raw(found) == raw and int(np.prod(shape)) == len(found.values)
    else:
        assert found.code == "bad_tensor" and found.message


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "named"),
    [
        ("INT64", [2], b"12345678", "has 16 bytes"),
        ("INT64", [1 << 40], b"", "shape"),
        ("INT64", [1 << 30, 1 << 30, 1 << 30], b"", "at most 131072"),
        (BYTES, [131_073], bytes(4 * 131_073), "at most 131072"),
        ("INT64", [-1], b"", "shape"),
        ("INT64", [True], b"12345678", "shape"),
        ("INT64", [1.0], b"12345678", "shape"),
        ("INT64", [], b"", "shape"),
        ("INT65", [1], b"", "INT65"),
        (BYTES, [1], b"\xff\xff\xff\xffab", "end at byte"),
        (BYTES, [1], b"\1\0\0\0ab", "end at byte 5 of 6"),
        (BYTES, [1 << 10], b"\0\0\0\0", "at least"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(datatype: str, shape: list[Any], raw: bytes, named: str) -> None:
    with pytest.raises(RejectedInput, match=named):
        decode_raw("t", datatype, shape, raw)


@pytest.mark.parametrize(
    ("datatype", "data", "named"),
    [
        ("INT64", None, "NoneType"),
        ("INT64", [1], "2 values"),
        ("INT64", [1, 2.5], "float"),
        ("INT64", [1, True], "bool"),
        ("INT64", [1, "2"], "str"),
        ("INT64", [[1], [2]], "list"),
        ("FP32", [1.0, 1e300], "does not fit"),
        ("FP16", [1.0, 1e6], "does not fit"),
        ("INT64", [1, 1 << 63], "does not fit"),
        ("UINT8", [1, -1], "does not fit"),
        ("BOOL", [1, 0], "int"),
        (BYTES, ["a", 1], "int"),
    ],
)
def test_plain_values_that_do_not_fit_are_refused(datatype: str, data: Any, named: str) -> None:
    with pytest.raises(RejectedInput, match=named):
        decode_data("t", datatype, [2], data)
