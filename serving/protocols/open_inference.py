"""The Open Inference Protocol, version 2, without a transport: one model, `prerank`, whose versions are the versions of our index tables.

    inputs    user_id [1], item_ids [C]: INT64 or BYTES, as the catalogue's ids are;  optional: request_id [1] and version_token [1] BYTES, top_k [1]
    outputs   item_ids [A] as the inputs, scores [A] FP32: min(top_k, known candidates), best first

Two more inputs are accepted but not listed, because a stock client has neither: user_state [1] BYTES (calls/carried_state.py), retrieval_scores [C] FP32.
What an answer says about itself (version token, rung, degraded, watermark, ...) is in the parameters of the answer.
A request that names a version is pinned to it. A version that is not resident is refused, with the list of the resident ones.
Source: KServe, Open Inference Protocol v2; statistics and timeout: Triton's extensions.

Statistics: a failed request counts under the version it named, else under the current one. Queue time and compute time are not separated, because both
happen in one turn of the engine.
"""

import asyncio
import importlib.metadata
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from schemas.decoding import describe_errors
from schemas.errors import RejectedInput, Unavailable
from schemas.ids import Id, IdKind, encode_wire_id
from schemas.limits import DEADLINE_MS_MAX
from schemas.requests import RankRequest
from serving.calls.deadline import Deadline
from serving.calls.rank_call import RankCall, Ranked
from serving.calls.request_ids import too_many_candidates
from serving.core.infer_body import InferCall
from serving.core.tensors import BYTES, Tensor
from serving.engine.loop.engine import Engine

MODEL_NAME = "prerank"
SERVER_NAME = "aif"
EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "schedule_policy(timeout)")
NOT_HERE = "Triton's model configuration, repository, shared memory, trace, log and stream extensions are not here"
OUTPUTS = ("item_ids", "scores")
_ID_TYPES: Mapping[IdKind, str] = {IdKind.INT64: "INT64", IdKind.TEXT: BYTES}
_CONTEXT = "context."
# `priority` is accepted and has no effect: there is one queue
_PARAMETERS = ("timeout", "deadline_ms", "consistency", "priority", "binary_data_output", "final_top_k", "user_value", "request_class")
_US_PER_MS = 1_000


_VERSIONS_MAX = 64  # kept at once; the least recently used one is dropped first
_NS = 1_000_000_000


@dataclass(slots=True)
class _Counts:
    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    last_ms: int = 0


class InferenceStatistics:
    """Inferences and their time by version, in the form of Triton's statistics extension. Used only in the event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def record(self, version: str, seconds: float, now_ms: int, failed: bool = False) -> None:
        """Counts one answered request that took `seconds` and ended at `now_ms` (wall clock)."""
        counts = self._counts.pop(version, None) or _Counts()
        self._counts[version] = counts  # the most recently used one is last
        if len(self._counts) > _VERSIONS_MAX:
            del self._counts[next(iter(self._counts))]
        counts.last_ms = now_ms
        if failed:
            counts.fail, counts.fail_ns = counts.fail + 1, counts.fail_ns + int(seconds * _NS)
        else:
            counts.success, counts.success_ns = counts.success + 1, counts.success_ns + int(seconds * _NS)

    def report(self, model: str, versions: Sequence[str]) -> list[Mapping[str, Any]]:
        """One entry per version; zeros for a version that was not used yet."""
        return [_entry(model, version, self._counts.get(version) or _Counts()) for version in versions]


def _entry(model: str, version: str, counts: _Counts) -> Mapping[str, Any]:
    return {
        "name": model,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.success,
        "execution_count": counts.success,
        "inference_stats": {
            "success": {"count": counts.success, "ns": counts.success_ns},
            "fail": {"count": counts.fail, "ns": counts.fail_ns},
        },
    }


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The answer to one inference, independent of the transport."""

    id: str
    version: str
    parameters: Mapping[str, bool | int | float | str]
    outputs: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class _Calls:
    """What can be used once the index has an identity."""

    engine: Engine
    rank: RankCall
    id_kind: IdKind


class OpenInference:
    """The protocol's operations. Used in the event loop. Every refusal is an AifError, which each transport reports in its own form."""

    def __init__(self, ready: Callable[[], tuple[bool, str]], deadline_ms: int, candidates_max: int) -> None:
        self._ready, self._deadline_ms, self._candidates_max = ready, deadline_ms, candidates_max
        self._statistics = InferenceStatistics()
        self._opened: _Calls | None = None

    def open_calls(self, engine: Engine, rank: RankCall, id_kind: IdKind) -> None:
        """From now on requests are answered; before that they fail with Unavailable (`no_index`)."""
        self._opened = _Calls(engine, rank, id_kind)

    def server_metadata(self) -> Mapping[str, Any]:
        """Name and version of this software, and the protocol extensions it supports."""
        return {"name": SERVER_NAME, "version": importlib.metadata.version("aif"), "extensions": list(EXTENSIONS)}

    def server_ready(self) -> tuple[bool, str]:
        """(is ready, why not)."""
        return self._ready()

    def model_ready(self, model: str, version: str) -> tuple[bool, str]:
        """(is ready, why not) for the model, or for one version of it. Raises RejectedInput (`unknown_model`, `unknown_version`)."""
        _check_model(model)
        ready, reason = self._ready()
        if ready and version:
            self._tokens(model, version)
        return ready, reason

    def model_metadata(self, model: str, version: str) -> Mapping[str, Any]:
        """Tensors and versions. Raises RejectedInput (`unknown_model`, `unknown_version`), Unavailable (`no_index`)."""
        tokens = self._tokens(model, version)
        id_type = _ID_TYPES[self._calls().id_kind]
        return {
            "name": MODEL_NAME,
            "versions": list(tokens),
            "platform": SERVER_NAME,
            "inputs": [
                _tensor("user_id", id_type, 1),
                _tensor("item_ids", id_type, -1),
                _tensor("request_id", BYTES, 1),
                _tensor("top_k", "INT64", 1),
                _tensor("version_token", BYTES, 1),
            ],
            "outputs": [_tensor("item_ids", id_type, -1), _tensor("scores", "FP32", -1)],
        }

    def model_statistics(self, model: str, version: str) -> list[Mapping[str, Any]]:
        """One entry per version. An empty `model` means all models; there is one. Raises as `model_metadata`."""
        return self._statistics.report(MODEL_NAME, list(self._tokens(model or MODEL_NAME, version)))

    async def infer(self, model: str, version: str, call: InferCall, received_s: float, transport_ms: int | None) -> InferAnswer:
        """One ranking. `received_s`: monotonic clock; `transport_ms`: the time limit that the transport set, None if it set none.

        Raises RejectedInput (`bad_tensor`, `bad_request`, `unknown_…`), Incompatible, Unavailable.
        """
        counted = ""
        try:
            calls = self._calls()
            _check_model(model)
            counted, token = version, self._tokens(model, version)[version] if version else None
            request = plan_request(call, calls.id_kind, token, self._candidates_max)
            deadline = Deadline(received_s, self._budget_ms(call.parameters, transport_ms))
            deadline.require_time()
            ranked = await calls.rank.rank(request, deadline)
            counted = str(ranked.result.token.version)
            encoded = encode_ranked(call, ranked, deadline, calls.id_kind)
        except (Exception, asyncio.CancelledError):  # the latter where the client went away
            self._count(counted or self._current(), received_s, failed=True)
            raise
        self._count(counted, received_s)
        return encoded

    def _calls(self) -> _Calls:
        if self._opened is None:
            raise no_index()
        return self._opened

    def _tokens(self, model: str, version: str) -> Mapping[str, str]:
        """Version number → token of the resident versions, or of `version` alone if it is not empty. Raises as `model_metadata`."""
        _check_model(model)
        residents = {str(report.token.version): str(report.token) for report in self._calls().engine.status().residents}
        if not version:
            return residents
        if version not in residents:
            there = ", ".join(residents) or "none"
            raise RejectedInput(
                "unknown_version", f"version {version[:40]!r} is not resident; there are: {there}; without one the current answers"
            )
        return {version: residents[version]}

    def _current(self) -> str:
        current = None if self._opened is None else self._opened.engine.status().current
        return "" if current is None else str(current.version)

    def _budget_ms(self, parameters: Mapping[str, Any], transport_ms: int | None) -> int:
        """The smallest limit that the request's parameters and its transport name; if they name none, the setting."""
        timeout_ms = -(-parameters.get("timeout", 0) // _US_PER_MS) or None  # rounded up; in Triton's protocol 0 means no limit
        named = [one for one in (parameters.get("deadline_ms"), timeout_ms, transport_ms) if one is not None]
        return min((*named, DEADLINE_MS_MAX)) if named else self._deadline_ms

    def _count(self, version: str, received_s: float, failed: bool = False) -> None:
        self._statistics.record(version, time.monotonic() - received_s, int(time.time() * 1000), failed)


def no_index() -> Unavailable:
    """The error of every call until the server has the index's identity (protocol C4)."""
    return Unavailable(
        "no_index",
        "this server does not know its index yet: it has just started, or no worker has opened the store; ask again in a moment; does `aif worker` run?",
    )


def _check_model(name: str) -> None:
    if name != MODEL_NAME:
        raise RejectedInput("unknown_model", f"there is no model {name[:80]!r}; this server has one, {MODEL_NAME}")


def plan_request(call: InferCall, id_kind: IdKind, pinned_to: str | None, candidates_max: int) -> RankRequest:
    """The request that the tensors describe. `pinned_to`: the token of the version named in the path, None if it names none.

    Raises RejectedInput (`bad_tensor`, `bad_request`, `bad_id`, `too_many_candidates`, `other_version`).
    """
    for wanted in call.outputs:
        if wanted.name not in OUTPUTS:
            raise RejectedInput("bad_request", f"there is no output {wanted.name!r}; there are {', '.join(OUTPUTS)}")
    inputs = _by_name(call.inputs)
    id_type = (_ID_TYPES[id_kind],)
    token = _optional_text(inputs, "version_token")
    fields = {
        "user_id": _plain(decode_ids(_expect(inputs, "user_id", id_type, 1))[0]),
        "request_id": _optional_text(inputs, "request_id") or call.id or None,
        "version_token": pinned_to or token,
        "user_state": _optional_text(inputs, "user_state"),
        **_decode_parameters(call.parameters),
    }
    if "top_k" in inputs:
        fields["top_k"] = int(_expect(inputs, "top_k", ("INT64", "INT32"), 1).values[0])
    if pinned_to is not None:
        _check_same_version(token, pinned_to)
        fields["consistency"] = "pinned"
    candidates = _expect(inputs, "item_ids", id_type)
    if candidates.shape[0] > candidates_max:  # before a text is decoded
        raise too_many_candidates(candidates.shape[0], candidates_max)
    item_ids = decode_ids(candidates)
    try:  # the candidates are checked later, as an array (calls/request_ids.py); one id in their place spares pydantic a loop over 10^4
        request = RankRequest.model_validate({**fields, "item_ids": [fields["user_id"]]})
    except ValidationError as error:
        raise RejectedInput("bad_request", describe_errors(error), "schema") from error
    scores = _expect(inputs, "retrieval_scores", ("FP32", "FP64")).values if "retrieval_scores" in inputs else None
    if scores is not None and not np.isfinite(scores).all():  # JSON has no such numbers, raw tensors do
        raise RejectedInput("bad_tensor", "retrieval_scores: a value is infinite or no number; send finite scores")
    return request.model_copy(update={"item_ids": item_ids, "retrieval_scores": scores})


def encode_ranked(call: InferCall, ranked: Ranked, deadline: Deadline, id_kind: IdKind) -> InferAnswer:
    """The outputs that the call asks for; all of them if it names none."""
    result, count = ranked.result, len(ranked.result.ids)
    ids = np.array(result.ids, np.int64) if id_kind is IdKind.INT64 else [str(one).encode() for one in result.ids]
    values = {
        "item_ids": Tensor("item_ids", _ID_TYPES[id_kind], (count,), ids),
        "scores": Tensor("scores", "FP32", (count,), result.scores_A),
    }
    outputs = [values[name] for name in [wanted.name for wanted in call.outputs] or OUTPUTS]
    return InferAnswer(call.id or ranked.request_id, str(result.token.version), _describe(ranked, deadline), outputs)


def decode_ids(tensor: Tensor) -> np.ndarray | list[Id]:
    """Ids of a tensor: an int64 array, or a list of text. Raises RejectedInput (`bad_id`)."""
    if isinstance(tensor.values, np.ndarray):
        return tensor.values
    try:
        return [value.decode() for value in tensor.values]
    except UnicodeDecodeError as error:
        raise RejectedInput("bad_id", f"{tensor.name}: a text is not UTF-8: {error}; send UTF-8") from error


def _plain(value: Id | np.integer[Any]) -> Id:
    return value if isinstance(value, str) else int(value)


def _describe(ranked: Ranked, deadline: Deadline) -> Mapping[str, bool | int | float | str]:
    """The parameters of an answer next to its outputs. Nested values are JSON text, because a parameter must be one plain value."""
    result = ranked.result
    about: dict[str, bool | int | float | str] = {
        "version_token": str(result.token),
        "request_id": ranked.request_id,
        "rung": ranked.rung.value,
        "degraded": ",".join(ranked.degraded),
        "candidates": result.candidates,
        "unknown_count": result.unknown_count,
        "watermark": json.dumps([dict(shard) for shard in result.watermark]),
        "took_ms": deadline.took_ms(),
        "action": ranked.receipt["action"],
        "table": ranked.receipt["table"],
        "receipt": json.dumps(ranked.receipt),
    }
    if ranked.receipt["lambda"] is not None:
        about["lambda"] = float(ranked.receipt["lambda"])
    if result.unknown_count:
        about["unknown_items"] = json.dumps([encode_wire_id(one) for one in result.unknown])
    if ranked.final is not None:
        about["final"] = ranked.final.model_dump_json()
    if ranked.ages.worst_s is not None:
        about["age_s"] = ranked.ages.worst_s
    if ranked.ages.lagging:
        about["lagging_shards"] = json.dumps(list(ranked.ages.lagging))
    return about


def _tensor(name: str, datatype: str, size: int) -> Mapping[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [size]}


def _by_name(inputs: Sequence[Tensor]) -> Mapping[str, Tensor]:
    known = ("user_id", "item_ids", "request_id", "top_k", "version_token", "user_state", "retrieval_scores")
    named: dict[str, Tensor] = {}
    for tensor in inputs:
        if tensor.name not in known or tensor.name in named:
            problem = "is there twice" if tensor.name in named else "is none of this model's"
            raise RejectedInput("bad_request", f"input {tensor.name!r} {problem}; the inputs are {', '.join(known)}")
        named[tensor.name] = tensor
    return named


def _expect(inputs: Mapping[str, Tensor], name: str, datatypes: Sequence[str], size: int | None = None) -> Tensor:
    """An input of the shape [size], or of [1 or more]."""
    if name not in inputs:
        raise RejectedInput("bad_request", f"input {name!r} is missing; send it as {' or '.join(datatypes)} of shape [{size or -1}]")
    tensor = inputs[name]
    if tensor.datatype not in datatypes:
        raise RejectedInput("bad_tensor", f"{name}: datatype is {tensor.datatype}, expected {' or '.join(datatypes)}")
    if len(tensor.shape) != 1 or tensor.shape[0] < 1 or (size is not None and tensor.shape[0] != size):
        raise RejectedInput(
            "bad_tensor", f"{name}: shape is {list(tensor.shape)}, expected [{size or '1 or more'}]; there is no batch dimension"
        )
    return tensor


def _optional_text(inputs: Mapping[str, Tensor], name: str) -> str | None:
    if name not in inputs:
        return None
    [text] = decode_ids(_expect(inputs, name, (BYTES,), 1))
    return str(text) or None


def _decode_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of the request that travel as parameters. An unknown name is refused, so that a misspelt one does not go unnoticed."""
    for name in parameters:
        if name not in _PARAMETERS and not name.startswith(_CONTEXT):
            known = ", ".join((*_PARAMETERS, f"{_CONTEXT}<feature>"))
            raise RejectedInput("bad_request", f"parameter {name[:80]!r} is unknown; there are {known}")
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise RejectedInput("bad_request", f"parameter timeout is {str(timeout)[:40]}, expected microseconds from 0")
    fields = {name: parameters[name] for name in ("deadline_ms", "consistency", "user_value", "request_class") if name in parameters}
    if "final_top_k" in parameters:
        fields["final"] = {"top_k": parameters["final_top_k"]}
    return {**fields, "context": {name.removeprefix(_CONTEXT): value for name, value in parameters.items() if name.startswith(_CONTEXT)}}


def _check_same_version(token: str | None, pinned_to: str) -> None:
    if token is not None and token.partition(".")[0] != pinned_to.partition(".")[0]:
        raise RejectedInput(
            "other_version", f"the path asks for version token {pinned_to}, the input version_token is {token[:80]!r}; send one of them"
        )
