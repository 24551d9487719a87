"""Versions of a synthetic catalogue in a real index store, published sequentially, for the benches of loading and flipping.

Versions of one kind share their parts, so a new version is only a manifest and three entries, and a bench can publish one every second.

A score shows the kind of its row, because the bids of the two kinds are far apart. Scores are below 1 in even versions and above 1 in odd ones. With
`two_models` each kind also has a checkpoint of its own: one predicts hardly any clicks, the other nearly always clicks. Rows of one kind under the model of
the other have scores in neither range. An answer that mixed two versions is therefore always recognised.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from infra.index.control_log import ControlLog
from infra.index.parts import write_full_part, write_incremental_part
from infra.index.store import IndexStore
from lab.serving.world import bench_spec, draw_rows
from schemas.ids import encode_index_key, partition_of
from schemas.index.control import Entry, Init
from schemas.index.digest import ShardDigest
from schemas.index.layout import STAMP, RowBlock, row_layout
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import Manifest, Seal, checkpoint_path, encode_manifest, manifest_path
from schemas.model.checkpoint import encode_checkpoint, read_checkpoint
from schemas.model.checkpoint_file import CheckpointInfo
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.topics import SHARD_TOPICS

BIDS = ((0.5, 1.0), (1e6, 2e6))  # of even and of odd versions
_LOGITS = (-8.0, 8.0)  # of the two models, before what a request moves
_RANGES = ((0.0, 1.0), (1.0, 2e6))  # of scores, by the rows alone
_RANGES_OF_MODELS = ((0.0, 0.25), (5e5, 2e6))  # bid x y, where y is below 1/4 or above 1/2: by the rows and the model
Ranges = Sequence[tuple[float, float]]
_BLOCK_ROWS = 256
_FINGERPRINT = "bench"
_SEED = 0


class VersionWriter:
    """Writes versions 0, 1, 2, ... of `items` items into an index store of `shards` shards. `ids` are the items' ids, ascending int64."""

    def __init__(self, store: IndexStore, shards: int, user_partitions: int, items: int, two_models: bool = False) -> None:
        self._store, self._log, self._shards = store, ControlLog(store), shards
        self._rng, self.spec = np.random.default_rng(_SEED), bench_spec()
        self.ranges = _RANGES_OF_MODELS if two_models else _RANGES
        self._checkpoints = [self._put_checkpoint(logit) for logit in (_LOGITS if two_models else (0.0,))]
        self.ids = np.unique(self._rng.integers(0, 1 << 62, items + items // 100 + 16))[:items]  # ascending, as blocks are
        self._rows, self._layout = draw_rows(self.spec, items, self._rng), row_layout(self.spec)
        self._log.append(lambda _: self._entry(EntryKind.INIT, init=Init(shards, user_partitions, self.spec.schema.id_kind, {})))
        self._kinds = [self._write_kind(kind) for kind in range(len(BIDS))]
        self.next_version = 0

    def publish(self) -> int:
        """Publishes and promotes the next version; returns its number."""
        version, info = self.next_version, self._info(self.next_version)
        facts = {"checkpoint_sha256": info.sha256, "model_id": info.model_id, "encoder_fingerprint": _FINGERPRINT}
        identity = (info.model_id, info.sha256, info.schema_fingerprint, info.lsh_version or "", _FINGERPRINT)
        manifest = Manifest(version, 0, *identity, self._layout, self._kinds[version % len(BIDS)], 1)
        raw = encode_manifest(manifest)
        self._log.append(lambda _: self._entry(EntryKind.WANT, version, cause=Cause.CHECKPOINT, **facts))
        self._store.put_exclusive(manifest_path(version, 0), raw)
        self._log.append(lambda _: self._entry(EntryKind.PUBLISH, version, manifest_sha256=hashlib.sha256(raw).hexdigest()))
        self._log.append(lambda _: self._entry(EntryKind.PROMOTE, version))
        self.next_version += 1
        return version

    @contextlib.asynccontextmanager
    async def publishing(self, every_s: float) -> AsyncIterator[None]:
        """While the block runs, a new version is published at its start and every few seconds; at its end the last one is whole. An error of publishing is
        raised then."""
        ended = asyncio.Event()

        async def publish() -> None:
            while not ended.is_set():
                await asyncio.to_thread(self.publish)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), every_s)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            ended.set()
            await task

    def _put_checkpoint(self, logit: float) -> CheckpointInfo:
        torch.manual_seed(_SEED)
        network = AifNetwork(self.spec, make_w_hash(_SEED, self.spec.hash_bits, self.spec.schema.mm_width))
        last = [layer for layer in network.head.modules() if isinstance(layer, torch.nn.Linear)][-1]
        torch.nn.init.constant_(last.bias, logit)
        raw = encode_checkpoint(network, f"bench {logit:+g}", {})
        info = read_checkpoint(raw).info
        self._store.put_bytes(checkpoint_path(info.sha256), raw)
        return info

    def _info(self, version: int) -> CheckpointInfo:
        """The checkpoint of a version, or of a kind of version."""
        return self._checkpoints[version % len(self._checkpoints)]

    def _entry(self, kind: EntryKind, version: int = -1, **fields: Any) -> Entry:
        return Entry(kind, int(time.time() * 1000), "bench", version=version, **fields)

    def _write_kind(self, kind: int) -> tuple[Seal, ...]:
        low, high = BIDS[kind]
        self._rows["bid"] = self._rng.uniform(low, high, len(self.ids))
        keys = [encode_index_key(one) for one in self.ids.tolist()]
        shard_of = np.array([partition_of(one, self._shards) for one in self.ids.tolist()])
        return tuple(self._seal(kind, shard, keys, np.flatnonzero(shard_of == shard)) for shard in range(self._shards))

    def _seal(self, kind: int, shard: int, keys: list[bytes], chosen: np.ndarray) -> Seal:
        digest = ShardDigest(self._layout, self._info(kind).model_id, self._info(kind).lsh_version or "")

        def blocks() -> Iterator[RowBlock]:
            for at in range(0, len(chosen), _BLOCK_ROWS):
                cut = chosen[at : at + _BLOCK_ROWS]
                block = RowBlock([keys[one] for one in cut.tolist()], np.zeros(len(cut), STAMP), self._rows[cut])
                digest.update(block)
                yield block

        full = write_full_part(self._store, kind, shard, blocks(), self._layout)
        incremental = write_incremental_part(self._store, kind, 0, shard, ())
        offsets = dict.fromkeys(SHARD_TOPICS, 0)
        return Seal(shard, full, incremental, 0, offsets, digest.rows, digest.hexdigest, digest.data_hexdigest, _FINGERPRINT)


def belongs(version: int, scores: Iterable[float], ranges: Ranges = _RANGES) -> bool:
    """Whether all scores lie within the range of the version's kind."""
    low, high = ranges[version % len(ranges)]
    return all(low < score <= high for score in scores)
