"""How records become micro-batches: which are duplicates, where records are missing, where to cut (protocol A8). Pure.

Bounds: a micro-batch is one RocksDB WriteBatch of at most WRITE_BATCH_UPDATES_MAX updates, because a larger one would hold the interpreter too long.
A record is never cut, because its updates share one offset and the next offset is written with them.
"""

from collections.abc import Sequence

from schemas.errors import Incompatible
from schemas.limits import UPDATES_PER_RECORD_MAX, WRITE_BATCH_UPDATES_MAX

assert UPDATES_PER_RECORD_MAX <= WRITE_BATCH_UPDATES_MAX


def plan_fresh(topic: str, partition: int, next_offset: int, offsets: Sequence[int]) -> list[int]:
    """Positions in `offsets` of the records that are new. A record below `next_offset` is a duplicate; the others must follow without a gap.

    Raises Incompatible (`offset_gap`), because a topic that is not compacted has no holes.
    """
    fresh = []
    for position, offset in enumerate(offsets):
        if offset < next_offset:
            continue
        if offset > next_offset:
            raise Incompatible(
                "offset_gap",
                f"{topic}[{partition}] jumps from offset {next_offset} to {offset}: records are missing (a transactional producer, or a lost "
                "segment); publish without transactions, or restore the shard from a snapshot",
            )
        fresh.append(position)
        next_offset += 1
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
