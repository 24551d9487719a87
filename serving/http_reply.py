"""One HTTP answer as a value, and how an error becomes one on the JSON routes and on those of the Open Inference Protocol."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from schemas.errors import AifError
from serving.http_errors import encode_error, status_of

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
    """Code and message in the form of the route's protocol; an error that is not ours is logged, and the answer has the id of its line."""
    answer, error_id = encode_error(error)
    if not isinstance(error, AifError):
        logger.error("request_failed", error_id=error_id, path=path[:80], exc_info=error)
    values: dict[str, Any] = {"code": answer.code, "message": answer.message, "retry_after_s": answer.retry_after_s}
    if path.startswith(_OPEN_INFERENCE):
        values = {"error": f"{answer.code}: {answer.message}", **values}  # what a client of that protocol reads
        if answer.retry_after_s is None:
            del values["retry_after_s"]
    headers = [("retry-after", str(max(1, round(answer.retry_after_s))))] if answer.retry_after_s else []
    if answer.code == "unauthorized":
        headers.append(("www-authenticate", "Bearer"))
    return Reply(status_of(error), json.dumps(values).encode(), headers=tuple(headers))
