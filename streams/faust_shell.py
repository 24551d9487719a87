"""The hard shell around Faust: group membership, assignment, dispatch and back-pressure come from it, and nothing else is trusted to it.

Here: the app with every setting that keeps data safe, the assignment that starts at the shards' own offsets, the agent body that no
exception leaves. The private parts of Faust are touched in this file (assignment and revocation of the app, the consumer's thread), in
faust_consumer.py and in fetched_records.py only. Not here: what a batch does (streams/agents), who owns shards (streams/owned_shards.py).
Invariants: the offsets stored in the shards, also 0, are committed to the group and sought BEFORE Faust's own handler runs, because Faust
then seeks to the committed offset, but not to a 0; an exception in an agent never reaches Faust, which would ack the batch: what is
transient was retried below, anything else ends the process. Acks mean nothing here: a batch that is turned away is acked too, and its
next owner starts at the shard's offset.
Source: Faust issues 606, 177, 323, 440, 517, 136, and faults measured against a real broker.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import faust
from faust.tables.manager import TableManager
from faust.types import TP

from infra.kafka.reader import SourceRecord
from schemas.errors import AifError, Incompatible, Misconfigured, Unavailable
from schemas.limits import RECORD_BYTES_MAX
from streams.core.batching import plan_batches
from streams.core.gaps import Partition
from streams.faust_consumer import RunConsumer, RunsInTurn
from streams.fetched_records import accept_any_header_names

EXIT_FAULT = 70  # something unknown: a supervisor starts the process again
EXIT_OPERATOR = 78  # a restart would end in the same way: an operator must decide

_RETRY_S = 0.5
_BUFFERED_RUNS = 32  # per topic: as many wait as are taken at once; each is at most what one fetch of a partition brings
_BATCH_BYTES_MAX = 4 * RECORD_BYTES_MAX  # packed updates of about a second
_log = logging.getLogger("aif.streams.shell")

HandleBatch = Callable[[Sequence[SourceRecord]], Awaitable[None]]


class Ownership(Protocol):
    """Who opens and closes what a partition stands for."""

    async def open_partitions(self, partitions: frozenset[Partition]) -> Mapping[Partition, int]:
        """Opens what the partitions belong to; the next offset of each, to be read from."""
        ...

    def begin_close(self) -> None:
        """Batches are turned away from now on, so that nobody waits for one that cannot be applied."""
        ...

    async def close_partitions(self) -> None:
        """Closes everything; the next assignment opens it again."""
        ...


def stop_process(error: BaseException, doing: str) -> NoReturn:
    """Ends this process at once, without a chance for Faust to ack or commit anything. Everything is in the shards."""
    decided = isinstance(error, Incompatible | Misconfigured)
    _log.critical("process stops: %s: %s", doing, error, exc_info=None if isinstance(error, AifError) else error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    os._exit(EXIT_OPERATOR if decided else EXIT_FAULT)


class NoTables(TableManager):
    """In place of Faust's tables. There are none here, so nobody has to wait a second for agents that declare them late."""

    async def on_start(self) -> None:
        """Lets the consumer subscribe at once."""
        await self._update_channels()
        await self.recovery.start()


class ShellApp(faust.App):
    """The app. Made by `make_app`."""

    prefix: str
    ownership: Ownership

    async def _on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Opens the shards and moves the group to their offsets, then hands the assignment on. A slow start only delays the records."""
        if not self.should_stop:
            try:
                offsets = await self._open_partitions(frozenset((tp.topic.removeprefix(self.prefix), tp.partition) for tp in assigned))
                stored = {TP(self.prefix + topic, partition): offset for (topic, partition), offset in offsets.items()}
                if stored and not await self.consumer._thread.commit(stored):
                    _log.warning("the group moved on during an assignment; the next one starts again at the shards' offsets")
                elif stored:
                    # The client may be reading at the group's former offsets by now, and Faust's own seek passes over a committed 0.
                    await self.consumer.seek_wait(stored)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                stop_process(error, f"opening {sorted(assigned)}")
        await super()._on_partitions_assigned(assigned, generation_id)

    async def _open_partitions(self, partitions: frozenset[Partition]) -> Mapping[Partition, int]:
        """Tries again while a disk, a broker or the control log does not answer: the partitions stay paused meanwhile (A7)."""
        said = ""
        while True:
            try:
                return await self.ownership.open_partitions(partitions)
            except Unavailable as error:
                if error.code != said:
                    _log.error("an assignment waits, it is tried again: %s", error)
                said = error.code
                if self.should_stop:
                    return {}
                await asyncio.sleep(_RETRY_S)

    async def _on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Turns waiting batches away first, because Faust waits until they end; then frees the shards for their next owner."""
        self.ownership.begin_close()
        await super()._on_partitions_revoked(revoked)
        await self.ownership.close_partitions()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads `topic` (without prefix) again from `offset`. Records fetched before may still arrive."""
        await self.consumer.seek_wait({TP(self.prefix + topic, partition): offset})

    def _new_transport(self) -> Any:
        transport = super()._new_transport()
        transport.Consumer = RunConsumer
        return transport


def make_app(group: str, bootstrap: str, prefix: str, folder: Path, ownership: Ownership, session_timeout_s: float) -> ShellApp:
    """A Faust app that loses nothing: `group` is the consumer group, `folder` where Faust may write (it makes empty folders)."""
    accept_any_header_names()
    app = ShellApp(
        group,
        broker=[f"kafka://{address}" for address in bootstrap.split(",")],
        datadir=str(folder),
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_create=False,
        stream_wait_empty=True,
        stream_buffer_maxsize=_BUFFERED_RUNS,
        stream_ack_exceptions=False,
        producer_threaded=False,
        TableManager=NoTables,
        processing_guarantee="at_least_once",
        # Faust's own assignor gives topics of equal partition counts together; without standby replicas it would not be used.
        table_standby_replicas=1,
        broker_session_timeout=session_timeout_s,
        broker_heartbeat_interval=2.0,
        broker_commit_interval=1.0,
        broker_max_poll_interval=3600.0,
        ConsumerScheduler=RunsInTurn,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=RECORD_BYTES_MAX + 64 * 1024,
        key_serializer="raw",
        value_serializer="raw",
        consumer_connections_max_idle_ms=540_000,
    )
    app.prefix, app.ownership = prefix, ownership
    return app


def add_agent(app: ShellApp, topic: str, handle: HandleBatch, *, records_max: int, within_s: float) -> None:
    """Gives batches of a topic (without prefix) to `handle`, one batch at a time: what is there when a record arrives. Batches begin at least
    `within_s` apart, so that records that come one by one gather meanwhile."""
    source = app.topic(app.prefix + topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    async def body(stream: Any) -> None:
        arrivals = _Arrivals(topic, within_s)
        collecting = asyncio.create_task(arrivals.collect(stream))
        try:
            while events := await arrivals.take():
                records = [_source_record(topic, record) for event in events for record in event.message.records]
                for batch in plan_batches([len(r.value or b"") for r in records], _BATCH_BYTES_MAX, records_max):
                    await _handle_safely(handle, records[batch])
                for event in events:
                    event.ack()
        finally:
            collecting.cancel()

    app.agent(source, name=f"aif.{topic}", concurrency=1)(body)


class _Arrivals:
    """Events of one stream on their way to its agent. Faust's own `noack_take` looks for them every `within_s`, also when nothing comes for hours."""

    def __init__(self, topic: str, within_s: float) -> None:
        self._topic, self._within_s = topic, within_s
        self._queue: asyncio.Queue[Any] = asyncio.Queue(_BUFFERED_RUNS)
        self._began_at = float("-inf")

    async def collect(self, stream: Any) -> None:
        """Puts every event of the stream into the queue, then None. Nothing is acked."""
        try:
            async for event in stream.noack().events():
                await self._queue.put(event)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            stop_process(error, f"reading {self._topic}")
        await self._queue.put(None)

    async def take(self) -> list[Any]:
        """What has come, at least one event; nothing when the stream has ended."""
        event = await self._queue.get()
        clock = asyncio.get_running_loop().time
        if event is not None and (pause_s := self._began_at + self._within_s - clock()) > 0:
            await asyncio.sleep(pause_s)
        self._began_at, events = clock(), []
        while event is not None:
            events.append(event)
            if self._queue.empty():
                return events
            event = self._queue.get_nowait()
        if events:
            self._queue.put_nowait(None)  # the end is told again
        return events


async def _handle_safely(handle: HandleBatch, records: Sequence[SourceRecord]) -> None:
    """No exception leaves: Faust would ack the batch and go on without it."""
    try:
        await handle(records)
    except asyncio.CancelledError:
        raise
    except Unavailable as error:
        if error.code != "shard_closed":
            stop_process(error, f"a batch of {records[0].topic}")
    except BaseException as error:
        stop_process(error, f"a batch of {records[0].topic} from {records[0].partition}:{records[0].offset}")


def _source_record(topic: str, record: Any) -> SourceRecord:
    timestamp_ms = -1 if record.timestamp is None else record.timestamp
    return SourceRecord(topic, record.partition, record.offset, record.key, record.value, tuple(record.headers), timestamp_ms)
