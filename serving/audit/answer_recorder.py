"""A bounded sample of the server's answers in a file, with the histories they were computed from: the input of `aif verify-answers`.

Only an answer whose user half was made for it, from a whole history, can be recomputed exactly (protocol D1). An answer from a kept state is not written,
so a server that answers call 1 and call 2 apart records little; `aif query --record` records one answer at will.
"""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from schemas.ids import encode_wire_id
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX
from schemas.requests import PrerankRequest, RankRequest
from serving.users.user_store import KnownUser

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.record")


class AnswerRecorder:
    """Appends at most `answers_max` answers to `path`, at most one in `every_s` seconds. `path` None: none. Used by the event loop's thread."""

    def __init__(self, path: Path | None, every_s: float, answers_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._every_s, self._left, self._clock = path, every_s, answers_max, clock
        self._next_s = float("-inf")

    def offer(self, request: RankRequest | PrerankRequest, history: KnownUser | None, answer: bytes) -> None:
        """Offers an answer, as its JSON, with the history that it was computed from (None: there is no exact one). Returns at once."""
        if self._path is None or history is None or not self._left or self._clock() < self._next_s:
            return
        if len(history.behaviours) > BEHAVIOURS_PER_REQUEST_MAX:
            return
        self._next_s, self._left = self._clock() + self._every_s, self._left - 1
        asyncio.get_running_loop().run_in_executor(None, self._write, self._path, request, history, answer)

    def _write(self, path: Path, request: RankRequest | PrerankRequest, history: KnownUser, answer: bytes) -> None:
        try:
            with path.open("a") as file:
                file.write(encode_line(request, history, answer))
        except OSError as error:
            self._left = 0
            logger.warning("answers_not_recorded", path=str(path), error=str(error))


def encode_line(request: RankRequest | PrerankRequest, history: KnownUser, answer: bytes) -> str:
    """One line of the file."""
    behaviours = [
        {"item_id": encode_wire_id(b.item_id), "kind": b.kind, "time_ms": b.time_ms, "features": dict(b.features)}
        for b in history.behaviours
    ]
    asked = request.model_dump(mode="json", include={"user_id", "item_ids", "top_k", "context", "final"})
    known = {"features": dict(history.profile), "behaviours": behaviours}
    return json.dumps({"request": asked, "history": known, "answer": json.loads(answer)}) + "\n"
