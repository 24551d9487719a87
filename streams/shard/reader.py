"""Reads the checkpoint of a shard: items in key order, increments of a version, offsets and counts, all of one moment.

Here: `ShardReader`. Not here: who takes the checkpoint (streams/builders/running_jobs.py). Two reads of a live shard disagree; a seal or
a build therefore reads only from a checkpoint (protocol B8). The directory must be private and writable (infra/rocks.py says why).
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from infra.closeable import Closeable
from infra.joined import join_some, join_stored
from infra.rocks import Database, open_read_only
from infra.rocks_scan import Scan
from schemas.errors import Corrupted
from schemas.index.item_sample import SampledItem
from schemas.limits import BUILD_ROWS_AT_ONCE
from streams.core.item_state import decode_embedding_component, decode_features_component
from streams.core.shard_state import ShardState, ShardVersion, decode_shard_state, decode_shard_version
from streams.shard.fold import EMBEDDINGS, FEATURES
from streams.shard.shard import INCREMENTS, META, STATE_KEY, VERSION_PREFIX, increment_prefix
from streams.stored.item_block import ItemBlock, cut_item_block, find_live

_key, _value = itemgetter(0), itemgetter(1)


class ShardReader(Closeable):
    """A read-only view of one moment of a shard. It has to be closed before the directory is removed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        raw = database.get(META, STATE_KEY)
        self.state = ShardState() if raw is None else decode_shard_state(raw)

    @property
    def next_offsets(self) -> dict[str, int]:
        """Next offset of each source topic at the checkpoint."""
        return dict(self.state.next_offsets)

    @property
    def versions(self) -> dict[int, ShardVersion]:
        """The shard's versions at the checkpoint."""
        entries = self._database.scan(META, VERSION_PREFIX, VERSION_PREFIX + b"\xff")
        return {v.version: v for v in (decode_shard_version(raw) for _, raw in entries)}

    def scan_blocks(self, start_key: bytes = b"", rows: int = BUILD_ROWS_AT_ONCE) -> Iterator[ItemBlock]:
        """Live items from `start_key` on, in key order, in blocks of at most `rows`."""
        embeddings = _Embeddings(self._database.scan(EMBEDDINGS, start_key), rows)
        scan = self._database.scan(FEATURES, start_key)
        while page := scan.take(rows):
            keys, features = list(map(_key, page)), join_stored(list(map(_value, page)))
            if len(live := find_live(features)) < len(keys):
                keys, features = [keys[place] for place in live.tolist()], features.take(live)
            if keys:
                yield cut_item_block(keys, features, join_some(embeddings.take(keys)))

    def find_inputs(self, keys: Sequence[bytes]) -> list[SampledItem]:
        """The inputs of these items, without those that are not there or deleted."""
        features = self._database.multi_get(FEATURES, keys)
        embeddings = self._database.multi_get(EMBEDDINGS, keys)
        found = []
        for key, raw, raw_embedding in zip(keys, features, embeddings, strict=True):
            component = None if raw is None else decode_features_component(raw)
            if component is not None and not component.dead:
                embedding = None if raw_embedding is None else decode_embedding_component(raw_embedding).values
                found.append(SampledItem(key, component.raw, embedding))
        return found

    def scan_increments(self, version: int) -> Iterator[tuple[bytes, bytes]]:
        """(index key, increment value) of a version in key order, tombstones included."""
        prefix = increment_prefix(version)
        for key, value in self._database.scan(INCREMENTS, prefix, increment_prefix(version + 1)):
            yield key[len(prefix) :], value

    def close(self) -> None:
        """Frees the directory."""
        self._database.close()


class _Embeddings:
    """The embeddings of ascending runs of keys, out of a scan. What is held is bounded, whatever lies between two keys."""

    def __init__(self, scan: Scan, page_rows: int) -> None:
        self._scan, self._page_rows = scan, page_rows
        self._held: dict[bytes, bytes] = {}
        self._last, self._ended = b"", False

    def take(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One for each key, None where there is none. The next call's keys come after these."""
        while not self._ended and self._last < keys[-1]:
            wanted = self._page_rows if self._held else len(keys)
            page = self._scan.take(wanted)
            if not self._held and list(map(_key, page)) == keys:  # as it is where every item has one: nothing to look up
                self._last = keys[-1]
                return list(map(_value, page))
            self._ended = len(page) < wanted
            self._held.update(page)
            self._last = page[-1][0] if page else self._last
            if len(self._held) > 4 * self._page_rows:
                asked = set(keys)
                self._held = {k: v for k, v in self._held.items() if k in asked or k > keys[-1]}
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
