"""The serial task of a shard: admission, a full disk, its end, and the outbox on its way to a sender that stands in for the broker's."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from infra.clock import SystemClock
from infra.index.store import open_index_store
from infra.rocks import Batch, Database
from schemas.errors import Corrupted, Unavailable
from schemas.index.layout import decode_delta
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, SHARD_TOPICS
from streams.core.shard_state import TopicCounts
from streams.shard.batch_result import BatchResult
from streams.shard.directory import META, STATE_KEY, VERSION_PREFIX
from streams.shard.log_ends import LogRange
from streams.shard.outbox import OUTBOX, OutboxEntry, decode_value_at, encode_outbox_key
from streams.shard.shard import Shard
from streams.shard.start import start_shard
from streams.shard.task import ShardTask
from tests.infra.threads import raise_in
from tests.streams.shard_world import (
    INIT,
    ITEMS,
    HashEncoder,
    embed,
    everything,
    features_record,
    new_items_record,
    open_test_shard,
    rows_of,
    upsert,
)

A, B = ITEMS[:2]


class TakingSender:
    """Keeps the given entries; acknowledges on demand."""

    def __init__(self, task: ShardTask) -> None:
        self.task, self.sent = task, list[OutboxEntry]()

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        self.sent += entries

    def end_sending(self) -> None: ...
    def close(self) -> None: ...


def open_task(directory: Path) -> tuple[ShardTask, TakingSender]:
    senders = []
    task = ShardTask(open_test_shard(directory), SystemClock(), lambda t: senders.append(TakingSender(t)) or senders[0])  # type: ignore[func-returns-value,arg-type,return-value]
    task.admit()
    return task, senders[0]


def test_a_shard_whose_thread_has_ended_is_noticed_at_the_next_tick_and_one_that_is_closed_is_not(tmp_path: Path) -> None:
    task, _ = open_task(tmp_path / "s")
    task.submit(lambda shard: shard.next_offsets).result()
    thread = next(thread for thread in threading.enumerate() if thread.name.startswith("shard-"))
    task.tick()
    raise_in(thread, SystemExit)
    task.submit(lambda shard: shard.next_offsets)  # it wakes the thread, and may be lost with it
    thread.join(20)
    with pytest.raises(AssertionError, match="has ended"):
        task.tick()
    task.begin_close()
    task.tick()


def row_changes(entries: Sequence[OutboxEntry]) -> list[tuple[bytes, bytes]]:
    layouts = {0: HashEncoder(0).layout}
    return [change for e in entries if e.topic == INDEX_DELTAS for change in decode_delta(layouts, e.value or b"").changes]


def log(count: int) -> list[object]:
    return [features_record(i, upsert(A, i, price=i + 1.0), upsert(B, i, brand=str(i))) for i in range(count)]


def test_a_full_disk_pauses_the_shard_and_it_goes_on_by_itself_with_nothing_lost_or_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both faces of a failed write: it is not there, or it is there all the same; and opening again needs space too."""
    task, sender = open_task(tmp_path / "s")
    task.submit(lambda s: s.start_version(HashEncoder(0), {})).result()
    write, open_again = Database.write, Database._open
    faults = iter([False, True, None, False, True, None, True, None])

    def failing_write(self: Database, batch: Batch, sync: bool = False) -> None:
        fault = next(faults, None)
        if fault is None or fault:
            write(self, batch, sync)
        if fault is not None:
            raise Unavailable("disk_full", "no space left on device")

    opens = iter([True, True, False, True])

    def failing_open(self: Database) -> None:
        if next(opens, False):
            raise Unavailable("disk_full", "no space left on device")
        open_again(self)

    monkeypatch.setattr(Database, "write", failing_write)
    monkeypatch.setattr(Database, "_open", failing_open)
    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.01)
    monkeypatch.setattr("streams.shard.task._RETRY_S_MAX", 0.05)
    for record in log(6):
        asyncio.run(task.apply([record]))  # type: ignore[list-item]
    assert next(opens, None) is None and next(faults, "used") == "used"
    stored = task.submit(lambda s: (everything(s), s.pending_outbox(1_000))).result()
    task.close()
    plain, its_sender = open_task(tmp_path / "plain")
    plain.submit(lambda s: s.start_version(HashEncoder(0), {})).result()
    for record in log(6):
        asyncio.run(plain.apply([record]))  # type: ignore[list-item]
    expected = plain.submit(everything).result()
    plain.close()
    assert stored[0] == expected
    assert stored[0]["counters"][ITEM_FEATURES] == TopicCounts(12, 12, 0, 0)
    assert row_changes(stored[1]) == row_changes(its_sender.sent), "every row change is still owed to readers"
    assert [e.sequence for e in stored[1]] == list(range(len(stored[1])))
    assert {e.sequence for e in sender.sent} == {e.sequence for e in stored[1]}


def test_a_shard_without_batches_also_comes_back_from_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = open_task(tmp_path / "s")
    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.0)

    def full(_: object) -> None:
        raise Unavailable("disk_full", "no space left on device")

    with pytest.raises(Unavailable, match="disk_full"):
        task.submit(full).result()
    task.submit(lambda s: s.start_version(HashEncoder(3), {})).result()
    task.close()


def test_a_tick_that_comes_while_the_disk_is_full_does_not_end_the_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ticks no reader gets the offsets of a shard that changes no row, and acknowledged entries stay in the outbox until a restart."""
    task, sender = open_task(tmp_path / "s")
    asyncio.run(task.apply([features_record(0, upsert(A, 1))]))

    def fail(*_: object) -> None:
        raise Unavailable("disk_full", "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(Shard, "confirm_outbox", fail)
        full.setattr(Shard, "recover", fail)
        task.confirmed(sender.sent[-1].sequence)
        for _ in range(3):
            task.tick()
            task._executor.submit(lambda: None).result()
    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.0)
    task.tick()
    left = task.submit(lambda s: s.pending_outbox(100)).result()
    task.close()
    assert [decode_delta({}, e.value or b"").header.next_offsets for e in left] == [(1, 0)], (
        "confirmed entries are gone, the offsets are sent again"
    )
    assert left == sender.sent[1:]


def test_ticks_of_a_busy_shard_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = open_task(tmp_path / "s")
    task.submit(lambda _: None).result()
    ticks, busy = list[Shard](), threading.Event()
    monkeypatch.setattr(Shard, "write_due", lambda shard: ticks.append(shard) or [])  # type: ignore[func-returns-value]
    task.submit(lambda _: busy.wait())
    for _ in range(3):
        task.tick()
    busy.set()
    task.submit(lambda _: None).result()
    task.close()
    assert len(ticks) == 1


def test_a_database_that_is_damaged_when_it_is_opened_again_is_told_whoever_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB can leave a name of a file in its manifest that it then removes: an ingest whose sync failed, and the next open fails for good."""
    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.0)
    told = list[BaseException]()
    task = ShardTask(open_test_shard(tmp_path / "s"), SystemClock(), lambda _: None, on_fault=told.append)

    def fail(_: object) -> None:
        raise Unavailable("database_failed", "the disk fails")

    def damaged(_: object) -> None:
        raise Corrupted("database_corrupted", "no file 000130.sst")

    with monkeypatch.context() as failing:
        failing.setattr(Shard, "recover", damaged)
        assert isinstance(task.submit(fail).exception(), Unavailable)
        task.tick()
        task._executor.submit(lambda: None).result()
    task.close()
    assert list(map(str, told)) == ["database_corrupted: no file 000130.sst"]
    log = {topic: LogRange(0, 9) for topic in SHARD_TOPICS}
    start_shard(tmp_path / "s", 0, INIT, "index", SystemClock(), log, open_index_store(str(tmp_path / "store"))).close()
    assert list(tmp_path.glob("s.damaged-*")), "the next start sets it aside"


def test_a_fault_that_every_tick_would_meet_again_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller waits for a tick: nothing would be sent and nothing removed, without a word."""
    told = list[BaseException]()
    task = ShardTask(open_test_shard(tmp_path / "s"), SystemClock(), lambda _: None, on_fault=told.append)
    errors = iter([Unavailable("disk_full", "no space"), Corrupted("bad_outbox_entry", "8 bytes"), AssertionError("a defect")])

    def fail(_: object) -> None:
        raise next(errors)

    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.0)
    monkeypatch.setattr(Shard, "write_due", fail)
    for _ in range(3):
        task.tick()
        task._executor.submit(lambda: None).result()
    task.close()
    assert list(map(str, told)) == ["bad_outbox_entry: 8 bytes", "a defect"]


def test_damage_that_a_merge_of_tables_finds_is_kept_for_the_next_start_when_the_shard_is_given_away(tmp_path: Path) -> None:
    task = ShardTask(open_test_shard(tmp_path / "s"), SystemClock(), lambda _: None)
    task.submit(_damage_a_table).result()
    assert isinstance(task.submit(_merge_tables).exception(), Corrupted)
    (tmp_path / "s" / "damaged").unlink()
    task.close()
    assert (tmp_path / "s" / "damaged").exists()


def _write_a_table(shard: Shard, seed: int) -> None:
    batch, chance = shard.database.new_batch(), random.Random(seed)
    for n in range(300):
        batch.put(META, b"other/%05d" % n, chance.randbytes(20))
    shard.database.write(batch)
    shard.database.flush()


def _damage_a_table(shard: Shard) -> None:
    _write_a_table(shard, 0)
    table = max(shard.database.path.glob("*.sst"), key=lambda p: p.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 8
    table.write_bytes(content)


def _merge_tables(shard: Shard) -> None:
    for seed in range(1, 50):
        _write_a_table(shard, seed)


def _spoil(family: str, first: bytes) -> Callable[[Shard], None]:
    """Damages the newest entry of a family whose key begins with `first`."""

    def spoil(shard: Shard) -> None:
        keys = [key for key, _ in shard.database.scan(family) if key.startswith(first)]
        batch = shard.database.new_batch()
        batch.put(family, keys[-1], b"{")
        shard.database.write(batch)

    return spoil


def _lose_shared_value(shard: Shard) -> None:
    """Removes the one of several dead letters of one record that holds the bytes of all."""
    shard.apply([features_record(1, *({"op": "?"} for _ in range(3)))])
    holder = next(at for _, raw in shard.database.scan(OUTBOX) if (at := decode_value_at(raw)) is not None)
    batch = shard.database.new_batch()
    batch.delete(OUTBOX, encode_outbox_key(holder))
    shard.database.write(batch)


@pytest.mark.parametrize(
    ("spoil", "use", "code"),
    [
        (_spoil(META, STATE_KEY), lambda _: None, "bad_shard_state"),
        (_spoil(META, VERSION_PREFIX), lambda _: None, "bad_shard_version"),
        (_spoil(OUTBOX, b""), lambda shard: shard.pending_outbox(10), "bad_outbox_entry"),
        (_lose_shared_value, lambda shard: shard.pending_outbox(10), "outbox_value_missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_of_a_shard_that_does_not_read_is_mended_by_a_restart_as_its_error_says(
    tmp_path: Path, spoil: Callable[[Shard], None], use: Callable[[Shard], object], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    log, store = {topic: LogRange(0, 9) for topic in SHARD_TOPICS}, open_index_store(str(tmp_path / "store"))

    def start() -> ShardTask:
        shard = start_shard(tmp_path / "s", 0, INIT, "index", SystemClock(), log, store)
        return ShardTask(shard, SystemClock(), lambda _: None)

    task = start()
    task.submit(lambda shard: shard.start_version(HashEncoder(4), {})).result()
    task.submit(lambda shard: shard.apply([features_record(0, upsert(ITEMS[0], 1))])).result()
    task.submit(spoil).result()
    error = task.submit(use).exception()
    task.close()
    task = start()  # the restart
    said = f"{error}{caplog.text}"
    assert code in said and "restart the worker: it sets the shard's directory aside" in said
    assert list(tmp_path.glob("s.damaged-*"))
    assert task.submit(lambda shard: (shard.next_offsets[ITEM_FEATURES], shard.pending_outbox(10))).result() == (0, [])
    task.close()


def test_a_version_whose_stop_is_there_though_its_write_failed_gets_no_more_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sender = open_task(tmp_path / "s")
    monkeypatch.setattr("streams.shard.task._REOPEN_EVERY_S", 0.0)
    for version in (4, 5):
        task.submit(lambda s, version=version: s.start_version(HashEncoder(version), {})).result()  # type: ignore[misc]
    write = Database.write

    def write_and_fail(self: Database, batch: Batch, sync: bool = False) -> None:
        write(self, batch, sync)
        raise Unavailable("database_failed", "the disk fails")

    with monkeypatch.context() as failing:
        failing.setattr(Database, "write", write_and_fail)
        with pytest.raises(Unavailable, match="database_failed"):
            task.submit(lambda s: s.stop_version(4)).result()
    asyncio.run(task.apply([features_record(0, upsert(A, 1))]))
    rows = task.submit(lambda s: [rows_of(s, version) for version in (4, 5)]).result()
    task.close()
    assert [len(some) for some in rows] == [0, 1]
    assert {decode_delta({5: HashEncoder(5).layout}, one.value or b"").header.version for one in sender.sent} == {5}


def test_a_batch_that_waits_when_its_shard_is_given_away_is_applied_or_turned_away_but_not_cancelled(tmp_path: Path) -> None:
    """A cancellation would look to Faust like the end of the agent."""
    task, _ = open_task(tmp_path / "s")
    running, go_on = threading.Event(), threading.Event()
    task.submit(lambda _: (running.set(), go_on.wait(30)))

    async def give_away() -> list[object]:
        waiting = [asyncio.create_task(task.apply(log(1))) for _ in range(2)]  # type: ignore[arg-type]
        await asyncio.to_thread(running.wait)
        closing = asyncio.create_task(asyncio.to_thread(task.close))
        await asyncio.to_thread(task._closing.wait)
        go_on.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await closing
        return results  # type: ignore[return-value]

    outcomes = asyncio.run(give_away())
    assert all(isinstance(o, BatchResult) or getattr(o, "code", "") == "shard_closed" for o in outcomes), outcomes
    task.close()


def test_nothing_is_applied_before_admission_and_a_waiting_batch_is_let_in_by_it(tmp_path: Path) -> None:
    task = ShardTask(open_test_shard(tmp_path / "s"), SystemClock(), lambda _: None)

    async def admit_later() -> None:
        waiting = asyncio.create_task(task.apply([new_items_record(0, embed(A, 1, 2, 3, 4))]))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done and not task.admitted
        assert task.submit(lambda s: s.state.counters[ITEM_FEATURES].consumed + sum(s.next_offsets.values())).result() == 0
        task.admit()
        await waiting

    asyncio.run(admit_later())
    task.close()


def test_the_outbox_is_sent_in_order_emptied_when_acknowledged_and_sent_again_after_a_restart(tmp_path: Path) -> None:
    task, sender = open_task(tmp_path / "s")
    task.submit(lambda s: s.start_version(HashEncoder(0), {})).result()
    for record in log(3):
        asyncio.run(task.apply([record]))  # type: ignore[list-item]
    assert [e.sequence for e in sender.sent] == list(range(len(sender.sent)))
    task.confirmed(1)
    task.tick()
    left = task.submit(lambda s: s.pending_outbox(100)).result()
    assert left[0].sequence == 2
    task.close()
    again, its_sender = open_task(tmp_path / "s")
    again.submit(lambda _: None).result()
    assert [e.sequence for e in its_sender.sent] == [e.sequence for e in left]
    assert INIT.shards == 2
    again.close()
