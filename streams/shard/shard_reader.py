"""Reads the checkpoint of a shard: items in key order, increments of a version, offsets and counts, all of one moment.

Two reads of a live shard disagree; a seal or a build therefore reads only from a checkpoint (protocol B8). The directory must be private and writable
(infra/rocks.py says why).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.closeable import Closeable
from infra.rocks import Database, open_read_only
from schemas.errors import Corrupted
from schemas.index.item_sample import SampledItem
from schemas.index.layout import STAMP
from schemas.limits import BUILD_ROWS_AT_ONCE
from streams.core.ascending import AscendingLookup
from streams.core.item import StoredEmbedding, StoredFeatures, decode_item, encode_stamp, unpack_features
from streams.core.shard_state import ShardState, ShardVersion, decode_shard_state, decode_shard_version
from streams.shard.directory import EMBEDDINGS, INCREMENTS, ITEMS, META, STATE_KEY, VERSION_PREFIX, embedding_missing, increment_prefix

Live = tuple[bytes, StoredFeatures, StoredEmbedding | None]  # a live item: index key, components


@dataclass(frozen=True, slots=True)
class ItemBlock:
    """R live items in key order: index keys, stamps_R (STAMP [R]), features by name, and embeddings (float32 bytes, None without one)."""

    keys: list[bytes]
    stamps_R: np.ndarray
    features: list[dict[str, Any]]
    embeddings: list[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Sequence[int]) -> "ItemBlock":
        """The items at some places, ascending."""
        some = [[column[place] for place in places] for column in (self.keys, self.features, self.embeddings)]
        return ItemBlock(some[0], self.stamps_R[places], some[1], some[2])  # type: ignore[arg-type]


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
        embeddings = AscendingLookup(self._database.scan(EMBEDDINGS, start_key).take, rows)
        scan = self._database.scan(ITEMS, start_key)
        while page := scan.take(rows):
            live: list[Live] = []
            for key, value in page:
                item = decode_item(value)
                if item.features is not None and not item.features.dead:
                    live.append((key, item.features, item.embedding))
            if live:
                keys = [key for key, *_ in live]
                stamps = b"".join([encode_stamp(features, embedding) for _, features, embedding in live])
                yield ItemBlock(
                    keys, np.frombuffer(stamps, STAMP), [unpack_features(f.raw) for _, f, _ in live], self._embeddings_of(live, embeddings)
                )

    @staticmethod
    def _embeddings_of(live: Sequence[Live], embeddings: AscendingLookup[bytes]) -> list[bytes | None]:
        """The embeddings of items in key order. Raises Corrupted (`embedding_missing`)."""
        found = embeddings.take([key for key, *_ in live])
        for (key, _, embedding), values in zip(live, found, strict=True):
            if values is None and embedding is not None:
                raise embedding_missing(key)
        return found

    def find_inputs(self, keys: Sequence[bytes]) -> list[SampledItem]:
        """The inputs of these items, without those that are not there or deleted."""
        found = []
        values = zip(self._database.multi_get(ITEMS, keys), self._database.multi_get(EMBEDDINGS, keys), strict=True)
        for key, (item, embedding) in zip(keys, values, strict=True):
            features = None if item is None else decode_item(item).features
            if features is not None and not features.dead:
                found.append(SampledItem(key, features.raw, embedding))
        return found

    def scan_increments(self, version: int) -> Iterator[tuple[bytes, bytes]]:
        """(index key, increment value) of a version in key order, tombstones included."""
        prefix = increment_prefix(version)
        for key, value in self._database.scan(INCREMENTS, prefix, increment_prefix(version + 1)):
            yield key[len(prefix) :], value

    def close(self) -> None:
        """Frees the directory."""
        self._database.close()


def open_shard_reader(checkpoint_dir: Path) -> ShardReader:
    """Opens a checkpoint of a shard. Raises Corrupted (`not_a_shard`)."""
    database = open_read_only(checkpoint_dir)
    missing = {ITEMS, EMBEDDINGS, INCREMENTS, META} - set(database.column_families)
    if missing:
        database.close()
        raise Corrupted("not_a_shard", f"{checkpoint_dir} has no column families {sorted(missing)}: it is no checkpoint of a shard")
    return ShardReader(database)
