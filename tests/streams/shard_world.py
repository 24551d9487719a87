"""What the shard tests share: records as publishers make them, a small model with a deterministic encoder, a view of everything a shard holds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.kafka.reader import SourceRecord
from schemas.features import Feature, FeatureSchema, Scope, encode_realtime
from schemas.ids import IdKind, encode_index_key, partition_of
from schemas.index.control import Init
from schemas.index.layout import RowLayout, decode_increment, row_layout
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.spec import ModelSpec
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.shard.directory import EMBEDDINGS, INCREMENTS
from streams.shard.directory import ITEMS as ITEMS_FAMILY
from streams.shard.shard import Shard, open_shard

SHARDS = 2
INIT = Init(SHARDS, 2, IdKind.INT64, {ITEM_FEATURES: "t.item-features", NEW_ITEMS: "t.new-items"}, {ITEM_FEATURES: "A", NEW_ITEMS: "B"})
ITEMS = [i for i in range(200) if partition_of(i, SHARDS) == 0]  # ids of shard 0

SCHEMA = FeatureSchema(
    features=(
        Feature("brand", Scope.ITEM, CATEGORICAL, buckets=64),
        Feature("category", Scope.ITEM, CATEGORICAL, buckets=64),
        Feature("price", Scope.ITEM, NUMERIC, default=1.0),
        Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
        Feature("mm", Scope.ITEM, EMBEDDING, width=4),
    ),
    sim_category="category",
    bid="price",
    multimodal="mm",
    multimodal_is_input=False,
)
SPEC = ModelSpec(schema=SCHEMA, width=4, bridges=2, hash_bits=16)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class HashEncoder:
    """Has the interface of streams.encoder.RowEncoder; vectors are hashes of exactly the inputs that a network would read."""

    version: int
    spec: ModelSpec = SPEC
    checkpoint_sha256: str = "0" * 64
    fingerprint: str = "fake"
    encoded: int = 0
    rewritten: int = 0

    @property
    def layout(self) -> RowLayout:
        return row_layout(self.spec)

    def encode(self, raw_features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None]) -> np.ndarray:
        self.encoded += len(raw_features)
        rows = np.zeros(len(raw_features), self.layout.dtype)
        names = [f.name for f in self.spec.schema.item_half_inputs]
        for row, raw, embedding in zip(rows, raw_features, embeddings, strict=True):
            inputs = [raw.get(n) for n in names if n != self.spec.schema.multimodal]
            if self.spec.schema.multimodal_is_input:
                inputs.append(None if embedding is None else np.frombuffer(embedding, "<f4").tolist())
            row["vector"] = _noise(self.version, inputs, self.spec.width)
            row["bridge"] = _noise(-1 - self.version, inputs, self.spec.bridges)
        self._plain(rows, raw_features, embeddings, np.ones(len(rows), bool))
        return rows

    def rewrite(
        self,
        old_rows: np.ndarray,
        raw_features: Sequence[Mapping[str, Any]],
        embeddings: Sequence[bytes | None],
        signature_stale: np.ndarray,
    ) -> np.ndarray:
        self.rewritten += len(raw_features)
        rows = np.array(old_rows)
        self._plain(rows, raw_features, embeddings, signature_stale)
        return rows

    def _plain(
        self, rows: np.ndarray, raw_features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None], stale: np.ndarray
    ) -> None:
        schema = self.spec.schema
        for row, raw, embedding, again in zip(rows, raw_features, embeddings, stale, strict=True):
            if again:
                usable = embedding is not None and len(embedding) == 4 * schema.mm_width
                row["has_signature"] = usable
                row["signature"] = np.packbits(_noise(7, np.frombuffer(embedding, "<f4").tolist(), 16) > 0) if usable else 0
            row["category"], row["bid"] = schema.category_of(raw), schema.bid_of(raw)
            row["realtime"] = encode_realtime(schema, raw)[0]


def _noise(salt: int, inputs: object, width: int) -> np.ndarray:
    digest = hashlib.blake2b(repr((salt, inputs)).encode(), digest_size=2 * width).digest()
    return np.frombuffer(digest, "<i2").astype(np.float16) / 100


def upsert(item: int | str, version: int, **features: Any) -> dict[str, Any]:
    return {"op": "upsert", "item_id": item, "version": version, "features": features}


def delete(item: int | str, version: int) -> dict[str, Any]:
    return {"op": "delete", "item_id": item, "version": version}


def embed(item: int | str, *values: float) -> dict[str, Any]:
    return {"item_id": item, "embedding": list(values)}


def features_record(offset: int, *updates: Any, partition: int = 0) -> SourceRecord:
    value = json.dumps({"schema": 1, "updates": list(updates)}).encode()
    return SourceRecord(ITEM_FEATURES, partition, offset, b"", value, (), 1_000 + offset)


def new_items_record(offset: int, *updates: Any, partition: int = 0) -> SourceRecord:
    value = json.dumps({"schema": 1, "updates": list(updates)}).encode()
    return SourceRecord(NEW_ITEMS, partition, offset, b"", value, (), 2_000 + offset)


def open_test_shard(directory: Path, clock: ManualClock | None = None) -> Shard:
    """Shard 0; encoders of the versions it has are attached."""
    shard = open_shard(directory, 0, INIT, clock or ManualClock())
    for version in shard.needs_encoders():
        shard.attach_encoder(HashEncoder(version.version))
    return shard


def everything(shard: Shard) -> dict[str, Any]:
    """All that must not depend on batches or crashes: components, increments, counters, offsets."""
    held = {family: list(shard.database.scan(family)) for family in (ITEMS_FAMILY, EMBEDDINGS, INCREMENTS)}
    return {**held, "counters": shard.state.counters, "next": shard.next_offsets, "source_ms": shard.state.source_ms}


def rows_of(shard: Shard, version: int) -> dict[bytes, bytes]:
    """Increment values of a version by index key."""
    prefix = version.to_bytes(8, "big")
    return {k[8:]: v for k, v in shard.database.scan(INCREMENTS) if k.startswith(prefix)}


def row_of(shard: Shard, version: int, item: int) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Order and row of an item in the increments of a version, as `decode_increment` gives them; None where it has none."""
    value = rows_of(shard, version).get(encode_index_key(item))
    return None if value is None else decode_increment(HashEncoder(version).layout, value)
