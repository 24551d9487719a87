"""The body of an inference: JSON and raw bytes mixed, every byte accounted for, and nothing but our refusals for any bytes at all."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from serving.core.infer_body import InferCall, decode_infer_body, encode_infer_answer
from serving.core.tensors import BYTES, Tensor

IDS = Tensor("item_ids", "INT64", (3,), np.array([5, -6, 7]))
USER = Tensor("user_id", BYTES, (1,), [b"anna"])
SCORES = Tensor("scores", "FP32", (2,), np.array([0.5, -1.0], np.float32))


def body(tensors: list[Tensor], binary: list[bool], **head: Any) -> tuple[bytes, str | None]:
    """A request has the form of an answer, with inputs instead of outputs."""
    raw, length = encode_infer_answer(head, tensors, binary)
    if length is None:
        return raw.replace(b'"outputs"', b'"inputs"'), None
    header = raw[:length].replace(b'"outputs"', b'"inputs"')
    return header + raw[length:], str(len(header))


@pytest.mark.parametrize("binary", [[False, False], [True, True], [True, False], [False, True]])
def test_json_and_raw_tensors_may_be_mixed(binary: list[bool]) -> None:
    call = decode_infer_body(*body([USER, IDS], binary, id="x", parameters={"timeout": 5}))
    assert (call.id, call.parameters, [one.name for one in call.inputs]) == ("x", {"timeout": 5}, ["user_id", "item_ids"])
    assert call.inputs[0].values == [b"anna"] and np.array_equal(call.inputs[1].values, [5, -6, 7])


def test_an_answer_is_json_alone_or_json_and_bytes() -> None:
    head = {"model_name": "m"}
    raw, length = encode_infer_answer(head, [IDS, SCORES], [False, True])
    assert json.loads(raw[:length]) == {
        "model_name": "m",
        "outputs": [
            {"name": "item_ids", "datatype": "INT64", "shape": [3], "data": [5, -6, 7]},
            {"name": "scores", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        ],
    }
    assert raw[length:] == b"\0\0\0\x3f\0\0\x80\xbf"
    raw, length = encode_infer_answer(head, [SCORES], [False])
    assert length is None and json.loads(raw)["outputs"][0]["data"] == [0.5, -1.0]


@pytest.mark.parametrize("length", ["", "-1", "+5", "1e2", "99999999999", "٣", "0x10", " 5", "500"])
def test_a_wrong_header_length_is_refused(length: str) -> None:
    with pytest.raises(RejectedInput) as caught:
        decode_infer_body(body([IDS], [True])[0], length)
    assert caught.value.code == "bad_header_length"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "not_json"),
        (b"[]", "bad_request"),
        (b'{"inputs":{}}', "bad_request"),
        (b'{"inputs":[1]}', "bad_request"),
        (b'{"inputs":[{}]}', "bad_request"),
        (b'{"inputs":' + b"[" * 50, "json_too_deep"),
        (b'{"inputs":[' + b"{}," * 20 + b"{}]}", "bad_request"),
        (b'{"id":1}', "bad_request"),
        (b'{"id":NaN}', "not_json"),
        (b'{"id":' + b"9" * 5000 + b"}", "not_json"),
        (b'{"id":"\xff"}', "not_json"),
        (b'{"parameters":[]}', "bad_request"),
        (b'{"parameters":{"a":null}}', "bad_request"),
        (b'{"outputs":[{"name":1}]}', "bad_request"),
        (b'{"outputs":[{"name":"scores","parameters":{"binary_data":1}}]}', "bad_request"),
        (b'{"outputs":[{"name":"scores","parameters":{"classification":3}}]}', "bad_request"),
        (b'{"outputs":[{"name":"s","parameters":{"shared_memory_region":"r"}}]}', "bad_request"),
        (b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":8}}]}', "bad_tensor"),
        (b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":-8}}]}', "bad_tensor"),
        (b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":true}}]}', "bad_tensor"),
        (b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1]}]}', "bad_tensor"),
    ],
)
def test_a_wrong_header_is_refused(raw: bytes, code: str) -> None:
    with pytest.raises(RejectedInput) as caught:
        decode_infer_body(raw, None)
    assert caught.value.code == code, caught.value.message


def test_a_byte_that_belongs_to_no_tensor_is_refused() -> None:
    raw, length = body([IDS], [True])
    with pytest.raises(RejectedInput, match="1 bytes at the end"):
        decode_infer_body(raw + b"x", length)
    with pytest.raises(RejectedInput, match="23 bytes are left"):
        decode_infer_body(raw[:-1], length)


VALID = [body([USER, IDS], binary, id="x") for binary in ([False, False], [True, True])]


@given(st.sampled_from(VALID), st.data())
def test_flipped_and_cut_bytes_are_a_call_or_a_refusal(valid: tuple[bytes, str | None], data: st.DataObject) -> None:
    raw = bytearray(valid[0])
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(raw)))
    length = data.draw(st.sampled_from([valid[1], None, str(cut)]) | st.text(max_size=6))
    check(bytes(raw[:cut]) if data.draw(st.booleans()) else bytes(raw), length)


def check(raw: bytes, length: str | None) -> None:
    try:
        call: InferCall | RejectedInput = decode_infer_body(raw, length)
    except RejectedInput as refusal:
        call = refusal
    assert isinstance(call, InferCall) or call.message
