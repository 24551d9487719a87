"""From a batch of a Faust agent to the serial tasks that own its partitions; and what happens where records of a partition did not come.

Faust and its client may skip records after a fault of their own. That is harmless, because the records come after a seek. A hole that comes again is in the
log, and ends the process. Offsets that a transaction takes are no hole: they come as records without content (fetched_records.py). Nor is what retention
removed after it was applied: it lies before the next offset.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

from infra.kafka.admin import start_offsets
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from schemas.errors import AifError, Incompatible, Unavailable
from streams.core.batching import GapWatch, Partition, Remedy, plan_runs
from streams.shard.task import SerialTask

_log = logging.getLogger("aif.streams.records")


class RecordFeed:
    """The records of one consumer. `find_task`: the task of a partition, None if it was given away. `seek` is set once there is a consumer."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, find_task: Callable[[Partition], SerialTask[Any] | None]) -> None:
        self._bootstrap, self._prefix, self._find_task = bootstrap, prefix, find_task
        self._gaps = GapWatch()
        self.seek: Callable[[str, int, int], Awaitable[None]] | None = None

    async def apply(self, records: Sequence[SourceRecord]) -> None:
        """Applies a batch of one topic: each partition's records by its task, all at the same time."""
        by_partition = sorted(records, key=lambda r: r.partition)  # stable: offsets keep their order
        await asyncio.gather(*(self._apply_partition(list(some)) for _, some in groupby(by_partition, lambda r: r.partition)))

    async def _apply_partition(self, records: Sequence[SourceRecord]) -> None:
        """Where offsets go back, the consumer has sought: the records after that are a batch of their own."""
        for run in plan_runs([r.offset for r in records]):
            await self._apply_run(records[run])

    async def _apply_run(self, records: Sequence[SourceRecord]) -> None:
        partition = (records[0].topic, records[0].partition)
        task = self._find_task(partition)
        if task is None:
            return  # the next owner starts at the stored offset
        try:
            await task.apply(records)
            self._gaps.passed(partition)
        except Incompatible as error:
            await self._read_again(error, task, partition, records)

    async def _read_again(self, error: Incompatible, task: SerialTask[Any], partition: Partition, records: Sequence[SourceRecord]) -> None:
        """After `records` raised `error`.

        Raises `error` unless it is `offset_gap`; Unavailable (`records_removed`, `kafka_unreachable`) and Incompatible (`log_hole`) where the log itself
        lacks the records.
        """
        if error.code != "offset_gap" or self.seek is None:
            raise error
        remedy = self._gaps.choose_remedy(partition, [r.offset for r in records])
        if remedy is Remedy.WAIT:
            return
        next_offset = await asyncio.wrap_future(task.submit(lambda state: state.next_offset(*partition)))
        if remedy is Remedy.STOP:
            starts = await asyncio.to_thread(start_offsets, self._bootstrap, self._prefix + partition[0])
            raise log_lacks(partition, next_offset, starts[partition[1]]) from error
        _log.info("records not delivered, reading them again: %s/%d from=%d got=%d", *partition, next_offset, records[0].offset)
        await self.seek(*partition, next_offset)


def log_lacks(partition: Partition, next_offset: int, log_start: int) -> AifError:
    """The error for a log that has no record at the next offset."""
    place = f"{partition[0]}[{partition[1]}]"
    if next_offset < log_start:
        return Unavailable(
            "records_removed",
            f"{place} starts at offset {log_start}: the broker removed the records from {next_offset} on before this process had read them; start the "
            "process again, and it begins from a copy that needs none of them, or says why it has none",
        )
    return Incompatible(
        "log_hole",
        f"{place} starts at offset {log_start} and has no record at {next_offset}: the broker lost it, or compacts the topic; publish the catalogue again "
        "into a new index, with another AIF_KAFKA__TOPIC_PREFIX and AIF_INDEX__STORE",
    )
