"""The Open Inference Protocol over HTTP: paths to operations, JSON and binary tensors to calls, answers to replies.

GET   /v2    /v2/health/live    /v2/health/ready
GET   /v2/models/stats
GET   /v2/models/prerank[/versions/V]    and below it  /ready  /stats
POST  /v2/models/prerank[/versions/V]/infer
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from schemas.errors import RejectedInput
from serving.core.infer_body import decode_infer_body, encode_infer_answer
from serving.protocols.http_reply import Reply, json_reply
from serving.protocols.open_inference import MODEL_NAME, NOT_HERE, OpenInference

PREFIX = "/v2"
PROBES = frozenset({"/v2/health/live", "/v2/health/ready"})
_MODEL_PATH = re.compile(r"/v2/models/([^/]{1,128})(?:/versions/([^/]{1,40}))?(?:/(ready|stats|infer))?")
_HEADER_LENGTH = "inference-header-content-length"
_BINARY_TYPE = "application/octet-stream"


@functools.lru_cache(maxsize=64)  # called three times per request, nearly always with the same path
def _match(path: str) -> re.Match[str] | None:
    return _MODEL_PATH.fullmatch(path)


class OpenInferenceHttp:
    """The routes below /v2."""

    def __init__(self, operations: OpenInference) -> None:
        self._operations = operations

    def is_infer(self, path: str) -> bool:
        """Whether the path is that of an inference, the only operation with a body."""
        match = _match(path)
        return match is not None and match[3] == "infer"

    def label(self, path: str) -> str:
        """The path as a label of the metrics: without model and version, because a client may send any and each would be a new label."""
        match = _match(path)
        if match is not None:
            return f"/v2/models/.../{match[3] or ''}".rstrip("/")
        return path if path in (PREFIX, *PROBES) else "other"

    def check_route(self, path: str) -> None:
        """Raises RejectedInput (`no_such_route`) for an unknown path below the prefix."""
        if path not in (PREFIX, *PROBES) and _match(path) is None:
            there = f"health, models/{MODEL_NAME}, models/stats"
            raise RejectedInput("no_such_route", f"{path[:80]}: there is no such route; below {PREFIX} there are {there}; {NOT_HERE}")

    def look(self, path: str) -> Reply:
        """Answers a route without a body. Raises RejectedInput (`unknown_model`, `unknown_version`), Unavailable. REQUIRES: `check_route` passed."""
        if path == PREFIX:
            return json_reply(200, self._operations.server_metadata())
        if path == "/v2/health/live":
            return json_reply(200, {"live": True})
        if path == "/v2/health/ready":
            return _show_ready({}, *self._operations.server_ready())
        if path == "/v2/models/stats":
            return json_reply(200, {"model_stats": self._operations.model_statistics("", "")})
        match = _match(path)
        assert match is not None, f"{path} is no route"
        return self._look_at_model(match[1], match[2] or "", match[3])

    async def infer(self, path: str, raw: bytes, headers: Any, received_s: float, budget_ms: int | None) -> Reply:
        """One inference. Raises as OpenInference.infer does."""
        match = _match(path)
        assert match is not None, f"{path} is not of an inference"
        call = decode_infer_body(raw, headers.get(_HEADER_LENGTH))
        everything = call.parameters.get("binary_data_output") is True
        answer = await self._operations.infer(match[1], match[2] or "", call, received_s, budget_ms)
        wanted = {output.name: output.binary for output in call.outputs}
        binary = [everything if wanted.get(tensor.name) is None else wanted[tensor.name] is True for tensor in answer.outputs]
        head = {"model_name": MODEL_NAME, "model_version": answer.version, "id": answer.id, "parameters": answer.parameters}
        body, header_length = encode_infer_answer(head, answer.outputs, binary)
        if header_length is None:
            return Reply(200, body)
        return Reply(200, body, _BINARY_TYPE, ((_HEADER_LENGTH, str(header_length)),))

    def _look_at_model(self, model: str, version: str, part: str | None) -> Reply:
        if part == "stats":
            return json_reply(200, {"model_stats": self._operations.model_statistics(model, version)})
        if part == "ready":
            return _show_ready({"name": model}, *self._operations.model_ready(model, version))
        return json_reply(200, self._operations.model_metadata(model, version))


def _show_ready(head: Mapping[str, str], ready: bool, reason: str) -> Reply:
    return json_reply(200 if ready else 503, {**head, "ready": ready} | ({"reason": reason} if reason else {}))
