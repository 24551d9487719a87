"""The body of an HTTP inference request and of its answer, with and without Triton's binary tensors.

    request   [JSON header][raw bytes of each input that has binary_data_size, in the order of the inputs]
    answer    the same, outputs instead of inputs; without binary outputs it is JSON alone

The length of the header travels in `Inference-Header-Content-Length` whenever raw bytes follow.
Invariant: every byte of the body belongs to the header or to exactly one tensor; a body with too many or too few bytes is refused.
Source: KServe, Open Inference Protocol v2; Triton, binary tensor data extension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from schemas.errors import RejectedInput
from serving.core.json_bounds import check_json, check_keys, count_keys
from serving.core.tensors import Tensor, decode_data, decode_raw, encode_data, encode_raw

BINARY_SIZE = "binary_data_size"
INPUTS_MAX = 16
_SHARED_MEMORY = "shared_memory_region"
_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the request names. `binary` None: the request's parameter for all outputs decides."""

    name: str
    binary: bool | None = None


@dataclass(frozen=True, slots=True)
class InferCall:
    """One inference request, independent of the transport. Empty `outputs` means all."""

    id: str
    inputs: Sequence[Tensor]
    outputs: Sequence[WantedOutput] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


def decode_infer_body(raw: bytes, header_length: str | None) -> InferCall:
    """A request's body. Raises RejectedInput (`bad_header_length`, `not_json`, `json_too_deep`, `json_too_large`, `duplicate_key`, `bad_request`,
    `bad_tensor`)."""
    header_bytes = _header_bytes(raw, header_length)
    header = _decode_header(raw[:header_bytes])
    inputs = _decode_inputs(_objects(header, "inputs"), memoryview(raw)[header_bytes:])
    outputs = [_decode_output(one) for one in _objects(header, "outputs")]
    call_id = header.get("id", "")
    if not isinstance(call_id, str):
        raise _wrong("id", "a text", call_id)
    return InferCall(call_id, inputs, outputs, _parameters(header))


def encode_infer_answer(head: Mapping[str, Any], outputs: Sequence[Tensor], binary: Sequence[bool]) -> tuple[bytes, int | None]:
    """(body, length of its JSON header, None where the body is JSON alone). `binary[i]`: outputs[i] as raw bytes."""
    described, parts = list[Mapping[str, Any]](), list[bytes]()
    for tensor, raw_wanted in zip(outputs, binary, strict=True):
        described.append(_describe(tensor, parts if raw_wanted else None))
    header = to_json({**head, "outputs": described}, inf_nan_mode="null")
    return b"".join((header, *parts)), len(header) if any(binary) else None


def encode_infer_request(head: Mapping[str, Any], inputs: Sequence[Tensor]) -> tuple[bytes, int]:
    """(body, length of its JSON header) of a request with every input as raw bytes."""
    parts = list[bytes]()
    header = to_json({**head, "inputs": [_describe(one, parts) for one in inputs]})
    return b"".join((header, *parts)), len(header)


def _describe(tensor: Tensor, parts: list[bytes] | None) -> Mapping[str, Any]:
    described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if parts is None:
        return {**described, "data": encode_data(tensor)}
    parts.append(encode_raw(tensor))
    return {**described, "parameters": {BINARY_SIZE: len(parts[-1])}}


def _header_bytes(raw: bytes, header_length: str | None) -> int:
    if header_length is None:
        return len(raw)
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= 9 and int(header_length) <= len(raw)):
        message = f"Inference-Header-Content-Length is {header_length[:40]!r}, expected the bytes of the JSON header, 0 to {len(raw)} here"
        raise RejectedInput("bad_header_length", message)
    return int(header_length)


def _decode_header(raw: bytes) -> Mapping[str, Any]:
    check_json(raw)
    try:
        header = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        message = f"the JSON header is not JSON: {str(error)[:200]}; send one object in UTF-8"
        raise RejectedInput("not_json", message, "malformed") from error
    if not isinstance(header, dict):
        raise _wrong("the body", "an object", header)
    check_keys(raw, count_keys(header))
    return header


def _objects(header: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    listed = header.get(name, [])
    if not isinstance(listed, list) or len(listed) > INPUTS_MAX or not all(isinstance(one, dict) for one in listed):
        raise _wrong(name, f"a list of at most {INPUTS_MAX} objects", listed)
    return listed


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(value, _PLAIN) for value in parameters.values()):
        raise _wrong("parameters", "an object of plain values", parameters)
    if _SHARED_MEMORY in parameters:
        raise RejectedInput("bad_request", f"{_SHARED_MEMORY} is not supported; send the tensor in the body")
    return parameters


def _decode_inputs(described: Sequence[Mapping[str, Any]], rest: memoryview) -> list[Tensor]:
    inputs, at = list[Tensor](), 0
    for one in described:
        name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
        if not (isinstance(name, str) and isinstance(datatype, str) and isinstance(shape, list)):
            raise _wrong("an input", "an object with name, datatype and shape", dict(one))
        size = _parameters(one).get(BINARY_SIZE)
        if size is None:
            inputs.append(decode_data(name[:80], datatype, shape, one.get("data")))
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise RejectedInput(
                "bad_tensor", f"{name[:80]}: {BINARY_SIZE} is {str(size)[:40]}, and {len(rest) - at} bytes are left in the body"
            )
        inputs.append(decode_raw(name[:80], datatype, shape, rest[at : at + size]))
        at += size
    if at != len(rest):
        raise RejectedInput(
            "bad_tensor", f"{len(rest) - at} bytes at the end of the body belong to no input; correct {BINARY_SIZE} or the body"
        )
    return inputs


def _decode_output(one: Mapping[str, Any]) -> WantedOutput:
    name, parameters = one.get("name"), _parameters(one)
    if not isinstance(name, str):
        raise _wrong("an output", "an object with a name", dict(one))
    binary = parameters.get("binary_data")
    if "classification" in parameters or not (binary is None or isinstance(binary, bool)):
        raise RejectedInput("bad_request", f"output {name[:80]}: only the parameter binary_data, true or false, is supported")
    return WantedOutput(name[:80], binary)


def _wrong(what: str, expected: str, found: Any) -> RejectedInput:
    shown = f"of {len(found)}" if isinstance(found, list | dict) else str(found)[:80]
    return RejectedInput("bad_request", f"{what} must be {expected}, found {type(found).__name__} {shown}", "schema")
