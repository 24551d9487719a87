"""What the encoder of a version is to those who call it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from schemas.index.layout import RowLayout
from schemas.model.spec import ModelSpec


class Encoder(Protocol):
    """What a shard, a builder and a replay need of the encoder of a version (streams/encoder.py `RowEncoder`). An embedding is float32 bytes, or None."""

    version: int
    spec: ModelSpec
    layout: RowLayout
    model_id: str
    lsh_version: str
    checkpoint_sha256: str
    fingerprint: str

    def encode(self, features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None]) -> np.ndarray:
        """Rows [R] of the layout's dtype, every column computed."""

    def rewrite(
        self, old_rows: np.ndarray, features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None], signature_stale: np.ndarray
    ) -> np.ndarray:
        """Rows [R] with the old vector and bridge weights, the rest computed again. Signatures, and so embeddings, only where `signature_stale` (bool [R])."""


class Encoders(Protocol):
    """Encoders by version, and the fingerprint of this process."""

    @property
    def fingerprint(self) -> str: ...
    def get(self, version: int, checkpoint_sha256: str) -> Encoder: ...
