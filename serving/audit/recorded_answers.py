"""Answers with the histories that they were computed from: written by a server, read by `aif verify-answers`.

Only an answer whose user half was made for it, from a whole history, can be recomputed exactly (protocol D1). An answer from a kept state is not written,
so a server that answers call 1 and call 2 apart records little; `aif query --record` records one answer at will.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from infra.files import append_whole
from schemas.decoding import describe_errors
from schemas.errors import RejectedInput
from schemas.ids import encode_wire_id
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX
from schemas.requests import PrerankRequest, RankAnswer, RankRequest

if TYPE_CHECKING:
    from serving.users.user_store import KnownUser

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.record")


class AnswerRecorder:
    """A bounded sample of the server's answers: at most `answers_max`, at most one in `every_s` seconds. `path` None: none.

    Used by the event loop's thread.
    """

    def __init__(self, path: Path | None, every_s: float, answers_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._every_s, self._left, self._clock = path, every_s, answers_max, clock
        self._next_s = float("-inf")

    def offer(self, request: RankRequest | PrerankRequest, history: "KnownUser | None", answer: bytes) -> None:
        """Offers an answer, as its JSON, with the history that it was computed from (None: there is no exact one). Returns at once."""
        if self._path is None or history is None or not self._left or self._clock() < self._next_s:
            return
        if len(history.behaviours) > BEHAVIOURS_PER_REQUEST_MAX:
            return
        self._next_s, self._left = self._clock() + self._every_s, self._left - 1
        asyncio.get_running_loop().run_in_executor(None, self._write, self._path, request, history, answer)

    def _write(self, path: Path, request: RankRequest | PrerankRequest, history: "KnownUser", answer: bytes) -> None:
        try:
            append_whole(path, encode_line(request, history, answer).encode())
        except OSError as error:
            self._left = 0
            logger.warning(
                "answers_not_recorded",
                path=str(path),
                error=str(error),
                next_step="make room there, or name a file that can be written, and start the server again",
            )


def encode_line(request: RankRequest | PrerankRequest, history: "KnownUser", answer: bytes) -> str:
    """One line of the file."""
    behaviours = [
        {"item_id": encode_wire_id(b.item_id), "kind": b.kind, "time_ms": b.time_ms, "features": dict(b.features)}
        for b in history.behaviours
    ]
    asked = request.model_dump(mode="json", include={"user_id", "item_ids", "top_k", "context", "final", "retrieval_scores"})
    known = {"features": dict(history.profile), "behaviours": behaviours}
    return json.dumps({"request": asked, "history": known, "answer": json.loads(answer)}) + "\n"


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A request whose features and behaviours are those that the server used, and its answer."""

    request: PrerankRequest
    answer: RankAnswer


def read_answers(path: Path) -> list[RecordedAnswer]:
    """Reads JSON lines {request, answer[, history: {features, behaviours}]}. Raises RejectedInput (`bad_answers_file`), which names the line."""
    with path.open("rb") as file:
        answers = [_decode_line(line, number) for number, line in enumerate(file, 1) if line.strip()]
    if not answers:
        raise RejectedInput("bad_answers_file", f"{path} has no answer; record some, one object a line with request and answer")
    return answers


def _decode_line(line: bytes, number: int) -> RecordedAnswer:
    try:
        raw = json.loads(line)
        request = PrerankRequest.model_validate({**raw["request"], **raw.get("history", {})})
        answer = RankAnswer.model_validate(raw["answer"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = describe_errors(error) if hasattr(error, "error_count") else repr(error)  # type: ignore[arg-type] # pydantic's
        raise RejectedInput(
            "bad_answers_file",
            f"line {number} is unreadable: {why}; expected one object a line with request (a body of /v1/prerank) and answer",
        ) from error
    if request.features is None and request.behaviours is None and "cold_user" not in answer.degraded:
        message = f"line {number} has no history to recompute from; record requests with features and behaviours, or add `history`"
        raise RejectedInput("bad_answers_file", message)
    return RecordedAnswer(request, answer)
