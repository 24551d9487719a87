"""Faust's consumer, changed so that it reads committed records and hands over runs of them.

What Faust does for each message is then done once for hundreds of records.

For each message Faust makes two tasks, a wait and an event, and keeps books: 70 us of processor time at best, 180 on a busy machine, where fetching a
record costs 2 us. So a message here is a run: records of one partition, from one fetch, in offset order. Its offset is that of its last record.
Invariants: no record is left out, none of another cluster is handed over, and the order within a partition stays. What waits is bounded by the number of
runs in a queue and by the bytes of one fetch of a partition, which a run cannot exceed (I8).
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP
from faust.types.transports import SchedulingStrategyT
from faust.types.tuples import ConsumerMessage

_WAITING_POLL_S = 0.05
# The client has one fetch under way at a broker. A fetch of partitions without news holds up all others, also those that were just assigned and sought.
_FETCH_WAIT_MS_MAX = 100
_RUN_RECORDS_MAX = 250  # partitions take turns run by run, so that a batch has work for every shard


class RunMessage(ConsumerMessage):
    """One run: `records` as aiokafka gave them. It has no key and no value of its own."""

    records: Sequence[Any]


class RunsInTurn(SchedulingStrategyT):
    """Cuts the records of one fetch into runs; partitions take turns."""

    def __init__(self) -> None:
        pass

    def iterate(self, records: Mapping[TP, list[Any]]) -> Iterator[tuple[TP, list[Any]]]:
        """Every record once, as (partition, run)."""
        cut = (
            [(tp, all_of[at : at + _RUN_RECORDS_MAX]) for at in range(0, len(all_of), _RUN_RECORDS_MAX)] for tp, all_of in records.items()
        )
        for turn in itertools.zip_longest(*cut):
            yield from (run for run in turn if run is not None)


class NothingRead(dict[TP, int | None]):
    """Instead of Faust's note of the offsets it has seen, below which it drops records in silence. After a seek back it would still note records
    from before the seek, and then drop all those that the seek was for. Shards recognize duplicates themselves."""

    def __getitem__(self, partition: TP) -> None:
        return None


class CommittedThread(AIOKafkaConsumerThread):
    """Reads committed records only (Faust would do so only together with transactions of its own), and waits less for news than Faust's 1.5 s."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level, consumer._fetch_max_wait_ms = "read_committed", _FETCH_WAIT_MS_MAX  # its fetcher takes them at the start
        return consumer


class RunConsumer(Consumer):
    """For an app whose `ConsumerScheduler` is RunsInTurn."""

    app: Any  # faust_shell.py's ShellApp; that file imports this one
    _compared: frozenset[Any] = frozenset()  # connections since which the topics were compared with those of the index

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = NothingRead()

    def _new_consumer_thread(self) -> CommittedThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Mapping[TP, list[Any]]:  # noqa: ASYNC109 - the name is Faust's
        """The client would continue at the same offsets in another cluster's log, if one answered at the address of the former. It can only do so over a new
        connection, so what may have come over one waits until the topics were compared."""
        records = await self._fetch(active_partitions, timeout)
        if records and not (connections := self._connections()) <= self._compared:
            await self.app.compare_topics()
            self._compared = connections
        return records

    def _connections(self) -> frozenset[Any]:
        consumer = self._thread._consumer
        return frozenset() if consumer is None else frozenset(consumer._client._conns.values())

    async def _fetch(self, active_partitions: set[TP] | None, timeout: float) -> Mapping[TP, list[Any]]:  # noqa: ASYNC109 - as above
        """Leaves the records of shards that take none yet where they are. In the queues they would keep those of other topics waiting behind them, also the
        checkpoint that the shards may be waiting for."""
        taking = {tp for tp in active_partitions or () if self.app.takes(tp)}
        if taking == active_partitions:
            return await super()._getmany(active_partitions, timeout)
        if taking:
            return await super()._getmany(taking, min(timeout, _WAITING_POLL_S))
        await asyncio.sleep(_WAITING_POLL_S)
        return {}

    def _to_message(self, tp: TP, record: Any) -> RunMessage:
        last = record[-1]
        message = RunMessage(
            last.topic, last.partition, last.offset, None, None, (), None, None, None,  # type: ignore[arg-type] # Faust: wants times and headers
            tp=tp, generation_id=self.app.consumer_generation_id,
        )  # fmt: skip
        message.records = record
        return message

    def _new_offset(self, tp: TP) -> int | None:
        """The offset to commit. Faust's own method would want every offset in between acked; here one agent acks the runs of a partition in their order."""
        acked = self._acked[tp]
        if not acked:
            return None
        highest: int = max(acked)
        acked.clear()
        self._acked_index[tp].clear()
        return highest + 1

    def on_buffer_full(self, tp: TP) -> None:
        """Does nothing, because a full queue makes the fetcher wait. Faust would also pause the partition, and sleep for a second when all are paused."""

    def on_buffer_drop(self, tp: TP) -> None:
        """Does nothing, as above."""
