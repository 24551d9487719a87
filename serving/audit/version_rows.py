"""The rows of one version at an answer's watermark: from its files, and from index-deltas, record by record up to a position.

Invariants: a delta record is applied as a whole. A component of a row never goes back, and an id that the watermark covers as deleted stays deleted
(FORMAT.md section 3). The incremental part wins over the full part. To go back to an earlier position, it starts again from the files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from infra.index.parts import read_full_part, read_incremental_part
from infra.index.store import IndexStore
from infra.kafka.reader import read_topic
from infra.kafka.security import Bootstrap
from schemas.errors import Corrupted
from schemas.index.digest import merge_parts
from schemas.index.layout import RowLayout, decode_increment, find_delta
from schemas.index.manifest import Manifest
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, SHARD_TOPICS

StampTuple = tuple[int, ...]  # a STAMP element as plain numbers
_FEATURES_OFFSET, _DEAD = 1, 6  # places in it

Change = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class DeltaAt:
    """The changes of one delta record, for the given keys only. `covered`: the next offset of item-features that the earlier records and the files cover."""

    offset: int
    changes: Sequence[Change]
    covered: int


def stamp_advances(incoming: StampTuple, current: StampTuple) -> bool:
    """The row-stamp rule on plain numbers: neither component goes back and one advances."""
    features, embedding = (incoming[:3], current[:3]), (incoming[3:5], current[3:5])
    return features[0] >= features[1] and embedding[0] >= embedding[1] and (features[0] > features[1] or embedding[0] > embedding[1])


def is_taken(incoming: StampTuple, current: StampTuple | None, covered: int) -> bool:
    """Whether a reader takes a change of an id, of which it holds `current` (None = nothing).

    A reader whose watermark covers item-features up to `covered` holds every item that lives there. An id that it does not hold, or holds as deleted below
    `covered`, is deleted at the watermark. Only a later update of its features brings it back.
    """
    if current is None or (current[_DEAD] and current[_FEATURES_OFFSET] < covered):
        return incoming[_FEATURES_OFFSET] >= covered
    return stamp_advances(incoming, current)


@dataclass
class RowState:
    """Rows at a position; the content of a row that is not live is undefined.

    `changes_R`: how often each row was replaced. A value computed from a row is valid as long as this count is the same.
    """

    rows_R: np.ndarray
    live_R: np.ndarray
    changes_R: np.ndarray
    stamps: list[StampTuple | None]
    positions: dict[int, int] = field(default_factory=dict)

    def copy(self) -> "RowState":
        """An independent copy."""
        return RowState(self.rows_R.copy(), self.live_R.copy(), self.changes_R.copy(), list(self.stamps), dict(self.positions))


class VersionRows:
    """Rows of `keys` in one version. `places`: index of each key; `now`: the rows at the position that `at` was last given."""

    def __init__(self, store: IndexStore, manifest: Manifest, keys: Iterable[bytes]) -> None:
        self.layout: RowLayout = manifest.layout
        self.places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        self._sealed = self._load(store, manifest)
        self._sealed_offsets = {seal.shard: dict(seal.source_offsets) for seal in manifest.seals}
        self.now = self._sealed.copy()
        self._deltas: dict[int, list[DeltaAt]] = {}
        self._next: dict[int, int] = {}

    def read_deltas(self, bootstrap: Bootstrap, prefix: str, version: int, ends: Mapping[int, int]) -> None:
        """Reads the version's delta records up to `ends` (offset per shard). Raises Incompatible (`offset_gone`) if the log lost them."""
        starts = self._sealed.positions
        self._deltas = {shard: [] for shard in starts}
        wanted = {shard: max(end, starts[shard]) for shard, end in ends.items()}
        reached = dict(self._sealed_offsets)
        for record in read_topic(bootstrap, INDEX_DELTAS, start=starts, end=wanted, prefix=prefix):
            delta = find_delta({version: self.layout}, record.partition, record.value or b"")
            if delta is None or delta.header.version != version:
                continue
            shard, offsets = record.partition, dict(zip(SHARD_TOPICS, delta.header.next_offsets, strict=True))
            kept = [change for change in delta.changes if change[0] in self.places]
            if kept:
                self._deltas[shard].append(DeltaAt(record.offset, kept, reached[shard][ITEM_FEATURES]))
            if all(offset >= reached[shard][topic] for topic, offset in offsets.items()):
                reached[shard] = offsets
        self._next = dict.fromkeys(starts, 0)

    def at(self, positions: Mapping[int, int]) -> None:
        """Moves `now` to the state after all delta records before `positions` (next offset per shard)."""
        if any(position < self.now.positions[shard] for shard, position in positions.items()):
            self.now, self._next = self._sealed.copy(), dict.fromkeys(self._sealed.positions, 0)
        for shard, position in positions.items():
            deltas, at = self._deltas.get(shard, []), self._next.get(shard, 0)
            while at < len(deltas) and deltas[at].offset < position:
                self._apply(deltas[at])
                at += 1
            self._next[shard] = at
            self.now.positions[shard] = max(position, self.now.positions[shard])

    def _load(self, store: IndexStore, manifest: Manifest) -> RowState:
        count = len(self.places)
        state = RowState(np.zeros(count, self.layout.dtype), np.zeros(count, bool), np.zeros(count, np.int64), [None] * count)
        for seal in manifest.seals:
            increments = read_incremental_part(store, seal.incremental)
            for block in merge_parts(self.layout, read_full_part(store, seal.full, self.layout), increments):
                found = [(self.places[key], i) for i, key in enumerate(block.keys) if key in self.places]
                if found:
                    places, taken = (list(side) for side in zip(*found, strict=True))
                    state.rows_R[places], state.live_R[places] = block.rows[taken], True
                    for place, stamp in zip(places, block.stamps[taken].tolist(), strict=True):
                        state.stamps[place] = stamp
            state.positions[seal.shard] = seal.delta_position
        return state

    def _apply(self, delta: DeltaAt) -> None:
        state = self.now
        for key, value in delta.changes:
            place = self.places[key]
            stamp, row = decode_increment(self.layout, value)
            incoming, current = stamp.item(), state.stamps[place]
            if not is_taken(incoming, current, delta.covered):
                continue
            state.stamps[place], state.live_R[place] = incoming, row is not None
            state.changes_R[place] += 1
            if row is not None:
                state.rows_R[place] = row


def positions_of(watermark: Sequence[Mapping[str, int]]) -> dict[int, int]:
    """Next offset in index-deltas per shard. Raises Corrupted (`no_delta_position`) if a shard's watermark has none."""
    try:
        return {shard: offsets[INDEX_DELTAS] for shard, offsets in enumerate(watermark)}
    except KeyError as error:
        raise Corrupted("no_delta_position", f"the answer's watermark has no {INDEX_DELTAS} position: {list(watermark)[:2]}") from error
