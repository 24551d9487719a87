"""A jump of offsets is harmless where the records come when they are read again; where the log lacks them, the error says why."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

import streams.record_feed
from infra.kafka.reader import SourceRecord
from schemas.errors import AifError, Incompatible, Unavailable
from streams.core.batching import plan_fresh
from streams.record_feed import RecordFeed

TOPIC, NEXT = "item-features", 5


class Reader:
    """A partition, and the task of its owner, whose next offset is `NEXT`. `seeks`: where it was asked to read again."""

    def __init__(self, error: AifError | None = None) -> None:
        self.seeks, self._error = list[tuple[str, int, int]](), error
        self._feed = RecordFeed("b", "p.", lambda _: self)  # type: ignore[arg-type,return-value] # a stand-in
        self._feed.seek = self._seek

    async def _seek(self, topic: str, partition: int, offset: int) -> None:
        self.seeks.append((topic, partition, offset))

    async def apply(self, records: Sequence[SourceRecord]) -> None:
        if self._error is not None:
            raise self._error
        plan_fresh(0, {TOPIC: NEXT}, [(TOPIC, record.offset) for record in records])

    def submit(self, step: Callable[[Any], int]) -> "Future[int]":
        done: Future[int] = Future()
        done.set_result(step(self))
        return done

    def next_offset(self, _: str, __: int) -> int:
        return NEXT

    def get(self, offsets: Sequence[int]) -> None:
        asyncio.run(self._feed.apply([SourceRecord(TOPIC, 0, offset, None, b"{}") for offset in offsets]))


def test_records_that_come_when_read_again_are_no_loss_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    with caplog.at_level(logging.INFO):
        reader.get([8, 9])
        reader.get([10])  # fetched before the seek
        reader.get([5, 6, 7, 8])
    assert reader.seeks == [(TOPIC, 0, NEXT)]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "records not delivered, reading them again: item-features/0 from=5 got=8")
    ]


@pytest.mark.parametrize(
    ("log_start", "kind", "told"),
    [
        (8, Unavailable, r"records_removed: item-features\[0\] starts at offset 8: .* from 5 on .* start the process again"),
        (0, Incompatible, r"log_hole: item-features\[0\] starts at offset 0 and has no record at 5: .* into a new index"),
    ],
)
def test_records_that_the_log_lacks_end_the_process_with_the_reason(
    log_start: int, kind: type[AifError], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.record_feed, "start_offsets", lambda *_: {0: log_start})
    reader = Reader()
    reader.get([8, 9])
    with pytest.raises(kind, match=told):
        reader.get([8, 9])


def test_another_error_is_passed_on() -> None:
    with pytest.raises(Incompatible, match="other_topic"):
        Reader(Incompatible("other_topic", "x")).get([8])
