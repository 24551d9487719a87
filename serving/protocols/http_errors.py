"""How an error is reported over HTTP: status, code, message and retry time. The only place that maps our own and foreign errors.

RejectedInput   400 not JSON, 401 no token, 404, 405, 408, 413 too large, 415, 431, 422 everything else the sender got wrong;
                499, which nobody reads, where the client went away. The Open Inference Protocol's servers and clients know 400 for
                whatever is wrong with a request, so its routes answer that where ours answer 422
Incompatible    409 the version of the token is gone; the answer names the current one
Unavailable     429 too many requests in work, 504 the deadline passed, 503 the rest; with Retry-After
anything else   500 with an id that is also in the log; the server goes on
"""

import uuid
from collections.abc import Mapping

from schemas.errors import AifError, Incompatible, RejectedInput, Unavailable
from schemas.requests import ErrorAnswer

TOO_MANY = 429  # the only status that is sent before the body is read
_STATUS: Mapping[str, int] = {
    "not_json": 400,
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
    "method_not_allowed": 405,
    "body_too_slow": 408,
    "body_too_large": 413,
    "bad_encoding": 415,
    "too_many_headers": 431,
    "client_gone": 499,
    "overloaded": TOO_MANY,
    "deadline_passed": 504,
    "watermark_not_reached": 504,
}


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
