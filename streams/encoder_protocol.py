"""What the encoder of a version is to those who call it. Here: the interfaces. Not here: rows (encoder.py)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from schemas.index.layout import RowLayout
from schemas.model.spec import ModelSpec


class Encoder(Protocol):
    """What a shard, a builder and a replay need of the encoder of a version (streams/encoder.py `RowEncoder`)."""

    version: int
    spec: ModelSpec
    layout: RowLayout
    model_id: str
    lsh_version: str
    checkpoint_sha256: str
    fingerprint: str

    def encode(self, raw_features: Sequence[Mapping[str, Any]], embeddings: Sequence[np.ndarray | None]) -> np.ndarray:
        """Rows [R] of the layout's dtype, every column computed."""
        ...

    def rewrite(
        self,
        old_rows: np.ndarray,
        raw_features: Sequence[Mapping[str, Any]],
        embeddings: Sequence[np.ndarray | None],
        signature_stale: np.ndarray,
    ) -> np.ndarray:
        """Rows [R] with the old vector and bridge weights, the rest computed anew; signatures only where `signature_stale`."""
        ...


class Encoders(Protocol):
    """Encoders by version, and the fingerprint of this process."""

    @property
    def fingerprint(self) -> str: ...
    def get(self, version: int, checkpoint_sha256: str) -> Encoder: ...
