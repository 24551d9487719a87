"""Shards that stand still because their worker's disk takes no writes, and why: for `aif status` and `aif doctor` on any machine.

A worker tells it twice a minute on index-events while it lasts (streams/worker.py); the end of it, or a new opening of the shard, is an event too. So no
clock decides. Invariant: only the newest events are read, however many there are.
"""

from collections.abc import Iterable, Mapping

from infra.kafka.reader import SourceRecord, read_newest
from infra.kafka.security import Bootstrap
from schemas.decoding import decode_record
from schemas.errors import AifError
from schemas.events import DISK_FAULT, DISK_FAULT_OVER, SHARD_OPENED, IndexEvent
from schemas.topics import INDEX_EVENTS

REMEDY = "free space on that worker's disk, or repair it; the shard continues by itself"
_RECORDS_MAX = 500


def fetch_standing_shards(bootstrap: Bootstrap, prefix: str, deadline_s: float) -> Mapping[int, str]:
    """The last error by shard. Raises as `read_newest`."""
    return find_standing(read_newest(bootstrap, INDEX_EVENTS, _RECORDS_MAX, prefix=prefix, deadline_s=deadline_s))


def find_standing(events: Iterable[SourceRecord]) -> dict[int, str]:
    """The last error of each shard whose newest event is a fault of its disk. Records that do not decode count for nothing."""
    found: dict[int, str] = {}
    for record in events:
        try:
            event = decode_record(IndexEvent, record.value)
        except AifError:
            continue
        if event.shard is not None and event.kind == DISK_FAULT:
            found[event.shard] = event.reason
        elif event.shard is not None and event.kind in (DISK_FAULT_OVER, SHARD_OPENED):
            found.pop(event.shard, None)
    return dict(sorted(found.items()))
