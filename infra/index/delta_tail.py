"""The end of index-deltas, seen from outside: the newest headers of each shard, and how far a version is behind them.

A version that fell behind in a shard (B5) gets no rows from it, while the others still do. Readers see that here: the deltas and watermarks of every version
that receives rows carry the offsets of its shard (B16).
Invariant: a look reads the tail of each partition, whatever the topic holds. A version of which the tail says nothing is as far as its seals.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from infra.closeable import Closeable
from infra.index.parts import read_manifest
from infra.index.store import IndexStore
from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import TopicFollower
from infra.kafka.security import Bootstrap
from schemas.index.control import VersionStatus
from schemas.index.layout import DeltaHeader, find_delta
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS

_TAIL_RECORDS = 200  # of a partition: in ten watermarks a second of a few versions, seconds
_ASK_S_MAX = 3.0
_SHARDS_NAMED = 8
_AGAIN_S = 1.0  # a version's watermark follows the others' at once, unless it is behind


class DeltaTail(Closeable):
    """At first the last `records` records of each partition, then new ones. For one thread, which closes it."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, records: int, deadline_s: float) -> None:
        self._bootstrap, self._prefix, self._records, self._deadline_s = bootstrap, prefix, records, deadline_s
        self._follower: TopicFollower | None = None
        self._newest: dict[int, DeltaHeader] = {}

    def read(self) -> Iterator[DeltaHeader]:
        """The headers up to where the topic ends now, as far as they come within the deadline. A record that no shard wrote is passed over: servers name it.

        Raises Unavailable (`unknown_topic`, `kafka_unreachable`).
        """
        name = self._prefix + INDEX_DELTAS
        ends = end_offsets(self._bootstrap, name, deadline_s=self._deadline_s)
        if self._follower is None:
            starts = start_offsets(self._bootstrap, name, deadline_s=self._deadline_s)
            tail = {p: max(starts[p], end - self._records) for p, end in ends.items()}
            self._follower = TopicFollower(self._bootstrap, INDEX_DELTAS, tail, prefix=self._prefix)
        give_up = time.monotonic() + self._deadline_s
        while not self._follower.has_reached(ends) and time.monotonic() < give_up:
            for record in self._follower.poll(1_000, 0.1):
                if (delta := find_delta({}, record.partition, record.value or b"")) is not None:
                    yield delta.header

    def newest(self) -> Mapping[int, DeltaHeader]:
        """By shard the header with the furthest offsets so far, after reading on. Raises as `read`."""
        for header in self.read():
            self._newest[header.shard] = max(header, self._newest.get(header.shard, header), key=lambda one: sum(one.next_offsets))
        return self._newest

    def close(self) -> None:
        """Closes its client."""
        if self._follower is not None:
            self._follower.close()


def fetch_lag(bootstrap: Bootstrap, prefix: str, store: IndexStore, status: VersionStatus) -> dict[int, int]:
    """For each shard in which the version lacks some: how many source records are in the rows of other versions and not in its own. Raises Unavailable
    (`kafka_unreachable`)."""
    newest: dict[int, tuple[int, ...]] = {}  # by shard, next offsets in the order of SHARD_TOPICS: of any version, and of this one
    own = {seal.shard: tuple(seal.source_offsets[topic] for topic in SHARD_TOPICS) for seal in read_manifest(store, status).seals}

    def note(headers: Iterable[DeltaHeader]) -> None:
        for header in headers:
            for known in (newest, own) if header.version == status.version else (newest,):
                known[header.shard] = max(known.get(header.shard, header.next_offsets), header.next_offsets, key=sum)

    def lag(wanted: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
        missing = {n: sum(max(0, end - at) for end, at in zip(ends, own[n], strict=True)) for n, ends in sorted(wanted.items()) if n in own}
        return {shard: records for shard, records in missing.items() if records}

    with DeltaTail(bootstrap, prefix, _TAIL_RECORDS, _ASK_S_MAX) as tail:
        note(tail.read())
        if lag(wanted := dict(newest)):
            time.sleep(_AGAIN_S)
            note(tail.read())
    return lag(wanted)


def describe_lag(lag: Mapping[int, int]) -> str:
    """In words, the first few shards; empty where nothing is missing."""
    shown = [f"shard {shard} by {records:,} records" for shard, records in list(lag.items())[:_SHARDS_NAMED]]
    return ", ".join([*shown, *([f"{len(lag) - len(shown)} more shards"] if len(lag) > len(shown) else [])])
