"""How far the rows of a version that is to be served are behind what its shards have applied.

A version that fell behind in a shard (B5) gets no rows from it, while the others go on; only its shards know that, and readers see it from index-deltas: every
version that receives rows is told the offsets of its shard (B16). Here: that look, from outside. Not here: who falls behind, and how it ends
(streams/versions/shard_versions.py).
Invariant: it is a look at the tail of each partition, whatever the topic holds; where nothing is told of a version, its seals say how far it is.
"""

import time
from collections.abc import Iterable, Mapping

from infra.index.delta_tail import DeltaTail
from infra.index.parts import read_manifest
from infra.index.store import IndexStore
from infra.kafka.security import Bootstrap
from schemas.index.control import VersionStatus
from schemas.index.layout import DeltaHeader
from schemas.topics import SHARD_TOPICS

_TAIL_RECORDS = 200  # of a partition: in ten watermarks a second of a few versions, seconds
_ASK_S_MAX = 3.0
_SHARDS_NAMED = 8
_AGAIN_S = 1.0  # a version's watermark follows the others' at once, unless it is behind

Offsets = tuple[int, ...]  # of a shard, in the order of SHARD_TOPICS


def fetch_lag(bootstrap: Bootstrap, prefix: str, store: IndexStore, status: VersionStatus) -> dict[int, int]:
    """For each shard in which the version lacks some: how many source records are in the rows of other versions and not in its own. Raises Unavailable
    (`kafka_unreachable`)."""
    manifest = read_manifest(store, status)
    sealed = {seal.shard: tuple(seal.source_offsets[topic] for topic in SHARD_TOPICS) for seal in manifest.seals}
    told = _Told(status.version, sealed)
    with DeltaTail(bootstrap, prefix, _TAIL_RECORDS, _ASK_S_MAX) as tail:
        told.note(tail.read())
        if not told.lag(wanted := dict(told.newest)):
            return {}
        time.sleep(_AGAIN_S)
        told.note(tail.read())
    return told.lag(wanted)


def describe_lag(lag: Mapping[int, int]) -> str:
    """In words, the first few shards; empty where nothing is missing."""
    shown = [f"shard {shard} by {records:,} records" for shard, records in list(lag.items())[:_SHARDS_NAMED]]
    return ", ".join([*shown, *([f"{len(lag) - len(shown)} more shards"] if len(lag) > len(shown) else [])])


class _Told:
    """By shard the newest offsets that any version was told, and those that this one was."""

    def __init__(self, version: int, sealed: Mapping[int, Offsets]) -> None:
        self._version, self.newest, self._own = version, dict[int, Offsets](), dict(sealed)

    def note(self, headers: Iterable[DeltaHeader]) -> None:
        for header in headers:
            for offsets in (self.newest, *([self._own] if header.version == self._version else [])):
                offsets[header.shard] = max(offsets.get(header.shard, header.next_offsets), header.next_offsets, key=sum)

    def lag(self, wanted: Mapping[int, Offsets]) -> dict[int, int]:
        missing = {
            shard: sum(max(0, end - own) for end, own in zip(offsets, self._own[shard], strict=True))
            for shard, offsets in wanted.items()
            if shard in self._own
        }
        return {shard: records for shard, records in sorted(missing.items()) if records}
