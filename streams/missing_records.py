"""What a process does where records of a partition did not come: it reads them again once, and ends where the log has none of them.

Faust and its client may skip records after a fault of their own. That is harmless, because the records come after a seek. A hole that comes again is in the
log. Offsets that a transaction takes are no hole: they come as records without content (fetched_records.py). Nor is what retention removed after it was
applied: it lies before the next offset.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from infra.kafka.admin import start_offsets
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from schemas.errors import AifError, Incompatible, Unavailable
from streams.core.batching import GapWatch, Partition, Remedy

_log = logging.getLogger("aif.streams.records")


class MissingRecords:
    """The partitions of one consumer. `seek` is set once there is a consumer."""

    def __init__(self, bootstrap: Bootstrap, prefix: str) -> None:
        self._bootstrap, self._prefix = bootstrap, prefix
        self._gaps = GapWatch()
        self.seek: Callable[[str, int, int], Awaitable[None]] | None = None

    def passed(self, partition: Partition) -> None:
        """Records of `partition` were applied."""
        self._gaps.passed(partition)

    async def read_again(self, error: Incompatible, records: Sequence[SourceRecord], read_next: Callable[[], Awaitable[int]]) -> None:
        """After `records` of one partition raised `error`. `read_next`: the offset of the first missing record.

        Raises `error` unless it is `offset_gap`; Unavailable (`records_removed`, `kafka_unreachable`) and Incompatible (`log_hole`) where the log itself
        lacks the records.
        """
        if error.code != "offset_gap" or self.seek is None:
            raise error
        partition = (records[0].topic, records[0].partition)
        remedy = self._gaps.choose_remedy(partition, [r.offset for r in records])
        if remedy is Remedy.WAIT:
            return
        next_offset = await read_next()
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
