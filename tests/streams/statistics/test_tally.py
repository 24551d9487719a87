"""Streaming a log gives the import's numbers, bit for bit, however it is cut and however often the process is killed."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.errors import Unavailable
from schemas.ids import encode_index_key, partition_of
from schemas.statistics import DAY_MS, OF_USER
from schemas.topics import ITEM_FEATURES, USER_BEHAVIOURS
from streams.statistics.counts import Change
from streams.statistics.side import Side
from streams.statistics.tally import COUNTS, Tally
from tests.streams.shard_world import ManualClock
from tests.streams.statistics.world import INIT, ITEMS, START_MS, STATISTICS, USERS, LogWorld, Process, numbers_served

seeds, kill_shares = st.integers(0, 10_000), st.sampled_from([0.0, 0.3])


def differing(process: Process, time_ms: int, offsets: Mapping[str, int]) -> list[str]:
    """Statistics whose streamed numbers as of a time differ from the imported ones in any bit."""
    process.tally.move_clock(time_ms)
    imported, streamed = process.world.imported(time_ms, offsets), dict[str, np.ndarray]()
    for side, prefix, owners in ((process.tally.items, "", ITEMS), (process.tally.users, OF_USER, USERS)):
        places = [side.counts.place_of(encode_index_key(owner)) for owner in range(owners)]
        streamed |= dict(zip([prefix + name for name in side.counts.statistics], side.counts.numbers()[:, places], strict=True))
    return [name for name in STATISTICS if streamed[name].tobytes() != imported[name].astype(np.float64).tobytes()]


def stream(process: Process, seed: int, kills: float) -> list[str]:
    """Streams a log in pieces and lets time pass; every difference to an import on the way."""
    random, found = np.random.default_rng(seed), []
    for share in (0.3, 0.6, 1.0):
        offsets = process.count(random, kills, share)
        newest_ms = max(e[0] for e in process.world.events if e[4][2] < offsets["/".join(map(str, e[4][:2]))])
        found += differing(process, newest_ms + 1, offsets)
    for days in (1, 4):
        found += differing(process, newest_ms + days * DAY_MS // 2, offsets)
    return found


def serve(process: Process, seed: int, kills: float, frozen: Process | None = None) -> list[tuple[int, str]]:
    """Streams a log and sends updates; (item or user, statistic) whose served number is not the imported one. `frozen`: sends before `process` begins, and once
    more after that, when it has slept for days and knows nothing of it."""
    random = np.random.default_rng(seed)
    for share, rounds in ((0.5, 3), (1.0, 60)):
        if frozen is not None:
            frozen.count(random, kills, share / 2)
            frozen.publish(random, kills, rounds=3)
            process.restart()
        process.count(random, kills, share)
        process.publish(random, kills, rounds)
    if frozen is not None:
        frozen.count(random, kills, 0.6)
        frozen.clock.seconds += 5 * 86_400
        frozen.publish(random, rounds=1, reads=False)
    offsets = process.count(random, kills)
    process.publish(random, kills)
    told = process.world.imported(process.tally.clock_ms, offsets)
    numbers = [(item, numbers_served(features)) for item, features in process.world.served().items()]
    numbers += [(user, numbers_served(features, OF_USER)) for user, features in process.world.served_users().items()]
    return [(owner, name) for owner, served in numbers for name, number in served.items() if number != told[name][owner]]


@given(seeds, kill_shares)
@settings(max_examples=12, deadline=None)
def test_a_streamed_log_has_the_numbers_of_an_import_at_any_time(seed: int, kills: float) -> None:
    with TemporaryDirectory() as folder:
        process = Process(LogWorld(seed), Path(folder))
        assert stream(process, seed, kills) == []
        process.tally.close()


@given(seeds, kill_shares, st.sampled_from([1, 3, 100]))
@settings(max_examples=12, deadline=None)
def test_what_is_served_after_all_updates_is_what_an_import_tells(seed: int, kills: float, updates_max: int) -> None:
    with TemporaryDirectory() as folder:
        process = Process(LogWorld(seed), Path(folder), updates_max=updates_max)
        assert serve(process, seed, kills) == []
        process.tally.close()


@given(seeds, kill_shares)
@settings(max_examples=12, deadline=None)
def test_a_process_that_takes_over_corrects_what_the_frozen_one_sends_later(seed: int, kills: float) -> None:
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        world = LogWorld(seed)
        frozen, process = Process(world, Path(folder)), Process(world, Path(other))
        assert serve(process, seed, kills, frozen) == []
        frozen.tally.close()
        process.tally.close()


def test_a_full_disk_at_the_first_write_of_a_directory_costs_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise Unavailable("disk_full", "no space left on device")

    process = Process(LogWorld(0), tmp_path)
    tally, records = process.tally, process.world.records[ITEM_FEATURES, 0]
    with monkeypatch.context() as full:
        full.setattr(tally.database, "write", no_space)
        with pytest.raises(Unavailable):
            tally.apply(records)
    tally.recover()
    tally.apply(records)
    assert tally.next_offsets[f"{ITEM_FEATURES}/0"] == len(records)
    tally.close()


def test_what_left_a_window_leaves_the_disk_where_nothing_is_sent(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.seconds = START_MS / 1_000
    tally = Tally(tmp_path, {"taken_1d": STATISTICS["taken_1d"]}, INIT, clock)
    partition = partition_of(1, INIT.user_partitions)
    name = f"{USER_BEHAVIOURS}/{partition}"
    tally.open_log({name: 0}, {name: 1})
    of_no_item = {"user_id": 1, "item_id": ITEMS, "kind": "click", "time_ms": START_MS}
    tally.apply([SourceRecord(USER_BEHAVIOURS, partition, 0, None, msgspec.json.encode({"schema": 1, "updates": [of_no_item]}))])
    tally.ends = {name: 2}  # no report
    assert len(list(tally.database.scan(COUNTS))) == 1
    clock.seconds += 3 * 86_400
    assert tally.write_due() == [] == list(tally.database.scan(COUNTS))
    tally.close()


class CountsTwice(Tally):
    """Counts what it reads again."""

    def apply(self, records: Sequence[SourceRecord], *rest: Any) -> Any:
        self._state.offsets = {**self._state.offsets, f"{records[0].topic}/{records[0].partition}": records[0].offset}
        return super().apply(records, *rest)


class ForgetsToForget(Tally):
    """Leaves in every window what was ever in it."""

    def move_clock(self, time_ms: int) -> list[tuple[bytes, bytes]]:
        for side in self.sides:
            side.counts.clock_ms = time_ms
        return []


class LosesWaiting(Tally):
    """Takes what did not fit into a turn as sent."""

    def write_due(self) -> Any:
        sent = super().write_due()
        for side in self.sides:
            number_SI = side.counts.numbers()
            side._sent_SI[:, : number_SI.shape[1]] = number_SI
        return sent


class BeginsAnew(Tally):
    """Takes some counters on the disk as not there."""

    def _stored(self, side: Side, changes: Iterable[Change]) -> dict[Change, int | None]:
        return {change: None if change.bucket % 2 else before for change, before in super()._stored(side, changes).items()}


@pytest.mark.parametrize(("planted", "kills"), [(CountsTwice, 0.0), (ForgetsToForget, 0.0), (LosesWaiting, 0.0), (BeginsAnew, 0.3)])
def test_planted_mistakes_are_found(planted: type[Tally], kills: float, tmp_path: Path) -> None:
    differences: list[Any] = []
    for seed in range(3):
        streamed = Process(LogWorld(seed), tmp_path / f"{seed}-streamed", planted)
        differences += stream(streamed, seed, kills)
        streamed.tally.close()
        served = Process(LogWorld(seed), tmp_path / f"{seed}-served", planted, updates_max=1)
        differences += serve(served, seed, kills)
        served.tally.close()
    assert differences


def test_events_that_a_slow_clock_leaves_out_are_said_with_what_helps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(LogWorld(3), tmp_path / "counts")
    process.clock.seconds = START_MS / 1_000 - 7_200
    for _ in range(2):
        process.count(np.random.default_rng(0), 0.0)
    assert process.tally.items.counts._totals_CI[:, :ITEMS].max() <= 0, "nothing is counted"
    (record,) = [r for r in caplog.records if r.message.startswith("events_left_out")]
    assert str(tmp_path / "counts") in record.message
