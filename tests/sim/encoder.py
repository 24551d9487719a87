"""A model whose rows are hashes of exactly the inputs that a network would read: cheap, and another input gives another row.

Here: the schema of the simulated catalogue and `SimEncoder`. Rows are remembered across histories, because few inputs are used again and again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

import numpy as np

from schemas.errors import Corrupted
from schemas.features import Feature, FeatureSchema, Scope, encode_realtime
from schemas.index.layout import RowLayout, row_layout
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.spec import ModelSpec

FINGERPRINT, UPGRADED = "sim", "sim-upgraded"  # of encoders whose rows differ in their last bits
SCHEMA = FeatureSchema(
    features=(
        Feature("brand", Scope.ITEM, CATEGORICAL, buckets=64),
        Feature("price", Scope.ITEM, NUMERIC, default=1.0),
        Feature("stock", Scope.ITEM, NUMERIC, realtime=True),
        Feature("mm", Scope.ITEM, EMBEDDING, width=2),
    ),
    sim_category="brand",
    bid="price",
    multimodal="mm",
    multimodal_is_input=False,
)
SCHEMA_FINGERPRINT = SCHEMA.fingerprint
SPEC = ModelSpec(schema=SCHEMA, width=4, bridges=2, hash_bits=16)
LAYOUT = row_layout(SPEC)
_NETWORK = ("vector", "bridge")
_SIGNATURE = ("signature", "has_signature")
_INPUTS = tuple(f.name for f in SCHEMA.item_half_inputs if f.name != "mm")


class SimEncoder:
    """Has the interface of streams/encoder.py `RowEncoder`."""

    spec, model_id, lsh_version = SPEC, "sim", "sim-lsh"

    def __init__(self, version: int, checkpoint_sha256: str, fingerprint: str) -> None:
        self.version, self.checkpoint_sha256, self.fingerprint = version, checkpoint_sha256, fingerprint
        self._rows: dict[tuple[str, bytes], bytes] = {}

    @property
    def layout(self) -> RowLayout:
        return LAYOUT

    def encode(self, raw_features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None]) -> np.ndarray:
        rows = [self.row(raw, e or b"") for raw, e in zip(raw_features, embeddings, strict=True)]
        return np.frombuffer(b"".join(rows), LAYOUT.dtype)

    def rewrite(
        self,
        old_rows: np.ndarray,
        raw_features: Sequence[Mapping[str, Any]],
        embeddings: Sequence[bytes | None],
        signature_stale: np.ndarray,
    ) -> np.ndarray:
        rows = self.encode(raw_features, embeddings).copy()
        for name in _NETWORK:
            rows[name] = old_rows[name]
        for name in _SIGNATURE:
            rows[name][~signature_stale] = old_rows[name][~signature_stale]
        return rows

    def row(self, raw: Mapping[str, Any], embedding: bytes) -> bytes:
        """The bytes of one row."""
        key = repr(raw), embedding
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = self._make_row(raw, embedding)
        return known

    def _make_row(self, raw: Mapping[str, Any], embedding: bytes) -> bytes:
        row = np.zeros((), LAYOUT.dtype)
        row["vector"] = _noise((self.version, self.fingerprint, [raw.get(name) for name in _INPUTS]), SPEC.width)
        row["bridge"] = row["vector"][: SPEC.bridges]
        row["has_signature"] = bool(embedding)
        row["signature"] = np.packbits(_noise(embedding, 16) > 0) if embedding else 0
        row["category"], row["bid"] = SCHEMA.category_of(raw), SCHEMA.bid_of(raw)
        row["realtime"] = encode_realtime(SCHEMA, raw)[0]
        return row.tobytes()


def _noise(inputs: object, width: int) -> np.ndarray:
    digest = hashlib.blake2b(repr(inputs).encode(), digest_size=2 * width).digest()
    return np.frombuffer(digest, "<i2").astype(np.float16)


@cache
def encoder_of(version: int, checkpoint_sha256: str, fingerprint: str = FINGERPRINT) -> SimEncoder:
    """The encoder of a version's checkpoint in a process with this encoder fingerprint."""
    return SimEncoder(version, checkpoint_sha256, fingerprint)


class SimEncoders:
    """streams/encoder_protocol.py `Encoders` for one process. It keeps every checkpoint that it has read; `lost`: sha256 of the checkpoints that are damaged
    now."""

    def __init__(self, fingerprint: str, lost: AbstractSet[str] = frozenset()) -> None:
        self.fingerprint, self._lost = fingerprint, lost
        self._read = set[str]()

    def get(self, version: int, checkpoint_sha256: str) -> SimEncoder:
        if checkpoint_sha256 in self._lost and checkpoint_sha256 not in self._read:
            raise Corrupted("checkpoint_damaged", f"the checkpoint of version {version}")
        self._read.add(checkpoint_sha256)
        return encoder_of(version, checkpoint_sha256, self.fingerprint)
