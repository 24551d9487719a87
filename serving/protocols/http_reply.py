"""One HTTP answer as a value, and how an error becomes one: on our JSON routes, and on the routes of the Open Inference Protocol."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from schemas.errors import AifError
from serving.protocols.http_errors import WrongMethod, encode_error, status_of

JSON_TYPE = "application/json"
_OPEN_INFERENCE = "/v2"

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.http")


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(status: int, values: Mapping[str, Any]) -> Reply:
    """Plain values as JSON."""
    return Reply(status, json.dumps(values).encode())


def error_reply(error: Exception, path: str) -> Reply:
    """Code and message in the form of the route's protocol. An unexpected error is logged, and the answer carries the id of that log line."""
    answer, error_id = encode_error(error)
    if not isinstance(error, AifError):
        logger.error("request_failed", error_id=error_id, path=path[:80], exc_info=error)
    allowed, in_open_inference = error.allowed if isinstance(error, WrongMethod) else (), path.startswith(_OPEN_INFERENCE)
    status = status_of(error, in_open_inference)
    return _encode_error(status, answer.code, answer.message, answer.retry_after_s, allowed, in_open_inference)


@functools.lru_cache(maxsize=8)  # in a flood hundreds of clients get the same answer
def _encode_error(
    status: int, code: str, message: str, retry_after_s: float | None, allowed: tuple[str, ...], in_open_inference: bool
) -> Reply:
    values: dict[str, Any] = {"code": code, "message": message, "retry_after_s": retry_after_s}
    if in_open_inference:
        values = {"error": f"{code}: {message}", **values}  # the field that clients of that protocol read
        if retry_after_s is None:
            del values["retry_after_s"]
    headers = [("retry-after", str(max(1, round(retry_after_s))))] if retry_after_s else []
    if code == "unauthorized":
        headers.append(("www-authenticate", "Bearer"))
    if allowed:
        headers.append(("allow", ", ".join(allowed)))
    return Reply(status, json.dumps(values).encode(), headers=tuple(headers))
