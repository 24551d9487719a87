"""The user half's weights, and features of one scope as one vector, in the forms that the passes and the small products of call 1 read.

Arrays: R rows, B bags, V values of a bag, E embedding width, X inputs of a behaviour's projection, D width, Dp the same padded to a vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from schemas.features import Feature, FeatureBlock, Scope, by_layout, encode_features
from schemas.kernels.float32_code import LANES
from schemas.kernels.products import pack_layers, pack_panels, pad_columns, padded
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import encode_recency
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features
from schemas.model.parameters import Parameters


class EmbeddedFeatures:
    """The features of one scope and their table; None if no feature is looked up."""

    def __init__(self, features: Sequence[Feature], embedding_width: int, table: np.ndarray | None) -> None:
        places = plan_features(features, embedding_width)
        self.features, self.widths, self.width, self._table = tuple(features), places.widths, places.width, table
        self._categorical_starts = np.array(places.categorical_starts, np.int64)
        self._bag_starts = np.array(places.bag_starts, np.int64)[:, None]
        self._embedding_width = embedding_width
        of = by_layout(features)
        self._only_single = all(feature.layout.is_single for feature in features)
        self._categorical = list(zip(of.buckets, places.categorical_starts, strict=True))
        self._numeric = of.numbers

    def embed_one(self, record: Mapping[str, Any]) -> np.ndarray:
        """float32 [width]: `embed` of one record, the same bits. After a ranking `embed` takes 0.12 ms for a record, this 0.04."""
        if not self._only_single:
            return self.embed(encode_features(self.features, [record]))[0]
        out_W, at, width, table = np.zeros(self.width, np.float32), 0, self._embedding_width, self._table
        for feature, start in self._categorical:
            if table is not None:
                out_W[at : at + width] = table[start + int(feature.encode_one(record.get(feature.name)))]
                at += width
        for feature in self._numeric:
            out_W[at] = feature.encode_one(record.get(feature.name))  # which clips to +-VALUE_ABS_MAX
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


class HistoryWeights(NamedTuple):
    """Eq. 1, second line, in two parts.

        kinds, categories   [rows, Dp]: their tables, already multiplied by W_seq; one row of zeros in a model without them
        items               the table of item ids [rows, E], empty in a model without it
        w_seq               panels [X, Dp] for item id [E], own features and recency [F], and vector [D], side by side

    The table of item ids is not multiplied in advance, because it may be as large as the catalogue.
    """

    kinds: np.ndarray
    categories: np.ndarray
    items: np.ndarray
    w_seq: np.ndarray
    inputs: int
    width: int


class UserWeights:
    """The user half of one version. `ffn` = (layers, their array) of Eq. 2's network; recency_LS and gate_L are of the longest history, of
    which a shorter one has the end; empty in a model that does not read recency."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.spec = parameters, parameters.spec
        width = self.spec.embedding_width
        of, find = self.spec.schema.of, parameters.find
        self.behaviour_features = EmbeddedFeatures(of(Scope.BEHAVIOUR), width, find("behaviour.features.table"))
        self.profile_features = EmbeddedFeatures(of(Scope.USER), width, find("user_half.features.table"))
        self.context_features = EmbeddedFeatures(of(Scope.CONTEXT), width, find("head.context.table"))
        self.recency_LS, self.gate_L = self._recency()
        self.history = self._history()
        self.ffn = pack_layers(parameters.mlp("user_half.attention.ffn"))
        self.width_padded = padded(self.spec.width)
        self.categories = len(self.history.categories) if self.spec.schema.sim_category else 0

    def _recency(self) -> tuple[np.ndarray, np.ndarray]:
        gate_S = self.parameters.find("behaviour.recency_gate_S")
        recency_LS = encode_recency(self.spec, 0 if gate_S is None else BEHAVIOURS_PER_USER_MAX)
        return recency_LS, np.zeros(0, np.float32) if gate_S is None else np.exp(recency_LS @ gate_S)

    def _history(self) -> HistoryWeights:
        """W_seq cut into the parts that its columns belong to, in the order of `BehaviourProjection`."""
        spec, names = self.spec, ("kinds", "items", "categories")
        tables = {name: self.parameters.find(f"behaviour.{name}.weight") for name in names}
        w_XD, at, cut = self.parameters["behaviour.w_seq.weight"].T, 0, dict[str, np.ndarray]()
        for name in names:
            width = 0 if tables[name] is None else spec.embedding_width
            cut[name], at = w_XD[at : at + width], at + width
        own_FD, vector_DD = w_XD[at : -spec.width], w_XD[-spec.width :]
        if not self.behaviour_features.features:
            own_FD = own_FD[:0]  # its one column of zeros is left out

        def through(name: str) -> np.ndarray:
            table = tables[name]
            return pad_columns(np.zeros((1, spec.width), np.float32) if table is None else table @ cut[name], LANES)

        items = np.zeros((0, 0), np.float32) if tables["items"] is None else np.ascontiguousarray(tables["items"])
        recency_SD = self.parameters["behaviour.w_recency_SD"] if spec.recency else own_FD[:0]
        w_inputs = np.concatenate([cut["items"], own_FD, recency_SD, vector_DD])
        return HistoryWeights(through("kinds"), through("categories"), items, pack_panels(w_inputs), len(w_inputs), spec.width)
