"""The judge of the crash bench reports a bug of each kind of fault: planted into a real shard that applies a log."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import streams.shard.shard
from infra.kafka.dead_letters import decode_dead_letter
from infra.kafka.reader import SourceRecord
from lab.demo.stage import SHARDS
from lab.system.crash_judge import Verdict, compare
from schemas.topics import DEAD_LETTER_PREFIX, ITEM_FEATURES, SHARD_TOPICS
from streams.core.shard_state import TopicCounts
from streams.shard.decode import DecodedRecord
from streams.shard.shard import Shard
from tests.streams.shard_world import ITEMS, features_record, open_test_shard, upsert

_GOOD = [features_record(n, upsert(ITEMS[n % 3], n + 1, price=1.0)) for n in range(8)]
_FOREIGN = SourceRecord(ITEM_FEATURES, 0, 8, b"foreign", b"\xff" * 40)
LOG = [*_GOOD, _FOREIGN, features_record(9, upsert(ITEMS[0], 99))]


class Worker:
    """Applies records to shard 0 and sends its dead letters."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.letters = directory, set[tuple[str, int, int, int]]()
        self.shard: Shard = open_test_shard(directory / "0")

    def apply(self, records: Sequence[SourceRecord]) -> None:
        for entry in self.shard.apply(records).outbox:
            if entry.topic.startswith(DEAD_LETTER_PREFIX):
                source = decode_dead_letter(list(entry.headers))
                self.letters.add((source.topic, source.partition, source.offset, source.index))

    def start_from_older_copy(self, applied: int) -> None:
        """As after a damaged directory: from a copy that has `applied` records."""
        self.shard.close()
        self.shard = open_test_shard(self.directory / "copy")
        self.apply(LOG[:applied])

    def judge(self) -> Verdict:
        nothing = dict.fromkeys(SHARD_TOPICS, TopicCounts())
        counters = {n: {**nothing, **(self.shard.state.counters if n == 0 else {})} for n in range(SHARDS)}
        counted = {n: {topic: dataclasses.asdict(counts) for topic, counts in of.items()} for n, of in counters.items()}
        return compare({ITEM_FEATURES: LOG}, [(r.topic, r.partition, r.offset) for r in LOG], counted, self.letters)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.shard.close()


def plant_no_check_of_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard applies every record, also twice and behind a hole."""
    monkeypatch.setattr(streams.shard.shard, "plan_fresh", lambda _, __, records: range(len(records)))


def test_a_worker_without_a_bug_is_acquitted_after_every_fault(worker: Worker) -> None:
    worker.apply(LOG[:6])
    worker.start_from_older_copy(3)
    worker.apply(LOG[3:])
    worker.apply(LOG[5:])  # an owner before it sent them too
    assert worker.judge() == Verdict(10, 0, 0, 1, 0, 0)


def test_transactions_an_aborted_record_that_is_applied_is_reported(worker: Worker) -> None:
    aborted = features_record(10, upsert(ITEMS[1], 100))
    worker.apply([*LOG, dataclasses.replace(aborted, skipped=True)])
    assert worker.judge().doubled == 0
    worker.apply([dataclasses.replace(aborted, offset=11)])
    assert worker.judge().doubled == 2, "consumed and applied"


def test_transactions_a_committed_record_that_is_skipped_is_reported(worker: Worker) -> None:
    worker.apply([*LOG[:-1], dataclasses.replace(LOG[-1], skipped=True)])
    assert worker.judge().lost == 2


def test_damage_a_shard_from_an_older_copy_that_continues_too_late_is_reported(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_no_check_of_offsets(monkeypatch)
    worker.apply(LOG[:6])
    worker.start_from_older_copy(3)
    worker.apply(LOG[6:])  # at the offsets of the group
    assert worker.judge().lost >= 3


def test_away_a_worker_that_begins_at_the_end_of_the_log_is_reported(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_no_check_of_offsets(monkeypatch)
    worker.apply(LOG[-1:])
    assert worker.judge().lost >= len(LOG) - 1 and worker.judge().dead_letters_missing == 1


def test_foreign_a_record_that_is_dropped_in_silence_is_reported(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = streams.shard.shard.decode_source_record

    def drop(record: SourceRecord, kind: object, shards: int) -> DecodedRecord:
        decoded = decode(record, kind, shards)  # type: ignore[arg-type]
        return dataclasses.replace(decoded, rejected=[])

    monkeypatch.setattr(streams.shard.shard, "decode_source_record", drop)
    worker.apply(LOG)
    assert (worker.judge().dead_letters_missing, worker.judge().lost) == (1, 2)


def test_storm_two_owners_that_apply_the_same_records_are_reported(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_no_check_of_offsets(monkeypatch)
    worker.apply(LOG)
    worker.apply(LOG[4:])
    assert worker.judge().doubled > 0


def test_an_acknowledged_record_that_the_log_does_not_have_is_lost() -> None:
    counted = {shard: {ITEM_FEATURES: dataclasses.asdict(TopicCounts())} for shard in range(SHARDS)}
    assert compare({ITEM_FEATURES: []}, [(ITEM_FEATURES, 0, 4)], counted, set()).lost == 1
