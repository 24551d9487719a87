"""A jump of offsets is harmless where the records come when they are read again; where the log lacks them, the error says why."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

import streams.missing_records
from infra.kafka.reader import SourceRecord
from schemas.errors import AifError, Incompatible, Unavailable
from streams.core.batching import plan_fresh
from streams.missing_records import MissingRecords

TOPIC, NEXT = "item-features", 5


class Reader:
    """A partition whose next offset is `NEXT`. `seeks`: where it was asked to read again."""

    def __init__(self) -> None:
        self.missing, self.seeks = MissingRecords("b", "p."), list[tuple[str, int, int]]()
        self.missing.seek = self._seek

    async def _seek(self, topic: str, partition: int, offset: int) -> None:
        self.seeks.append((topic, partition, offset))

    async def _read_next(self) -> int:
        return NEXT

    def get(self, offsets: Sequence[int]) -> None:
        try:
            plan_fresh(0, {TOPIC: NEXT}, [(TOPIC, offset) for offset in offsets])
            self.missing.passed((TOPIC, 0))
        except Incompatible as error:
            records = [SourceRecord(TOPIC, 0, offset, None, b"{}") for offset in offsets]
            asyncio.run(self.missing.read_again(error, records, self._read_next))


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
    monkeypatch.setattr(streams.missing_records, "start_offsets", lambda *_: {0: log_start})
    reader = Reader()
    reader.get([8, 9])
    with pytest.raises(kind, match=told):
        reader.get([8, 9])


def test_another_error_is_passed_on() -> None:
    error = Incompatible("other_topic", "x")
    with pytest.raises(Incompatible, match="other_topic"):
        asyncio.run(Reader().missing.read_again(error, [SourceRecord(TOPIC, 0, 8, None, b"")], Reader()._read_next))
