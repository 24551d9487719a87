"""The OpenAPI document of the HTTP routes, made from the models that check the bodies: `python -m serving.protocols.openapi > docs/openapi.json`.

A test holds docs/openapi.json to this module, and the routes to the document.
"""

import functools
import json
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schemas.limits import (
    BODY_BYTES_MAX,
    DEADLINE_MS_MAX,
    HTTP_HEADER_BYTES_MAX,
    HTTP_HEADERS_MAX,
    HTTP_URI_CHARS_MAX,
    JSON_VALUES_MAX,
    REQUEST_ID_CHARS_MAX,
)
from schemas.requests import (
    DEADLINE_HEADER,
    AllocationRequest,
    ErrorAnswer,
    FinalRequest,
    PrefixAnswer,
    PrefixRequest,
    PrerankRequest,
    RankAnswer,
    RankRequest,
    UserAnswer,
    UserRequest,
)
from serving.core.infer_body import INPUTS_MAX
from serving.protocols.open_inference_http import PROBES
from serving.settings import ServeSection

_REFERENCE = "#/components/schemas/{model}"
_CALLS: Mapping[str, tuple[type[BaseModel], type[BaseModel], str]] = {
    "/v1/user": (UserRequest, UserAnswer, "Call 1: make the user half now, while retrieval still runs."),
    "/v1/rank": (RankRequest, RankAnswer, "Call 2: candidates in, top-k out."),
    "/v1/prefix": (PrefixRequest, PrefixAnswer, "The signal: a final ranking of this user will come; its prefix may be computed now."),
    "/v1/rank_final": (FinalRequest, RankAnswer, "The second stage: candidates as AIF ranks them, ordered by the ranker."),
    "/v1/prerank": (PrerankRequest, RankAnswer, "Both calls in one; the request may carry the user's features and behaviours."),
}
_LOOKS: Mapping[str, str] = {
    "/v1/status": "Resident versions, their progress, and the last errors.",
    "/v1/allocation": "How much work requests get now: the mode, the price, the actions.",
    "/v1/allocation/requests/{request_id}": "A recent decision about a request: its inputs, and the decision made again from them.",
    "/openapi.json": "This document.",
    "/metrics": "Counters for Prometheus, as text.",
    "/v2": "Open Inference Protocol: name, version and extensions of the server.",
    "/v2/health/live": "Whether the process runs.",
    "/v2/health/ready": "Whether it can rank; 503 with the reason when not.",
    "/v2/models/stats": "Open Inference Protocol: the statistics of all models; there is one.",
    "/v2/models/prerank": "Open Inference Protocol: tensors and versions of the model.",
    "/v2/models/prerank/ready": "Whether the model can rank; 503 with the reason when not.",
    "/v2/models/prerank/stats": "Open Inference Protocol: inferences per version and their time.",
    "/v2/models/prerank/versions/{version}": "The same of one version.",
    "/v2/models/prerank/versions/{version}/ready": "Whether this version can rank; 503 with the reason when not.",
    "/v2/models/prerank/versions/{version}/stats": "Inferences of one version and their time.",
}
_ERRORS: Mapping[str, str] = {
    "400": "The bytes do not fit the route's format.",
    "401": "The token is missing or wrong.",
    "404": "No such route, model or version.",
    "405": "The route takes another method; see Allow.",
    "408": "The body did not come in time.",
    "409": "The named version is gone and the request was pinned to it.",
    "413": "The body is too large.",
    "414": "Path and query are too long.",
    "415": "The body is packed in a way that is not known here.",
    "422": "The request is well formed and wrong in itself.",
    "429": "Too many requests are in work; see Retry-After.",
    "431": "Too many headers, or too large ones.",
    "500": "An error of the server's own; the message names the line of its log.",
    "503": "Nothing can answer now; see Retry-After.",
    "504": "The request's deadline has passed.",
}
_INFER_ERRORS: Mapping[str, str] = {
    **{status: text for status, text in _ERRORS.items() if status != "422"},
    "400": "Something is wrong with the request; the message says what.",
}
_TENSOR: Mapping[str, Any] = {
    "type": "object",
    "description": "One input or output.",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string", "description": "One of the model's inputs or outputs; /v2/models/prerank lists them."},
        "datatype": {"type": "string", "examples": ["INT64", "BYTES", "FP32"], "description": "The type of each value."},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "description": "The number of values; there is no batch dimension.",
        },
        "data": {
            "type": "array",
            "items": {"type": ["integer", "number", "string"]},
            "description": "The values, unless they follow the JSON as raw bytes.",
        },
        "parameters": {
            "type": "object",
            "description": "binary_data_size: bytes of the values behind the JSON. Of a wanted output, binary_data: whether its values come as raw bytes.",
        },
    },
}
_INFER_FIELDS: Mapping[str, Any] = {
    "id": {"type": "string", "description": "Given back with the answer."},
    "parameters": {
        "type": "object",
        "additionalProperties": {"type": ["boolean", "integer", "number", "string"]},
        "description": "Of a request: deadline_ms, timeout (microseconds), consistency, binary_data_output, context.<feature>. Of an answer: the version, rung"
        " and watermark.",
    },
}
_TENSORS: Mapping[str, str] = {
    "inputs": "The inputs.",
    "outputs": "The outputs; of a request those that are wanted, all of them by default.",
}

_VERSION: Mapping[str, Any] = {
    "name": "version",
    "in": "path",
    "required": True,
    "description": "The number of a version.",
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
}
_REQUEST_ID: Mapping[str, Any] = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "description": "The request_id of an answer of this server.",
    "schema": {"type": "string", "maxLength": REQUEST_ID_CHARS_MAX},
}
_DEADLINE: Mapping[str, Any] = {
    "name": DEADLINE_HEADER,
    "in": "header",
    "description": "Milliseconds for the answer, from the arrival of the request. The body's own deadline goes before it.",
    "schema": {"type": "integer", "minimum": 1, "maximum": DEADLINE_MS_MAX},
}
_HEADER_LENGTH: Mapping[str, Any] = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "Bytes of the JSON if raw values follow it.",
    "schema": {"type": "integer", "minimum": 0, "maximum": BODY_BYTES_MAX},
}
_ABOUT = (
    "Two calls, one version; and the Open Inference Protocol v2."
    f" Bounds of a request: {BODY_BYTES_MAX} bytes of body, {JSON_VALUES_MAX} JSON values, {HTTP_HEADERS_MAX} headers,"
    f" {HTTP_HEADER_BYTES_MAX} bytes of headers, {HTTP_URI_CHARS_MAX} characters of path and query."
    " A client must keep its sending side open until the answer has come; otherwise the server closes the connection without one."
)
_CANDIDATES_DEFAULT: int = ServeSection.model_fields["candidates_max"].default


@functools.cache
def openapi_json(candidates_max: int = _CANDIDATES_DEFAULT) -> bytes:
    """The document as it is served by a server with this setting; with the default, as it is committed."""
    return (json.dumps(openapi_document(candidates_max), indent=2, sort_keys=True) + "\n").encode()


def openapi_document(candidates_max: int = _CANDIDATES_DEFAULT) -> Mapping[str, Any]:
    """The document as plain values."""
    models: list[type[BaseModel]] = [
        *(model for request, answer, _ in _CALLS.values() for model in (request, answer)),
        ErrorAnswer,
        AllocationRequest,
    ]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    components = {**schemas["$defs"], "Tensor": _TENSOR, "InferRequest": _infer_body("inputs"), "InferAnswer": _infer_body("outputs")}
    components["InferError"] = _infer_error(components["ErrorAnswer"])
    for request in (RankRequest, PrerankRequest):
        components[request.__name__]["properties"]["item_ids"]["maxItems"] = candidates_max
    return {
        "openapi": "3.1.0",
        "info": {"title": "AIF pre-ranking", "version": "1", "description": _ABOUT},
        "paths": {
            **_call_paths(),
            **_infer_paths(),
            "/v1/allocation/mode": {"post": _mode()},
            **{path: {"get": _look(path, about)} for path, about in _LOOKS.items()},
        },
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _call_paths() -> Mapping[str, Any]:
    calls = {path: (about, _json_of(request.__name__), _json_of(answer.__name__)) for path, (request, answer, about) in _CALLS.items()}
    return {
        path: {"post": _post(*call, "ErrorAnswer", _ERRORS, status="202" if path == "/v1/prefix" else "200")}
        for path, call in calls.items()
    }


def _mode() -> Mapping[str, Any]:
    errors = {status: text for status, text in _ERRORS.items() if status not in ("404", "409", "429", "504")}
    return {
        "summary": "What the allocation of computation may do, until the server ends.",
        "requestBody": {"required": True, "content": _json_of(AllocationRequest.__name__)},
        "responses": {
            "200": {"description": "As /v1/allocation.", "content": {"application/json": {"schema": {"type": "object"}}}},
            **_failed("ErrorAnswer", errors),
        },
    }


def _infer_paths() -> Mapping[str, Any]:
    about = "Open Inference Protocol: rank, with tensors as JSON or as raw bytes behind it (header Inference-Header-Content-Length)."
    asked, answered = ({**_json_of(name), "application/octet-stream": {}} for name in ("InferRequest", "InferAnswer"))
    infer = _post(about, asked, answered, "InferError", _INFER_ERRORS, _HEADER_LENGTH)
    pinned = _post(f"{about} On one version.", asked, answered, "InferError", _INFER_ERRORS, _HEADER_LENGTH, _VERSION)
    return {"/v2/models/prerank/infer": {"post": infer}, "/v2/models/prerank/versions/{version}/infer": {"post": pinned}}


def _post(
    about: str,
    request: Mapping[str, Any],
    answer: Mapping[str, Any],
    error: str,
    errors: Mapping[str, str],
    *parameters: Mapping[str, Any],
    status: str = "200",
) -> Mapping[str, Any]:
    """`request` and `answer`: their content, by its type; `error` and `errors` as in `_failed`; `parameters`: more than the deadline."""
    return {
        "summary": about,
        "parameters": [_DEADLINE, *parameters],
        "requestBody": {"required": True, "content": request},
        "responses": {status: {"description": "The answer.", "content": answer}, **_failed(error, errors)},
    }


def _look(path: str, about: str) -> Mapping[str, Any]:
    content = {"text/plain": {}} if path == "/metrics" else {"application/json": {"schema": {"type": "object"}}}
    named = [one for one in (_VERSION, _REQUEST_ID) if f"{{{one['name']}}}" in path]
    unready = {"503": {"description": "It cannot; the answer's `reason` says why.", "content": content}} if "503" in about else {}
    error, errors = "InferError" if path.startswith("/v2") else "ErrorAnswer", _look_errors(path)
    return {
        "summary": about,
        **({"parameters": named} if named else {}),
        "responses": {"200": {"description": "As said.", "content": content}, **_failed(error, errors), **unready},
    }


def _look_errors(path: str) -> Mapping[str, str]:
    """What a route without a body can answer but 200, by status."""
    found = {"405", "414", "431", "500"} | (set() if path in PROBES else {"401"})
    if "{request_id}" in path:
        found |= {"404"}
    if path.startswith("/v2/models"):
        found |= {"404", "503"} if "{version}" in path else {"503"}
    return {status: text for status, text in _ERRORS.items() if status in found}


def _failed(error: str, errors: Mapping[str, str]) -> Mapping[str, Any]:
    """`error`: the name of a schema, `errors`: what each status means."""
    return {status: {"description": text, "content": _json_of(error)} for status, text in errors.items()}


def _json_of(name: str) -> Mapping[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}


def _infer_error(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our error, with the one field that clients of the Open Inference Protocol read."""
    fields = {
        **plain["properties"],
        "error": {"type": "string", "description": "Code and message, for clients of the Open Inference Protocol."},
    }
    return {"type": "object", "required": ["error", *plain["required"]], "properties": fields, "additionalProperties": False}


def _infer_body(tensors: str) -> Mapping[str, Any]:
    listed = {"type": "array", "maxItems": INPUTS_MAX, "items": {"$ref": _REFERENCE.format(model="Tensor")}}
    fields = {name: {**listed, "description": about} for name, about in _TENSORS.items() if tensors == "inputs" or name == tensors}
    return {"type": "object", "required": [tensors], "properties": {**_INFER_FIELDS, **fields}}


if __name__ == "__main__":
    sys.stdout.buffer.write(openapi_json())
