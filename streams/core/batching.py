"""How records become micro-batches: which are duplicates, what to do where records are missing, where to cut (protocol A8). Pure.

Bounds: a micro-batch is one RocksDB WriteBatch of at most WRITE_BATCH_UPDATES_MAX updates, because a larger one would hold the interpreter too long.
A record is never cut, because its updates share one offset and the next offset is written with them.
A hole in a partition: its records are fetched again once; if the hole is still there, the process ends. Offsets that a transaction skips are no holes.
streams/record_feed.py has the reasons.
"""

import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence

from schemas.errors import Incompatible
from schemas.limits import UPDATES_PER_RECORD_MAX, WRITE_BATCH_UPDATES_MAX

assert UPDATES_PER_RECORD_MAX <= WRITE_BATCH_UPDATES_MAX

Partition = tuple[str, int]  # topic without prefix, partition
_FETCHED_AHEAD_MAX = 20_000  # records of a partition that arrive after a seek from before it: a client and a stream hold fewer


def plan_fresh(partition: int, next_offsets: Mapping[str, int], records: Iterable[tuple[str, int]]) -> list[int]:
    """Positions of the records that are new, given as (topic, offset). A record below its topic's next offset is a duplicate; the others must follow without
    a gap.

    Raises Incompatible (`offset_gap`): a topic that is not compacted has no holes, and an offset that a transaction skips is given as a record too.
    """
    fresh, next_offsets = [], dict(next_offsets)
    for position, (topic, offset) in enumerate(records):
        next_offset = next_offsets[topic]
        if offset < next_offset:
            continue
        if offset > next_offset:
            raise Incompatible(
                "offset_gap",
                f"{topic}[{partition}] jumps from offset {next_offset} to {offset}; the process reads the records in between again, and ends where the log "
                "has none",
            )
        fresh.append(position)
        next_offsets[topic] += 1
    return fresh


def plan_batches(sizes: Sequence[int], size_max: int = WRITE_BATCH_UPDATES_MAX, records_max: int | None = None) -> list[slice]:
    """Cuts records, given as their sizes (numbers of updates, or bytes), into runs of at most `size_max` and `records_max` records; a larger single
    record stands alone."""
    cuts, start, total = [], 0, 0
    for position, size in enumerate(sizes):
        if position > start and (total + size > size_max or position - start == records_max):
            cuts.append(slice(start, position))
            start, total = position, 0
        total += size
    if start < len(sizes):
        cuts.append(slice(start, len(sizes)))
    return cuts


class Remedy(enum.Enum):
    """What to do about a hole."""

    SEEK = "read again from the shard's next offset"
    WAIT = "the records of an earlier seek are still to come"
    STOP = "the log itself has the hole"


class GapWatch:
    """Remembers for each partition the last record that was refused because of a hole, and how many have been refused since the seek."""

    def __init__(self) -> None:
        self._refused: dict[Partition, tuple[int, int]] = {}

    def choose_remedy(self, partition: Partition, offsets: Sequence[int]) -> Remedy:
        """After records of `partition` with these offsets were refused because of a hole.

        Records that were fetched before a seek still arrive, and they begin where the refused ones ended; a fetch after the seek begins lower. It does not if
        retention has passed the refused records meanwhile. So after more records than a client fetches ahead comes another seek.
        """
        refused_to, count = self._refused.get(partition, (None, 0))
        if refused_to is not None and offsets[0] <= refused_to:
            return Remedy.STOP
        waits = refused_to is not None and count < _FETCHED_AHEAD_MAX
        self._refused[partition] = (offsets[-1], count + len(offsets) if waits else 0)
        return Remedy.WAIT if waits else Remedy.SEEK

    def passed(self, partition: Partition) -> None:
        """Records of `partition` were applied: if there was a hole, it is closed."""
        self._refused.pop(partition, None)


def plan_runs(offsets: Sequence[int]) -> list[slice]:
    """Cuts offsets, in the order in which they arrived, into runs that ascend."""
    starts = [0, *(i for i in range(1, len(offsets)) if offsets[i] <= offsets[i - 1])]
    return [slice(a, b) for a, b in itertools.pairwise([*starts, len(offsets)])]
