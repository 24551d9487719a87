"""One HTTP answer as a value, and how an error becomes one. The only place that maps our own and foreign errors.

- RejectedInput: 400 not JSON, 401 no token, 404, 405, 408, 413 too large, 414, 415, 431; 422 for all other mistakes of the sender; 499, without a reader,
  if the client went away. Clients of the Open Inference Protocol know 400 for every mistake, so its routes answer 400 where ours answer 422
- Incompatible: 409, the version of the token is gone; the answer names the current one
- Unavailable: 429 too many requests in work, 504 the deadline passed, 503 the rest; with Retry-After
- anything else: 500 with an id that is also in the log; the server goes on
"""

import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from schemas.errors import AifError, Incompatible, RejectedInput, Unavailable
from schemas.requests import ErrorAnswer

JSON_TYPE = "application/json"
_OPEN_INFERENCE = "/v2"
TOO_MANY = 429
BEFORE_BODY = frozenset((401, 404, 405, 414, TOO_MANY, 431))  # may be sent before the body is read
_STATUS: Mapping[str, int] = {
    "not_json": 400,
    "duplicate_key": 400,
    "json_too_deep": 400,
    "json_too_large": 413,
    "bad_deadline": 400,
    "bad_header_length": 400,
    "bad_tensor": 400,
    "body_cut": 400,
    "unauthorized": 401,
    "no_such_route": 404,
    "unknown_model": 404,
    "unknown_version": 404,
    "unknown_request": 404,
    "method_not_allowed": 405,
    "body_too_slow": 408,
    "body_too_large": 413,
    "bad_encoding": 415,
    "uri_too_long": 414,
    "too_many_headers": 431,
    "headers_too_large": 431,
    "client_gone": 499,
    "overloaded": TOO_MANY,
    "deadline_passed": 504,
    "watermark_not_reached": 504,
}

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
    receipt = error.receipt if isinstance(error, Unavailable) else None
    encoded = None if receipt is None else json.dumps(receipt)
    return _encode_error(status, answer.code, answer.message, answer.retry_after_s, allowed, in_open_inference, encoded)


@functools.lru_cache(maxsize=8)  # in a flood hundreds of clients get the same answer
def _encode_error(
    status: int,
    code: str,
    message: str,
    retry_after_s: float | None,
    allowed: tuple[str, ...],
    in_open_inference: bool,
    receipt: str | None = None,
) -> Reply:
    values: dict[str, Any] = {"code": code, "message": message, "retry_after_s": retry_after_s}
    if receipt is not None:
        values["receipt"] = json.loads(receipt)
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


class WrongMethod(RejectedInput):
    """A route that is there, asked with another method than those in `allowed`."""

    def __init__(self, method: str, path: str, allowed: tuple[str, ...]) -> None:
        super().__init__("method_not_allowed", f"{method} {path[:80]}: this route takes {' or '.join(allowed)}")
        self.allowed = allowed


def status_of(error: Exception, in_open_inference: bool = False) -> int:
    """The HTTP status of an error, on our own routes or on those of the Open Inference Protocol."""
    if not isinstance(error, AifError):
        return 500
    if error.code in _STATUS:
        return _STATUS[error.code]
    if isinstance(error, RejectedInput):
        return 400 if in_open_inference else 422
    if isinstance(error, Unavailable):
        return 503
    return 409 if isinstance(error, Incompatible) else 500


def encode_error(error: Exception) -> tuple[ErrorAnswer, str]:
    """(body, id under which the caller must log an unexpected error; empty for an error of ours)."""
    if isinstance(error, Unavailable):
        return ErrorAnswer.model_construct(code=error.code, message=error.message, retry_after_s=error.retry_after_s), ""
    if isinstance(error, AifError):
        return ErrorAnswer(code=error.code, message=error.message), ""
    error_id = uuid.uuid4().hex[:12]
    message = f"an unexpected error, {type(error).__name__}; the server's log has it under id {error_id}"
    return ErrorAnswer(code="internal", message=message), error_id
