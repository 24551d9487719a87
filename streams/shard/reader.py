"""Reads the checkpoint of a shard: items in key order, increments of a version, offsets and counts, all of one moment.

Here: `ShardReader`. Not here: who takes the checkpoint (streams/builders/running_jobs.py). Two reads of a live shard disagree; a seal or
a build therefore reads only from a checkpoint (protocol B8). The directory must be private and writable (infra/rocks.py says why).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np

from infra.joined import join_some, join_stored
from infra.rocks import Database, open_read_only
from infra.rocks_scan import Scan
from schemas.errors import Corrupted
from schemas.limits import BUILD_ROWS_AT_ONCE
from streams.core.item_state import decode_raw_features, encode_stored_order, is_dead, raw_of, values_of
from streams.core.shard_state import Counters, ShardState, ShardVersion, decode_shard_state, decode_shard_version
from streams.shard.fold import EMBEDDINGS, FEATURES
from streams.shard.shard import INCREMENTS, META, STATE_KEY, VERSION_PREFIX, increment_prefix
from streams.stored.item_block import ItemBlock, cut_item_block, cut_joined_block, has_dead

_PAGE_ROWS = 512
_key, _value = itemgetter(0), itemgetter(1)


@dataclass(slots=True)  # not frozen: one is made for every item of a build, and freezing triples its cost
class StoredItem:
    """A live item: index key, order (the bytes of one ORDER element), and its two components as they are stored."""

    key: bytes
    order: bytes
    features: bytes
    embedding_component: bytes | None

    @property
    def raw_features(self) -> dict[str, Any]:
        """Raw features by name."""
        return decode_raw_features(raw_of(self.features))

    @property
    def embedding(self) -> np.ndarray | None:
        """float32 [mm_width] or None."""
        return None if self.embedding_component is None else np.frombuffer(values_of(self.embedding_component), np.float32)


class ShardReader:
    """A read-only view of one moment of a shard. It has to be closed before the directory is removed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        raw = database.get(META, STATE_KEY)
        self.state = ShardState() if raw is None else decode_shard_state(raw)

    @property
    def next_offsets(self) -> dict[str, int]:
        """Next offset of each source topic at the checkpoint."""
        return dict(self.state.next_offsets)

    def work_of(self, version: int) -> dict[str, int]:
        """Rows computed for a version, and work that was not needed, by cause, since the version began in this shard."""
        return dict(self.state.work.get(str(version), {}))

    @property
    def source_ms(self) -> int:
        """Time of the newest source record, 0 = there is none."""
        return self.state.source_ms

    @property
    def counters(self) -> Counters:
        """Counts of updates per topic at the checkpoint."""
        return self.state.counters

    @property
    def versions(self) -> dict[int, ShardVersion]:
        """The shard's versions at the checkpoint."""
        entries = self._database.scan(META, VERSION_PREFIX, VERSION_PREFIX + b"\xff")
        return {v.version: v for v in (decode_shard_version(raw) for _, raw in entries)}

    def scan_items(self, start_key: bytes = b"") -> Iterator[StoredItem]:
        """Live items from `start_key` on, in key order."""
        embeddings = self._rows(EMBEDDINGS, start_key)
        head = next(embeddings, None)
        for key, features in self._rows(FEATURES, start_key):
            while head is not None and head[0] < key:
                head = next(embeddings, None)
            if not is_dead(features):
                embedding = head[1] if head is not None and head[0] == key else None
                yield StoredItem(key, encode_stored_order(features, embedding), features, embedding)

    def scan_blocks(self, start_key: bytes = b"", rows: int = BUILD_ROWS_AT_ONCE) -> Iterator[ItemBlock]:
        """The same items in blocks of `rows`, fewer only in the last block: what a build reads."""
        embeddings = _Embeddings(self._database.scan(EMBEDDINGS, start_key), rows)
        scan = self._database.scan(FEATURES, start_key)
        keys: list[bytes] = []
        values: list[bytes] = []
        while page := scan.take(rows):
            page_keys, page_values = list(map(_key, page)), list(map(_value, page))
            joined = join_stored(page_values)
            if not keys and not has_dead(joined):
                yield cut_joined_block(page_keys, joined, join_some(embeddings.take(page_keys)))
                continue
            live = [place for place, value in enumerate(page_values) if not is_dead(value)]
            keys += map(page_keys.__getitem__, live)
            values += map(page_values.__getitem__, live)
            if len(keys) >= rows:
                yield cut_item_block(keys[:rows], values[:rows], embeddings.take(keys[:rows]))
                del keys[:rows], values[:rows]
        if keys:
            yield cut_item_block(keys, values, embeddings.take(keys))

    def _rows(self, family: str, start_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """A scan read in pages: half the cost of one row after the other."""
        scan = self._database.scan(family, start_key)
        while page := scan.take(_PAGE_ROWS):
            yield from page

    def scan_increments(self, version: int) -> Iterator[tuple[bytes, bytes]]:
        """(index key, increment value) of a version in key order, tombstones included."""
        prefix = increment_prefix(version)
        for key, value in self._database.scan(INCREMENTS, prefix, increment_prefix(version + 1)):
            yield key[len(prefix) :], value

    def close(self) -> None:
        """Frees the directory."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Embeddings:
    """The embeddings of ascending runs of keys, out of a scan. What is held is bounded, whatever lies between two keys."""

    def __init__(self, scan: Scan, page_rows: int) -> None:
        self._scan, self._page_rows = scan, page_rows
        self._held: dict[bytes, bytes] = {}
        self._last, self._ended = b"", False

    def take(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One for each key, None where there is none. The next call's keys come after these."""
        if not self._held and not self._ended:
            page = self._scan.take(len(keys))
            if list(map(_key, page)) == keys:  # as it is where every item has one: nothing to look up
                self._last = keys[-1]
                return list(map(_value, page))
            self._ended = len(page) < len(keys)
            self._held.update(page)
            self._last = page[-1][0] if page else self._last
        while not self._ended and self._last < keys[-1]:
            page = self._scan.take(self._page_rows)
            self._ended = len(page) < self._page_rows
            self._held.update(page)
            self._last = page[-1][0] if page else self._last
            if len(self._held) > 4 * self._page_rows:
                wanted = set(keys)
                self._held = {k: v for k, v in self._held.items() if k in wanted or k > keys[-1]}
        found = list(map(self._held.get, keys))
        self._held = {k: v for k, v in self._held.items() if k > keys[-1]} if self._last > keys[-1] else {}
        return found


def open_shard_reader(checkpoint_dir: Path) -> ShardReader:
    """Opens a checkpoint of a shard. Raises Corrupted (`not_a_shard`)."""
    database = open_read_only(checkpoint_dir)
    missing = {FEATURES, EMBEDDINGS, INCREMENTS, META} - set(database.column_families)
    if missing:
        database.close()
        raise Corrupted("not_a_shard", f"{checkpoint_dir} has no column families {sorted(missing)}: it is no checkpoint of a shard")
    return ShardReader(database)
