"""The rows of a replay, kept in its directory for `aif index diff`: an index store with full parts and one manifest.

Not here: comparing (infra/index/diff.py), adoption (adopt.py).
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.index.diff import REPLAYED_REVISION, REPLAYED_ROWS
from infra.index.parts import write_full_part
from infra.index.store import open_index_store
from schemas.index.layout import RowBlock
from schemas.index.manifest import Manifest, Part, Seal, encode_manifest, manifest_path
from streams.encoder import RowEncoder
from streams.replay.replay import Replayed


class KeptRows:
    """Takes the rows of each shard; `finish` writes the manifest. What an earlier attempt kept is replaced."""

    def __init__(self, directory: Path, encoder: RowEncoder) -> None:
        shutil.rmtree(directory / REPLAYED_ROWS, ignore_errors=True)
        self._store, self._encoder = open_index_store(str(directory / REPLAYED_ROWS)), encoder
        self._parts: dict[int, Part] = {}

    def keep(self, shard: int, blocks: Iterator[RowBlock], _: Mapping[str, int]) -> None:
        """Writes a shard's rows."""
        self._parts[shard] = write_full_part(self._store, REPLAYED_REVISION[0], shard, blocks, self._encoder.layout)

    def finish(self, replayed: Replayed, now_ms: int) -> None:
        """Writes the manifest, when all shards are there."""
        encoder, nothing = self._encoder, Part("", (), 0)
        seals = tuple(
            Seal(s.shard, self._parts[s.shard], nothing, 0, s.source_offsets, s.rows, s.digest, s.data_digest, encoder.fingerprint)
            for s in replayed.shards
        )
        feature_schema = encoder.spec.schema.fingerprint
        manifest = Manifest(
            *REPLAYED_REVISION,
            encoder.model_id,
            encoder.checkpoint_sha256,
            feature_schema,
            encoder.lsh_version,
            encoder.fingerprint,
            encoder.layout,
            seals,
            now_ms,
        )
        self._store.put_bytes(manifest_path(*REPLAYED_REVISION), encode_manifest(manifest))
