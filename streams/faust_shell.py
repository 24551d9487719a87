"""The shell around Faust. Faust gives us group membership, assignment of partitions, dispatch of records and back-pressure, and nothing else.

Only this file (assignment and revocation in the app, the consumer's thread), faust_consumer.py and fetched_records.py touch private parts of Faust.

Faust's terms: the processes of a *group* share the partitions. An *assignment* gives some to this process, a *revocation* takes them back, and records
come in between. An *agent* is a loop over the records of a topic, which come to it as a *stream* of events. To *ack* an event tells Faust that the group
may continue behind it. To *seek* is to read from another offset.

Invariants:
- The offsets stored in the shards, also a 0, are committed to the group and sought BEFORE Faust's own handler runs. Faust then seeks to the committed offset,
  but not if it is 0.
- An exception in an agent never reaches Faust, which would ack the batch. What may pass was tried again before; anything else ends the process.
- Acks decide nothing here: a batch that is turned away is acked too, and the next owner starts at the shard's offset.
Source: Faust issues 606, 177, 323, 440, 517, 136, and faults measured against a real broker.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import faust
from faust.assignor.partition_assignor import PartitionAssignor
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.tables.manager import TableManager
from faust.types import TP

from infra.kafka.aiokafka_options import aiokafka_options
from infra.kafka.group_member import keep_member
from infra.kafka.reader import SourceRecord
from infra.kafka.security import REFUSALS, Bootstrap
from schemas.errors import AifError, Incompatible, Misconfigured, Unavailable
from schemas.limits import RECORD_BYTES_MAX
from streams.core.batching import Partition, plan_batches
from streams.faust_consumer import RunConsumer, RunsInTurn
from streams.fetched_records import SkippedOffset, give_every_offset

EXIT_FAULT = 70  # an unknown fault: a supervisor starts the process again
EXIT_OPERATOR = 78  # a restart would end in the same way: an operator must decide

_RETRY_S = 0.5
_METADATA_AGE_MS_MAX = 5_000  # added partitions are followed after this time
_BUFFERED_RUNS = 32  # of one topic that may wait; each holds at most one fetch of a partition
_BATCH_BYTES_MAX = 4 * RECORD_BYTES_MAX  # packed updates of about a second
_log = logging.getLogger("aif.streams.shell")

HandleBatch = Callable[[Sequence[SourceRecord]], Awaitable[None]]


class Ownership(Protocol):
    """Who opens and closes the shards that partitions belong to."""

    async def open_partitions(self, partitions: frozenset[Partition], generation: int) -> Mapping[Partition, int]:
        """Opens the shards of an assignment, closes all others. Returns for each partition the offset to read from."""

    def takes(self, partition: Partition) -> bool:
        """Whether records of a partition can be applied now. Until then they are not fetched."""

    def suspend(self) -> None:
        """Turns batches away until the next assignment, because Faust waits for the agents' batches before it gives partitions back."""


def exit_code_of(error: BaseException) -> int:
    """EXIT_OPERATOR if an operator must decide: the settings, the index, or what the broker lets this process do must change. Otherwise EXIT_FAULT."""
    is_refused = isinstance(error, Unavailable) and error.code in REFUSALS
    return EXIT_OPERATOR if is_refused or isinstance(error, Incompatible | Misconfigured) else EXIT_FAULT


@contextlib.contextmanager
def operator_exit() -> Iterator[None]:
    """Ends the process with EXIT_OPERATOR, and a log line instead of a traceback, where its start fails and an operator must decide."""
    try:
        yield
    except AifError as error:
        if exit_code_of(error) != EXIT_OPERATOR:
            raise
        _log.critical("process stops: starting: %s", error)
        sys.exit(EXIT_OPERATOR)


def stop_process(error: BaseException, doing: str) -> NoReturn:
    """Ends this process at once, before Faust can ack or commit anything. Nothing is lost: all that was done is in the shards."""
    _log.critical("process stops: %s: %s", doing, error, exc_info=None if isinstance(error, AifError) else error)
    leave_process(exit_code_of(error))


def leave_process(exit_code: int) -> NoReturn:
    """Ends this process without waiting for anything in it. A reader of its output that is gone does not keep it."""
    for output in (*logging.getLogger().handlers, sys.stdout):
        with contextlib.suppress(OSError, ValueError):
            output.flush()
    os._exit(exit_code)


class NoTables(TableManager):
    """Instead of the manager of Faust's tables, which waits a second for agents that declare tables. There are none here."""

    async def on_start(self) -> None:
        """Lets the consumer subscribe at once."""
        await self._update_channels()
        await self.recovery.start()


class EvenAssignor(PartitionAssignor):
    """Gives every worker a share of the shards: of four, three workers get 2, 1, 1. With standby replicas, which only tables need, the first two would
    keep them all."""

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas=0)


class SoleAssignor(EvenAssignor):
    """Gives one worker everything; the others wait for its end. The owner stays while it lives."""

    def _update_member_urls(self, clients_metadata: Any) -> None:
        super()._update_member_urls(clients_metadata)
        owners = [member for member, client in clients_metadata.items() if client.assignment.actives]
        self._sole = min(owners or clients_metadata)

    def _global_table_standby_assignments(self, assignments: Any, partitions_by_topic: Any) -> Any:
        everything: dict[str, list[int]] = {}
        for assignment in assignments.values():
            for topic, partitions in assignment.actives.items():
                everything.setdefault(topic, []).extend(partitions)
        for member, assignment in assignments.items():
            assignment.actives = {topic: sorted(all_) if member == self._sole else [] for topic, all_ in everything.items()}
        return super()._global_table_standby_assignments(assignments, partitions_by_topic)


class ShellApp(faust.App):
    """The app. Made by `make_app`."""

    prefix: str
    ownership: Ownership
    check_topics: Callable[[], None]
    folder: Path

    async def _on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Opens the shards and moves the group to their offsets, then lets Faust handle the assignment. A slow start only delays the records."""
        if not self.should_stop:
            try:
                keep_member(self.folder, self.consumer._thread._consumer._coordinator.member_id)  # type: ignore[attr-defined] # Faust: as below
                partitions = frozenset((tp.topic.removeprefix(self.prefix), tp.partition) for tp in assigned)
                offsets = await self._open_partitions(partitions, generation_id)
                stored = {TP(self.prefix + topic, partition): offset for (topic, partition), offset in offsets.items()}
                if stored and not await self.consumer._thread.commit(stored):  # type: ignore[attr-defined] # Faust: the type is that of any transport
                    _log.warning("group changed during an assignment; the next assignment starts at the shards' offsets")
                elif stored:
                    # The client may already read at the group's former offsets, and Faust itself does not seek to a committed 0.
                    await self.consumer.seek_wait(stored)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                stop_process(error, f"opening {sorted(assigned)}")
        await super()._on_partitions_assigned(assigned, generation_id)

    async def _open_partitions(self, partitions: frozenset[Partition], generation: int) -> Mapping[Partition, int]:
        """Opens the shards, and tries again while a disk, a broker or the control log does not answer; the partitions stay paused (A7). The topics are compared
        first: another cluster may give partitions too, and a directory that does not fit its log would be set aside or removed."""
        said = ""
        while True:
            try:
                await asyncio.to_thread(self.check_topics)
                return await self.ownership.open_partitions(partitions, generation)
            except Unavailable as error:
                if error.code != said:
                    _log.error("partition assignment failed, retrying: %s", error)
                said = error.code
                if self.should_stop:
                    return {}
                await asyncio.sleep(_RETRY_S)

    async def _on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Turns waiting batches away first, because Faust waits for their end. The next assignment says which shards stay."""
        self.ownership.suspend()
        await super()._on_partitions_revoked(revoked)

    def takes(self, tp: TP) -> bool:
        """Whether records of a partition are to be fetched."""
        return self.ownership.takes((tp.topic.removeprefix(self.prefix), tp.partition))

    async def compare_topics(self) -> None:
        """Returns when the topics were found to be those of the index; ends the process where they are others."""
        while True:
            try:
                await asyncio.to_thread(self.check_topics)
                return
            except asyncio.CancelledError:
                raise
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
            except BaseException as error:
                stop_process(error, "comparing the topics with those of the index")

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads `topic` (without prefix) again from `offset`. Records fetched before may still arrive."""
        await self.consumer.seek_wait({TP(self.prefix + topic, partition): offset})

    def _new_transport(self) -> Any:
        transport = super()._new_transport()
        transport.Consumer = RunConsumer  # type: ignore[misc] # Faust: as its own App sets other classes
        return transport


def faust_broker(bootstrap: Bootstrap) -> dict[str, Any]:
    """Faust's settings `broker` and, unless the connection is plain, `broker_credentials`. Raises Misconfigured (infra/kafka/security.py)."""
    options = aiokafka_options(bootstrap)
    settings: dict[str, Any] = {"broker": [f"kafka://{address}" for address in options["bootstrap_servers"]]}
    context, mechanism = options.get("ssl_context"), options.get("sasl_mechanism")
    if mechanism == "OAUTHBEARER":
        settings["broker_credentials"] = OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    elif mechanism is not None:
        name, password = options["sasl_plain_username"], options["sasl_plain_password"]
        settings["broker_credentials"] = SASLCredentials(username=name, password=password, ssl_context=context, mechanism=mechanism)
    elif context is not None:
        settings["broker_credentials"] = SSLCredentials(context)
    return settings


def make_app(
    group: str,
    bootstrap: Bootstrap,
    prefix: str,
    folder: Path,
    ownership: Ownership,
    session_timeout_s: float,
    check_topics: Callable[[], None] = lambda: None,
    assignor: type[PartitionAssignor] = EvenAssignor,
) -> ShellApp:
    """A Faust app that loses nothing.

    group         the consumer group
    folder        where Faust may write (it makes empty folders), with the id of this process in the group
    check_topics  raises Incompatible if the topics are not those of the index
    assignor      shares the partitions among the group
    """
    give_every_offset()
    app = ShellApp(
        group,
        **faust_broker(bootstrap),
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
        # Faust's own assignor gives topics of equal partition counts together; without this setting it would not be used.
        table_standby_replicas=1,
        PartitionAssignor=assignor,
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
        consumer_metadata_max_age_ms=_METADATA_AGE_MS_MAX,
    )
    app.prefix, app.ownership, app.check_topics, app.folder = prefix, ownership, check_topics, folder
    return app


def add_agent(app: ShellApp, topic: str, handle: HandleBatch, *, records_max: int, within_s: float) -> None:
    """Gives the records of a topic (without prefix) to `handle` in batches, one batch at a time. Batches begin at least `within_s` apart, so that
    records which come one by one are gathered."""
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
    """Events of one stream that wait for its agent. (Faust's own `noack_take` would wake up every `within_s`, even when nothing comes for hours.)"""

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
        """The events that have come, at least one; an empty list when the stream has ended."""
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
            self._queue.put_nowait(None)  # the next call is to find the end again
        return events


async def _handle_safely(handle: HandleBatch, records: Sequence[SourceRecord]) -> None:
    """Lets no exception out: Faust would ack the batch and continue without it."""
    try:
        await handle(records)
    except asyncio.CancelledError:
        # If the agent was not cancelled, a step of a shard was, because the shard is being closed; Faust would take it for the agent's end.
        if (agent := asyncio.current_task()) is None or agent.cancelling():
            raise
    except Unavailable as error:
        if error.code != "shard_closed":
            stop_process(error, f"a batch of {records[0].topic}")
    except BaseException as error:
        stop_process(error, f"a batch of {records[0].topic} from {records[0].partition}:{records[0].offset}")


def _source_record(topic: str, record: Any) -> SourceRecord:
    if isinstance(record, SkippedOffset):
        return SourceRecord(topic, record.partition, record.offset, None, None, skipped=True)
    timestamp_ms = -1 if record.timestamp is None else record.timestamp
    return SourceRecord(topic, record.partition, record.offset, record.key, record.value, tuple(record.headers), timestamp_ms)


async def consume(app: ShellApp, stop: asyncio.Event, end_s_max: float, on_stop: Callable[[], None]) -> bool:
    """Runs Faust until asked to stop; if Faust ends unasked, the process ends too, because it would no longer consume. False: it hangs, as without a broker.
    `on_stop`: called before Faust is asked to end; turns batches away."""
    starting, asked = asyncio.ensure_future(app.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        on_stop()
        await asyncio.wait({starting}, timeout=end_s_max)
        if not starting.done():  # a slow broker takes a while
            return False
    starting.result()
    ended = asyncio.ensure_future(app.wait_until_stopped())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        stop_process(app.crash_reason or RuntimeError("Faust stopped by itself"), "consuming")
    on_stop()
    stopping = asyncio.ensure_future(app.stop())
    await asyncio.wait({stopping}, timeout=end_s_max)
    if stopping.done():
        stopping.result()
    else:
        _log.warning("Faust does not end, as without a broker; the owned shards are closed anyway and keep their unsent records")
    ended.cancel()
    return stopping.done()


async def end_threads(within_s: float) -> bool:
    """The last thing in an event loop: ends its threads. False: one waits for a broker or a store, and the end of the loop would wait for it."""
    ended = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait({ended}, timeout=within_s)
    return ended.done()
