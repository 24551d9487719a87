"""Faust's consumer, handing over runs of records: what Faust does for every message is then done once for hundreds of records.

Here: the consumer and the order in which fetched records leave it. Not here: the app and its agents (faust_shell.py), which are given single records.
For one record Faust makes two tasks, a wait, an event and its bookkeeping: 70 us of processor time at best, 180 on a busy machine, against 2 us for
fetching it. A message here stands for a run: records of one partition in offset order, of one fetch. Its offset is that of the last of them.
Invariants: nothing is left out and nothing changes places within a partition. What waits is bounded by the number of runs in a queue and by the bytes of
one fetch of a partition, which a run cannot exceed (I8).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from faust.transport.drivers.aiokafka import Consumer
from faust.types import TP
from faust.types.transports import SchedulingStrategyT
from faust.types.tuples import ConsumerMessage

_RUN_RECORDS_MAX = 250  # partitions take turns run by run, so that a batch has work for every shard


class RunMessage(ConsumerMessage):
    """One run: `records` as aiokafka gave them. It has no key and no value of its own."""

    records: Sequence[Any]


class RunsInTurn(SchedulingStrategyT):
    """Cuts what one fetch brought into runs, one of each partition after the other."""

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
    """In place of the offsets that Faust has seen, below which it drops records in silence. After a seek back it still notes those
    that it had in hand, and then drops every record that the seek was for. Shards know by themselves what is a duplicate."""

    def __getitem__(self, partition: TP) -> None:
        return None


class RunConsumer(Consumer):
    """Belongs to an app whose `ConsumerScheduler` is RunsInTurn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = NothingRead()

    def _to_message(self, tp: TP, record: Any) -> RunMessage:
        last = record[-1]
        message = RunMessage(
            last.topic, last.partition, last.offset, None, None, (), None, None, None, tp=tp, generation_id=self.app.consumer_generation_id
        )
        message.records = record
        return message

    def _new_offset(self, tp: TP) -> int | None:
        """Where the group may go on: Faust's own would look for every offset in between. One agent acks a partition's runs in their order."""
        acked = self._acked[tp]
        if not acked:
            return None
        highest: int = max(acked)
        acked.clear()
        self._acked_index[tp].clear()
        return highest + 1

    def on_buffer_full(self, tp: TP) -> None:
        """Nothing: a full queue makes the fetcher wait. Faust would stop the partition besides, and where all have stopped it sleeps for a second."""

    def on_buffer_drop(self, tp: TP) -> None:
        """Nothing, as above."""
