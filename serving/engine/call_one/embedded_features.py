"""The features of one scope as one vector, in NumPy, for call 1 and the request's context: torch would cost too much per call on tiny tensors.

Not here: the same in torch, which is the specification (schemas/model/embeddings.py), places in table and vector (schemas/model/feature_places.py).

Arrays: R rows, B bags, V values of a bag, E width of one embedding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.features import Feature, FeatureBlock, Kind, encode_features
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features


class EmbeddedFeatures:
    """The features of one scope and their table; None if no feature is looked up."""

    def __init__(self, features: Sequence[Feature], embedding_width: int, table: np.ndarray | None) -> None:
        places = plan_features(features, embedding_width)
        self.features, self.widths, self.width, self._table = tuple(features), places.widths, places.width, table
        self._categorical_starts = np.array(places.categorical_starts, np.int64)
        self._bag_starts = np.array(places.bag_starts, np.int64)[:, None]
        self._embedding_width = embedding_width
        self._only_plain = all(feature.kind in (Kind.CATEGORICAL, Kind.NUMERIC) for feature in features)
        self._categorical = list(zip([f for f in features if f.kind is Kind.CATEGORICAL], places.categorical_starts, strict=True))
        self._numeric = [f for f in features if f.kind is Kind.NUMERIC]

    def embed_one(self, record: Mapping[str, Any]) -> np.ndarray:
        """float32 [width]: `embed` of one record, the same bits. Arrays of one row cost more than what is in them: 0.12 ms after a ranking, this 0.04."""
        if not self._only_plain:
            return self.embed(encode_features(self.features, [record]))[0]
        out_W, at, width, table = np.zeros(self.width, np.float32), 0, self._embedding_width, self._table
        for feature, start in self._categorical:
            if table is not None:
                out_W[at : at + width] = table[start + feature.bucket(record.get(feature.name))]
                at += width
        for feature in self._numeric:
            out_W[at] = feature.number(record.get(feature.name))  # which cuts at VALUE_ABS_MAX
            at += 1
        return out_W

    def embed(self, block: FeatureBlock) -> np.ndarray:
        """float32 [R, width]."""
        rows, parts = len(block), list[np.ndarray]()
        if self._table is not None and len(self._categorical_starts):
            looked_up_RCE = self._table[block.categorical_RC + self._categorical_starts]
            parts.append(looked_up_RCE.reshape(rows, looked_up_RCE.shape[1] * looked_up_RCE.shape[2]))
        if self._table is not None and len(self._bag_starts):
            parts.append(self._bags(self._table, block.bags_RBV))
        parts += [x.clip(-VALUE_ABS_MAX, VALUE_ABS_MAX) for x in (block.numeric_RN, block.embeddings_RE) if x.shape[1]]
        return np.concatenate(parts, axis=1) if parts else np.zeros((rows, 1), np.float32)

    def _bags(self, table: np.ndarray, bags_RBV: np.ndarray) -> np.ndarray:
        """The mean of each bag over its values; missing values do not count."""
        present_RBV = bags_RBV > 0
        weights_RBV = present_RBV / np.maximum(present_RBV.sum(axis=2, keepdims=True), 1).astype(np.float32)
        pooled_RBE = np.einsum("rbv,rbve->rbe", weights_RBV.astype(np.float32), table[bags_RBV + self._bag_starts])
        return pooled_RBE.reshape(len(bags_RBV), pooled_RBE.shape[1] * pooled_RBE.shape[2])
