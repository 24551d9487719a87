"""How an error is reported over gRPC: a status, and a message that begins with our code. http_errors.py does the same for HTTP.

RejectedInput   INVALID_ARGUMENT; UNAUTHENTICATED without the token, NOT_FOUND for an unknown model or version, UNIMPLEMENTED for a method
Incompatible    FAILED_PRECONDITION: the version of the token is gone
Unavailable     RESOURCE_EXHAUSTED too many requests in work, DEADLINE_EXCEEDED, UNAVAILABLE the rest; with retry-after-ms in the trailers
anything else   INTERNAL with an id that is in the log
"""

from collections.abc import Mapping

import grpc

from schemas.errors import AifError, Incompatible, RejectedInput, Unavailable
from serving.protocols.http_errors import encode_error

Code = grpc.StatusCode

_MESSAGE_CHARS_MAX = 2_000  # it travels in the trailers, which clients bound at 8 KiB
_STATUS: Mapping[str, grpc.StatusCode] = {
    "unauthorized": Code.UNAUTHENTICATED,
    "unknown_model": Code.NOT_FOUND,
    "unknown_version": Code.NOT_FOUND,
    "no_such_method": Code.UNIMPLEMENTED,
    "overloaded": Code.RESOURCE_EXHAUSTED,
    "deadline_passed": Code.DEADLINE_EXCEEDED,
    "watermark_not_reached": Code.DEADLINE_EXCEEDED,
}


def grpc_status(error: Exception) -> grpc.StatusCode:
    """The gRPC status of an error."""
    if not isinstance(error, AifError):
        return Code.INTERNAL
    if error.code in _STATUS:
        return _STATUS[error.code]
    if isinstance(error, RejectedInput):
        return Code.INVALID_ARGUMENT
    if isinstance(error, Unavailable):
        return Code.UNAVAILABLE
    return Code.FAILED_PRECONDITION if isinstance(error, Incompatible) else Code.INTERNAL


def encode_grpc_error(error: Exception) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """(message, trailers, id under which the caller must log an unexpected error; empty for an error of ours)."""
    answer, error_id = encode_error(error)
    trailers = [("aif-code", answer.code)]
    if answer.retry_after_s:
        trailers.append(("retry-after-ms", str(max(1, round(answer.retry_after_s * 1000)))))
    return f"{answer.code}: {answer.message}"[:_MESSAGE_CHARS_MAX], tuple(trailers), error_id
