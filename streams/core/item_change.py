"""What one micro-batch does to one item: its components before and after, and every step between (protocol A3, A9).

Here: the updates of one item in one batch, folded in order, and what they make stale for a model. Not here: the fold rule (item_state.py), the dependency
table (stale.py), rows (streams/shard/rows.py).
Invariant: `stale` and `is_tombstone` look at every step, never only at the first and last state (stale.py says why).
"""

from collections.abc import Mapping
from typing import Any

from streams.core.item_state import (
    EmbeddingUpdate,
    FeaturesUpdate,
    StoredEmbedding,
    StoredFeatures,
    fold_embedding,
    fold_features,
    unpack_features,
)
from streams.core.stale import EVERYTHING, NOTHING, Dependencies


class ItemChange:
    """One item in one micro-batch. `before_*` as stored, `features` and `embedding` as they are after the updates taken so far. `embedding_values`: float32
    bytes of the last embedding that the batch brought, None if it brought none."""

    __slots__ = (
        "_decoded",
        "_embedding_changed",
        "_steps",
        "before_embedding",
        "before_features",
        "embedding",
        "embedding_values",
        "features",
        "key",
    )

    def __init__(self, key: bytes, features: StoredFeatures | None, embedding: StoredEmbedding | None) -> None:
        self.key = key
        self.before_features = self.features = features
        self.before_embedding = self.embedding = embedding
        self.embedding_values: bytes | None = None
        self._steps: list[tuple[StoredFeatures | None, StoredFeatures]] = []
        self._decoded: dict[bytes, Mapping[str, Any]] = {}  # by stored bytes
        self._embedding_changed = False

    def take(self, update: FeaturesUpdate | EmbeddingUpdate) -> bool:
        """Folds an update in. False: it is superseded and changed nothing."""
        if isinstance(update, FeaturesUpdate):
            features = fold_features(self.features, update)
            if features is None:
                return False
            self._steps.append((self.features, features))
            self.features = features
            self._decoded[update.raw] = update.features
            return True
        embedding = fold_embedding(self.embedding, update)
        if embedding is None:
            return False
        self._embedding_changed |= self.embedding is None or self.embedding.hash != embedding.hash
        self.embedding, self.embedding_values = embedding, update.values
        return True

    @property
    def is_changed(self) -> bool:
        """Whether its stored value changed, if only by the order of an update that said nothing new."""
        return self.features is not self.before_features or self.embedding is not self.before_embedding

    @property
    def is_live(self) -> bool:
        """Whether the item has a row: live features. An embedding alone is only stored."""
        return self.features is not None and not self.features.dead

    @property
    def is_tombstone(self) -> bool:
        """Whether the batch must report to readers that the item is gone. Also when only the embedding of a dead item changed: a reader that saw that
        embedding with a live row, from an earlier life of this shard, refuses a tombstone whose embedding order is older."""
        if self.features is None or not self.features.dead:
            return False
        return self._embedding_changed or any(before is None or before.dead != after.dead for before, after in self._steps)

    def values(self) -> Mapping[str, Any]:
        """The features of a live item by name."""
        assert self.features is not None
        return self._decode(self.features.raw)

    def stale(self, dependencies: Dependencies) -> int:
        """Which parts of a live item's row the batch made stale: flags of stale.py."""
        stale = dependencies.by_embedding if self._embedding_changed else NOTHING
        for before, after in self._steps:
            if before is None or before.dead != after.dead:
                return EVERYTHING
            if before.raw != after.raw:
                stale |= dependencies.by_features(self._decode(before.raw), self._decode(after.raw))
        return stale

    def _decode(self, raw: bytes) -> Mapping[str, Any]:
        """Decodes each state once, whatever the number of versions."""
        decoded = self._decoded.get(raw)
        if decoded is None:
            decoded = self._decoded[raw] = unpack_features(raw)
        return decoded
