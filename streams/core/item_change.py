"""One item in one micro-batch: its components before and after, every step between, and the parts of its row that became stale (protocol A3, A9).

    an input of the item half changed                  vector and bridge weights (and with them the row)
    the multimodal embedding changed                   the signature; vector and bridge too where the schema lists it as an input
    bid, SIM category, realtime, or anything else      the row, rewritten without the network (its input hash is of all bytes)
    nothing changed (an identical re-sent event)       nothing

Values are compared as they are stored, because 1, 1.0 and true are equal in Python and hash into different buckets.
Invariant: the stale parts are the union over all steps of a batch, never the difference between its first and last state. A step that is undone within the
batch may have reached readers before a crash, after which the same records came in another batch. So the row must be sent again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.features import FeatureSchema
from streams.core.item_state import (
    EmbeddingUpdate,
    FeaturesUpdate,
    StoredEmbedding,
    StoredFeatures,
    StoredItem,
    fold_embedding,
    fold_features,
    pack_features,
    unpack_features,
)

# Flags of parts of a row, as plain integers: the operators of an enum cost more than everything else here. VECTOR stands for vector and bridge weights, which
# are made together.
NOTHING, ROW, SIGNATURE, VECTOR = 0, 1, 2, 4
EVERYTHING = ROW | SIGNATURE | VECTOR


@dataclass(frozen=True)
class Dependencies:
    """The dependency table of one model: which features its item half reads, and the flags of what an embedding touches."""

    inputs: tuple[str, ...]
    by_embedding: int

    def by_features(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """The flags of what a change from `before` to `after` makes stale; the two are known to differ somewhere. A missing value and null are the same."""
        changed = pack_features(list(map(before.get, self.inputs))) != pack_features(list(map(after.get, self.inputs)))
        return ROW | VECTOR if changed else ROW


def dependencies_of(schema: FeatureSchema) -> Dependencies:
    """The table of a model with this schema. The multimodal embedding is a component of its own, never a feature."""
    by_embedding = ROW
    if schema.multimodal is not None:
        by_embedding |= SIGNATURE
        if schema.multimodal_is_input:
            by_embedding |= VECTOR
    return Dependencies(tuple(f.name for f in schema.item_half_inputs if f.name != schema.multimodal), by_embedding)


_Values = Mapping[str, Any] | None  # features by name; None: those before the batch, not yet decoded


class ItemChange:
    """One item in one micro-batch.

    before               as stored
    features, embedding  after the updates taken so far
    embedding_values     float32 bytes of the last embedding that the batch brought, or None
    """

    __slots__ = ("_embedding_changed", "_steps", "_values", "before", "embedding", "embedding_values", "features", "key")

    def __init__(self, key: bytes, before: StoredItem) -> None:
        self.key, self.before = key, before
        self.features: StoredFeatures | None = before.features
        self.embedding: StoredEmbedding | None = before.embedding
        self.embedding_values: bytes | None = None
        self._values: _Values = None
        self._steps: list[tuple[StoredFeatures | None, _Values, StoredFeatures, Mapping[str, Any]]] = []
        self._embedding_changed = False

    def take(self, update: FeaturesUpdate | EmbeddingUpdate) -> bool:
        """Folds an update in. False: it is superseded and changed nothing."""
        if isinstance(update, FeaturesUpdate):
            features = fold_features(self.features, update)
            if features is None:
                return False
            values = unpack_features(features.raw) if features.statistics else update.features
            self._steps.append((self.features, self._values, features, values))
            self.features, self._values = features, values
            return True
        embedding = fold_embedding(self.embedding, update)
        if embedding is None:
            return False
        self._embedding_changed |= self.embedding is None or self.embedding.hash != embedding.hash
        self.embedding, self.embedding_values = embedding, update.values
        return True

    @property
    def is_changed(self) -> bool:
        """Whether its stored value changed, if only by the stamp of an update that said nothing new."""
        return self.features is not self.before.features or self.embedding is not self.before.embedding

    @property
    def is_live(self) -> bool:
        """Whether the item has a row: live features. An embedding alone is only stored."""
        return self.features is not None and not self.features.dead

    @property
    def is_tombstone(self) -> bool:
        """Whether the batch must report to readers that the item is gone. Also when only the embedding of a dead item changed: a reader may have seen
        that embedding with a live row, from an earlier life of this shard. It would refuse a tombstone whose embedding stamp is older."""
        if self.features is None or not self.features.dead:
            return False
        return self._embedding_changed or any(before is None or before.dead != after.dead for before, _, after, _ in self._steps)

    def values(self) -> Mapping[str, Any]:
        """The features of a live item by name."""
        return self.before.decoded() if self._values is None else self._values

    def stale(self, dependencies: Dependencies) -> int:
        """Which parts of a live item's row the batch made stale: the flags above."""
        stale = dependencies.by_embedding if self._embedding_changed else NOTHING
        for before, before_values, after, after_values in self._steps:
            if before is None or before.dead != after.dead:
                return EVERYTHING
            if before.raw != after.raw:
                stale |= dependencies.by_features(self.before.decoded() if before_values is None else before_values, after_values)
        return stale
