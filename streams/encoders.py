"""Encoders of versions, loaded when the first version needs one.

Here: the interfaces, and the form that loads on first use. Not here: rows (encoder.py).
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from infra.index.store import IndexStore
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


class LazyEncoders:
    """Loads the kernels at the first question, or in a thread of its own from `preload` on. Thread-safe."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._loaded: Encoders | None = None

    def preload(self) -> threading.Thread:
        """Starts loading, so that the first version does not wait for it."""
        thread = threading.Thread(target=self._load, name="load-kernels", daemon=True)
        thread.start()
        return thread

    @property
    def fingerprint(self) -> str:
        """The encoder fingerprint of this process."""
        return self._load().fingerprint

    def get(self, version: int, checkpoint_sha256: str) -> Encoder:
        """See streams/encoder.py `EncoderCache.get`."""
        loaded = self._load()
        with self._lock:
            return loaded.get(version, checkpoint_sha256)

    def _load(self) -> Encoders:
        with self._lock:
            if self._loaded is None:
                from streams.encoder import EncoderCache

                self._loaded = EncoderCache(self._store)
            return self._loaded
