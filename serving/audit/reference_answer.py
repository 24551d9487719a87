"""Call 2 computed slowly: the head in its plain form, in fp64 and NumPy, from the arrays of a user's state and the rows.

Nothing is prepared ahead, counted by bits or shared with the engine's passes. It is schemas/model/head.py line by line, and a test compares the two; but
without torch, which a server on a CPU never loads.

Arrays: C candidates, D width, K bits, S for SimTier, G categories, Q real-time columns, T tasks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from schemas.features import Scope, encode_features
from schemas.kinds import Layout
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features
from schemas.model.lsh import equal_bits_min
from schemas.model.parameters import Parameters
from schemas.model.score import rank_scores

_PAIRS_MAX = 2_000_000  # behaviours x candidates of one block


def score_plainly(
    parameters: Parameters, state: Mapping[str, np.ndarray], rows_C: np.ndarray, context: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """(scores float64 [C], probabilities float64 [C, T]) of stored rows [C]. `state`: arrays of one user, by the names of `UserStates`."""
    block = max(1, _PAIRS_MAX // max(1, state["simtier_BSW"].shape[1]))
    spec, plain = parameters.spec, _Plain(parameters, state)
    user_U = np.concatenate([plain.user["user_BU"], plain.context(context)])
    logits = [plain.logits(user_U, rows_C[at : at + block]) for at in range(0, len(rows_C), block)]
    probabilities_CT = 1 / (1 + np.exp(-np.concatenate([np.zeros((0, len(spec.tasks))), *logits])))
    return rank_scores(spec.rank_terms, spec.tasks, probabilities_CT, rows_C["bid"].astype(float)), probabilities_CT


class _Plain:
    """One user's state before the head."""

    def __init__(self, parameters: Parameters, state: Mapping[str, np.ndarray]) -> None:
        self._p, self.spec, self.user = parameters, parameters.spec, {name: array[0] for name, array in state.items()}

    def context(self, context: Mapping[str, Any]) -> np.ndarray:
        """The request's context features, embedded: categorical, bags (the mean of their values), numbers, embeddings."""
        features, width, table = self.spec.schema.of(Scope.CONTEXT), self.spec.embedding_width, self._p.find("head.context.table")
        places, block, parts = plan_features(features, width), encode_features(features, [context]), list[np.ndarray]()
        if table is not None:
            parts += [table[start + bucket] for start, bucket in zip(places.categorical_starts, block.categorical_RC[0], strict=True)]
            bags = [start + bag_V[bag_V > 0] for start, bag_V in zip(places.bag_starts, block.bags_RBV[0], strict=True)]
            parts += [table[rows].mean(axis=0) if len(rows) else np.zeros(width) for rows in bags]
        numbers = np.concatenate([block.numeric_RN[0], block.embeddings_RE[0]]).clip(-VALUE_ABS_MAX, VALUE_ABS_MAX)
        return np.concatenate([*parts, numbers]) if features else np.zeros(1)

    def logits(self, user_U: np.ndarray, rows_C: np.ndarray) -> np.ndarray:
        """Logits [C, T]: the segments side by side, through one layer after the other."""
        item_CX = self._segments(rows_C)
        x = np.concatenate([np.broadcast_to(user_U, (len(rows_C), len(user_U))), item_CX], axis=1)
        for layer, (weight, bias) in enumerate([(self._p["head.first.weight"], self._p["head.first.bias"]), *self._p.mlp("head.rest.1")]):
            x = (np.maximum(x, 0) if layer else x) @ weight.T.astype(float) + bias
        return x

    def _segments(self, rows_C: np.ndarray) -> np.ndarray:
        user, count = self.user, len(rows_C)
        items_CD = rows_C["vector"].reshape(count, -1).astype(float)
        bea_CP = rows_C["bridge"].reshape(count, -1).astype(float) @ user["bridges_BNP"]
        user_x = _times(self._project("user", user["user_BU"]), items_CD)
        parts = [items_CD, user_x, bea_CP, _times(self._project("bea", bea_CP), items_CD)]
        if self.spec.schema.multimodal:
            parts += self._similarity(rows_C, items_CD)
        if self.spec.schema.sim_category:
            means_CD, log_counts_C = self._sub_sequences(rows_C["category"].astype(np.int64))
            parts += [means_CD, log_counts_C[:, None], _times(self._project("sim", means_CD), items_CD)]
        return np.concatenate([*parts, self._realtime(rows_C)], axis=1)

    def _project(self, name: str, vectors: np.ndarray) -> np.ndarray:
        return vectors.astype(float) @ self._p[f"head.project_{name}.weight"].T

    def _similarity(self, rows_C: np.ndarray, items_CD: np.ndarray) -> list[np.ndarray]:
        """DIN (Eq. 8), its product, tiers (Eq. 9); zeros without a signature."""
        user, bits, has_C1 = self.user, self.spec.hash_bits, (rows_C["has_signature"] != 0)[:, None]
        signs_CK = _signs(rows_C["signature"].reshape(len(rows_C), -1)) * has_C1
        if self.spec.din == "raw":
            din_CD = signs_CK @ (user["din.cross_BKD"].astype(float) / (2 * bits)) + user["din.sum_BD"].astype(float) / 2
        else:
            din_CD = signs_CK @ (user["din.cross_BKD"].astype(float) / (bits * max(float(user["din.count_B"]), 1.0)))
        din_CD = din_CD * has_C1 * self._p["head.din_gain"].astype(float)
        return [din_CD, _times(self._project("din", din_CD), items_CD), self._tiers(signs_CK) * has_C1]

    def _tiers(self, signs_CK: np.ndarray) -> np.ndarray:
        sequence_SK = _signs(self.user["simtier_BSW"][self.user["simtier_mask_BS"]])
        equal_CS = (signs_CK @ sequence_SK.T + signs_CK.shape[1]) / 2
        minima = equal_bits_min(self.spec.tier_edges, signs_CK.shape[1])
        reached = [
            np.full(len(signs_CK), len(sequence_SK)),
            *((equal_CS >= least).sum(axis=1) for least in minima),
            np.zeros(len(signs_CK)),
        ]
        counts_CN = -np.diff(np.stack(reached, axis=1).astype(float), axis=1)
        return np.concatenate([np.log1p(counts_CN), counts_CN / max(1, len(sequence_SK))], axis=1)

    def _sub_sequences(self, category_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(means, log counts) of the candidates' categories; zeros for a category that the user does not have."""
        categories_G, means_GD, log_counts_G = (self.user[f"sim.{name}"] for name in ("categories_BG", "means_BGD", "log_counts_BG"))
        entry_C = np.minimum(np.searchsorted(categories_G, category_C), len(categories_G) - 1)
        found_C = (categories_G[entry_C] == category_C) & (category_C > 0)
        return means_GD[entry_C] * found_C[:, None].astype(float), log_counts_G[entry_C] * found_C.astype(float)

    def _realtime(self, rows_C: np.ndarray) -> np.ndarray:
        features, table, start, tables = self.spec.schema.realtime_features, self._p.find("head.realtime.table"), 0, list[np.ndarray]()
        if not features:
            return np.zeros((len(rows_C), 0))
        columns_CQ = rows_C["realtime"].reshape(len(rows_C), -1).astype(float)
        numeric = [q for q, feature in enumerate(features) if feature.layout is Layout.NUMBER]
        for q, feature in enumerate(features):
            if feature.layout is Layout.BUCKET and table is not None:
                tables.append(table[columns_CQ[:, q].astype(np.int64) + start])
                start += feature.buckets
        return np.concatenate([columns_CQ[:, numeric].clip(-VALUE_ABS_MAX, VALUE_ABS_MAX), *tables], axis=1)


def _times(projected: np.ndarray, items_CD: np.ndarray) -> np.ndarray:
    """A product segment: [C, D + 1] = projected * I, and its sum over sqrt(D)."""
    product_CD = projected * items_CD
    return np.concatenate([product_CD, product_CD.sum(axis=1, keepdims=True) / items_CD.shape[1] ** 0.5], axis=1)


def _signs(signatures_RW: np.ndarray) -> np.ndarray:
    """Bits as -1 and +1, most significant first."""
    return np.unpackbits(signatures_RW, axis=1).astype(float) * 2 - 1
