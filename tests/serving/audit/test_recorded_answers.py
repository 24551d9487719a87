"""The file that a server with AIF_SERVE__RECORD_FILE writes: bounded, and what `aif verify-answers` reads."""

import asyncio
import json
from pathlib import Path

from schemas.behaviour_columns import EMPTY
from schemas.requests import PrerankRequest
from serving.audit.recorded_answers import AnswerRecorder, read_answers
from serving.users.user_store import KnownUser
from tests.infra.small_files import files_of_at_most

HISTORY = KnownUser({"country": "UK"}, EMPTY.append([(5, "click", 7, {}), (2**60, "buy", 8, {"n": 1})], 10), (1, 2))
REQUEST = PrerankRequest(user_id=1, item_ids=[5, 6], top_k=1, context={"hour": 3}, retrieval_scores=[0.1, 0.2])
ANSWER = {
    "request_id": "r",
    "version_token": "1.0-00000000",
    "rung": "inline",
    "degraded": [],
    "items": [{"item_id": 5, "score": 0.5, "probabilities": [0.5]}],
    "candidates": 2,
    "unknown_count": 0,
    "unknown_items": [],
    "freshness": {"age_s": None, "watermark": []},
    "took_ms": 1.0,
}


def test_the_file_is_bounded_and_reads_back_with_the_history(tmp_path: Path) -> None:
    path, now = tmp_path / "answers.jsonl", [0.0]

    async def record() -> None:
        recorder = AnswerRecorder(path, 1.0, 2, lambda: now[0])
        for at, history in ((0.0, None), (0.0, HISTORY), (0.5, HISTORY), (2.0, HISTORY), (4.0, HISTORY)):
            now[0] = at
            recorder.offer(REQUEST, history, json.dumps(ANSWER).encode())
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(record())
    first, _second = read_answers(path)
    assert first.request.features == {"country": "UK"} and first.request.context == {"hour": 3}
    assert first.request.retrieval_scores == [0.1, 0.2], "by which fewer candidates were chosen, under load"
    assert [(b.item_id, b.kind, b.time_ms, b.features) for b in first.request.behaviours or ()] == [
        (5, "click", 7, {}),
        (str(2**60), "buy", 8, {"n": 1}),
    ]


def test_what_a_full_disk_refuses_leaves_the_answers_before_it_readable(tmp_path: Path) -> None:
    """Half a line would make the file unreadable, and the next start of the server appends to it."""
    path = tmp_path / "answers.jsonl"

    async def record(answers_max: int, answers: int) -> None:
        recorder = AnswerRecorder(path, 0.0, answers_max)
        for _ in range(answers):
            recorder.offer(REQUEST, HISTORY, json.dumps(ANSWER).encode())
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(record(1, 1))
    with files_of_at_most(path.stat().st_size * 3 // 2):
        asyncio.run(record(5, 1))
    asyncio.run(record(1, 1))
    assert len(read_answers(path)) == 2
