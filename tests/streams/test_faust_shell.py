"""The shell around Faust on the real broker: where reading starts, what happens to an exception. The ownership is a stand-in, Faust is not."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.kafka.admin import apply_topics
from infra.kafka.reader import SourceRecord
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.topics import ITEM_FEATURES
from streams import faust_shell
from streams.core.batching import Partition
from streams.faust_shell import ShellApp, _Arrivals, add_agent, end_threads, make_app

WAIT_S = 60.0
RECORDS = 8_000


class SlowOwnership:
    """Opening takes `open_s` and fails as often as told; offsets are those given."""

    def __init__(self, offsets: Mapping[Partition, int], open_s: float = 0.0, failures: int = 0) -> None:
        self.offsets, self.open_s, self.failures, self.opened = offsets, open_s, failures, 0

    async def open_partitions(self, partitions: frozenset[Partition], generation: int) -> Mapping[Partition, int]:
        assert generation > 0, "by it an owner knows what another one may have had meanwhile"
        self.opened += 1
        await asyncio.sleep(self.open_s)
        if self.opened <= self.failures:
            raise Unavailable("disk_full", "no space left on device")
        return {p: self.offsets.get(p, 0) for p in partitions}

    def takes(self, partition: Partition) -> bool:
        return True

    def suspend(self) -> None: ...


Body = Callable[[ShellApp, Sequence[SourceRecord]], Awaitable[None]]


def consume(folder: Path, bootstrap: str, prefix: str, ownership: SlowOwnership, enough: Callable[[], bool], body: Body) -> None:
    """Runs an app with one agent until `enough()`."""

    folder.mkdir()

    async def run() -> None:
        app = make_app(f"{prefix}shards", bootstrap, prefix, folder, ownership, 6.0)
        changed = asyncio.Event()

        async def handle(records: Sequence[SourceRecord]) -> None:
            await body(app, records)
            if enough():
                changed.set()

        async def handle_bounded(records: Sequence[SourceRecord]) -> None:
            assert len(records) <= 500
            await handle(records)

        add_agent(app, ITEM_FEATURES, handle_bounded, records_max=500, within_s=0.01)
        await app.start()
        try:
            await asyncio.wait_for(changed.wait(), WAIT_S)
        finally:
            await app.stop()

    threading_error: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            threading_error.append(error)

    thread = threading.Thread(target=in_thread)  # Faust leaves things on its thread
    thread.start()
    thread.join(2 * WAIT_S)
    if threading_error:
        raise threading_error[0]


def publish(bootstrap: str, prefix: str, count: int) -> None:
    apply_topics(bootstrap, prefix, 2, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for n in range(count):
        producer.produce(prefix + ITEM_FEATURES, str(n).encode(), partition=n % 2)
    assert producer.flush(30) == 0


def commit(bootstrap: str, prefix: str, offset: int) -> None:
    """The group's offset of both partitions, as a former owner left it."""
    places = [TopicPartition(prefix + ITEM_FEATURES, p, offset) for p in range(2)]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures end only while it lives
    for one in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{prefix}shards", places)]).values():
        one.result(30)


def committed(bootstrap: str, prefix: str) -> dict[int, int]:
    """The group's offsets of both partitions."""
    places = [TopicPartition(prefix + ITEM_FEATURES, p) for p in range(2)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (one,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{prefix}shards", places)]).values()
    return {place.partition: place.offset for place in one.result(30).topic_partitions}


@pytest.mark.parametrize("left_by_the_former_owner", [None, 3_000])
def test_a_slow_assignment_loses_nothing_wherever_the_former_owner_had_been(
    left_by_the_former_owner: int | None, tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    publish(bootstrap_servers, topic_prefix, RECORDS)
    if left_by_the_former_owner is not None:
        commit(bootstrap_servers, topic_prefix, left_by_the_former_owner)
    seen: dict[int, list[int]] = {0: [], 1: []}
    waits_ms: set[int] = set()

    async def take(app: ShellApp, records: Sequence[SourceRecord]) -> None:
        waits_ms.add(app.consumer._thread._consumer._fetch_max_wait_ms)  # type: ignore[attr-defined] # Faust: the type is that of any transport
        for record in records:
            seen[record.partition].append(record.offset)

    ownership = SlowOwnership({(ITEM_FEATURES, 1): 100}, open_s=1.0, failures=1 if left_by_the_former_owner is None else 0)
    consume(tmp_path / "f", bootstrap_servers, topic_prefix, ownership, lambda: sum(map(len, seen.values())) >= RECORDS - 100, take)
    assert seen == {0: list(range(RECORDS // 2)), 1: list(range(100, RECORDS // 2))}
    assert committed(bootstrap_servers, topic_prefix) == {0: RECORDS // 2, 1: RECORDS // 2}, "tools outside would show a lag"
    assert max(waits_ms) <= 100, "a fetch without news that is under way at the seek holds up every partition for so long"


def test_after_a_seek_back_every_record_comes_again(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    """Faust would note the records that it had in hand and drop those that the seek was for."""
    publish(bootstrap_servers, topic_prefix, 4_000)
    arrived: list[int] = []
    sought_at: list[int] = []

    async def seek_once(app: ShellApp, records: Sequence[SourceRecord]) -> None:
        arrived.extend(r.offset for r in records if r.partition == 0)
        if not sought_at and len(arrived) > 500:
            sought_at.append(len(arrived))
            await app.seek(ITEM_FEATURES, 0, 0)

    def all_again() -> bool:
        return bool(sought_at) and set(range(2_000)) <= set(arrived[arrived.index(0, 1) :] if 0 in arrived[1:] else [])

    consume(tmp_path / "f", bootstrap_servers, topic_prefix, SlowOwnership({}), all_again, seek_once)
    again = arrived[arrived.index(0, 1) :]
    assert again == list(range(2_000))


class Stopped(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ValueError("a bug"), faust_shell.EXIT_FAULT),
        (AssertionError("an invariant"), faust_shell.EXIT_FAULT),
        (Unavailable("kafka_unreachable", "x"), faust_shell.EXIT_FAULT),
        (Incompatible("offset_gap", "x"), faust_shell.EXIT_OPERATOR),
        (Unavailable("kafka_not_authorized", "x"), faust_shell.EXIT_OPERATOR),
        (Unavailable("shard_closed", "x"), None),
        (asyncio.CancelledError(), None),  # of a step of a shard that closes, not of the agent
    ],
)
def test_no_exception_leaves_an_agent(error: BaseException, exit_code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Stopped

    monkeypatch.setattr("os._exit", end)

    async def handle(_: Sequence[SourceRecord]) -> None:
        raise error

    record = SourceRecord(ITEM_FEATURES, 0, 0, b"", b"")
    if exit_code is None:
        asyncio.run(faust_shell._handle_safely(handle, [record]))
        return
    with pytest.raises(Stopped):
        asyncio.run(faust_shell._handle_safely(handle, [record]))
    assert codes == [exit_code]


def test_a_process_whose_output_is_closed_still_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    with (tmp_path / "log").open("w") as closed:
        pass
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(closed)])
    faust_shell.leave_process(3)
    assert codes == [3]


class FakeStream:
    """A stream that gives what a queue holds, until None."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | None] = asyncio.Queue()

    def noack(self) -> "FakeStream":
        return self

    async def events(self) -> AsyncIterator[int]:
        while (event := await self.queue.get()) is not None:
            yield event


def test_an_agent_sleeps_until_something_comes_takes_all_of_it_and_hears_of_the_end() -> None:
    async def run() -> list[list[int]]:
        stream, arrivals = FakeStream(), _Arrivals(ITEM_FEATURES, 0.001)
        collecting = asyncio.create_task(arrivals.collect(stream))
        first = asyncio.create_task(arrivals.take())
        await asyncio.sleep(0.01)
        assert not first.done()
        stream.queue.put_nowait(1)
        taken = [await first]
        for n in range(2, 2 * faust_shell._BUFFERED_RUNS):  # more than are taken at once
            stream.queue.put_nowait(n)
        stream.queue.put_nowait(None)
        while taken[-1]:
            taken.append(await arrivals.take())
        await collecting
        return taken

    taken = asyncio.run(run())
    assert [n for batch in taken for n in batch] == list(range(1, 2 * faust_shell._BUFFERED_RUNS))
    assert taken[0] == [1] and max(map(len, taken)) <= 1 + faust_shell._BUFFERED_RUNS, "memory is bounded"


def test_an_assignment_of_another_cluster_opens_nothing(tmp_path: Path) -> None:
    """Its offsets mean nothing here: a directory that does not fit them would be set aside, or removed and counted again."""
    answers: list[AifError | None] = [Unavailable("kafka_unreachable", "not yet"), Incompatible("other_index", "another cluster"), None]

    def check() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    ownership = SlowOwnership({})

    async def run() -> None:
        app = make_app("shards", "127.0.0.1:1", "p.", tmp_path, ownership, 6.0, check)
        with pytest.raises(Incompatible, match="another cluster"):
            await app._open_partitions(frozenset({(ITEM_FEATURES, 0)}), 1)
        assert ownership.opened == 0
        await app._open_partitions(frozenset({(ITEM_FEATURES, 0)}), 1)
        assert ownership.opened == 1

    asyncio.run(run())


def test_a_thread_that_waits_does_not_keep_the_process() -> None:
    """A check of the topics may wait ten seconds for a slow broker, and the end of an event loop waits for its threads."""

    async def run(waits: bool) -> bool:
        go_on = threading.Event()
        waiting = asyncio.ensure_future(asyncio.to_thread(go_on.wait, WAIT_S if waits else 0.0))
        await asyncio.sleep(0.05)
        ended = await end_threads(0.1)
        go_on.set()
        await waiting
        return ended

    assert [asyncio.run(run(waits)) for waits in (False, True)] == [True, False]
