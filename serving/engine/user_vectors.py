"""The user's vectors in call 1: the profile (Eq. 1), the rows U and the bridge vectors V of Algorithm 1.

Here: `UserVectors`, and the compiled pass that makes V. Not here: what reads the history (history_pass.py, attention.py), the specification
(schemas/model/user_half.py, schemas/model/bea.py).
The arrays are tiny and the pass is plain: what a request pays for is the code that it touches. After a ranking all of it has left the caches, and twenty
steps of NumPy took 0.13 ms where the pass takes 0.05.

Arrays: D width, P bridge width, N bridges, G rows of U, F the profile's features side by side.
"""

from typing import NamedTuple

import numpy as np

from schemas.model.compiled import kernel, part
from serving.engine.user_weights import UserWeights
from serving.engine.work import UserWork

_NORM_EPSILON = np.float32(1e-5)  # torch's LayerNorm


class BridgeWeights(NamedTuple):
    """Algorithm 1. rows_FD: the features' own weights under each other, cut at cuts_G; bridges_ND already divided by sqrt(D); layers_L4 int64 = (place of the
    weight [in, out] and of the bias in `rest`, in, out) of each layer of f; skip_DP has no rows where nothing projects."""

    cuts_G: np.ndarray
    rows_FD: np.ndarray
    identity_GD: np.ndarray
    key_DD: np.ndarray
    key_D: np.ndarray
    norm_D: np.ndarray
    norm_bias_D: np.ndarray
    bridges_ND: np.ndarray
    layers_L4: np.ndarray
    rest: np.ndarray
    skip_DP: np.ndarray


class UserVectors:
    """Makes the vectors with the weights of one version, which are transposed once."""

    def __init__(self, weights: UserWeights) -> None:
        p, self._features, self._spec = weights.parameters, weights.profile_features, weights.spec
        self._w_profile, self._b_profile = p["user_half.w_profile.weight"].T.copy(), p["user_half.w_profile.bias"]
        self._bridges = _bridge_weights(weights)
        self._widest = max(self._spec.width, int(self._bridges.layers_L4[:, 2:].max(initial=0)))

    def embed_profile(self, work: UserWork) -> tuple[np.ndarray, np.ndarray]:
        """(features_F: the profile's features side by side, profile_D of Eq. 1)."""
        features_F = self._features.embed_one(work.profile)
        return features_F, features_F @ self._w_profile + self._b_profile

    def bridge_vectors(self, features_F: np.ndarray, attended_2D: np.ndarray) -> np.ndarray:
        """V [N, P], Algorithm 1, lines 1 and 2. attended_2D may have columns beyond D."""
        weights = self._bridges
        (bridges, width), rows = weights.bridges_ND.shape, len(weights.identity_GD)
        vectors_NP = np.empty((bridges, int(weights.layers_L4[-1, 3]) if len(weights.layers_L4) else width), np.float32)
        make_bridges(features_F, attended_2D, weights, np.empty((2 * rows + 3, max(self._widest, rows)), np.float32), vectors_NP)
        return vectors_NP


def _bridge_weights(weights: UserWeights) -> BridgeWeights:
    p, spec = weights.parameters, weights.spec
    rows = [p[f"user_half.rows.{i}.weight"].T for i in range(len(weights.profile_features.widths))]
    layers, pieces, at, skip = list[tuple[int, int, int, int]](), [np.zeros(0, np.float32)], 0, p.find("bea.skip.weight")
    for weight, bias in p.mlp("bea.f"):
        layers.append((at, at + weight.size, weight.shape[1], weight.shape[0]))
        pieces += [weight.T.ravel(), bias]
        at += weight.size + bias.size
    return BridgeWeights(
        cuts_G=np.array([0, *np.cumsum(weights.profile_features.widths).tolist()], np.int64),
        rows_FD=np.concatenate([np.zeros((0, spec.width), np.float32), *rows]),
        identity_GD=p["user_half.row_identity_GD"].copy(),
        key_DD=p["bea.user_key.weight"].T.copy(),
        key_D=p["bea.user_key.bias"].copy(),
        norm_D=p["bea.user_norm.weight"].copy(),
        norm_bias_D=p["bea.user_norm.bias"].copy(),
        bridges_ND=np.ascontiguousarray(p["bea.bridges_ND"] / np.float32(spec.width**0.5)),
        layers_L4=np.array(layers, np.int64).reshape(-1, 4),
        rest=np.concatenate(pieces),
        skip_DP=np.zeros((0, 0), np.float32) if skip is None else skip.T.copy(),
    )


@part
def _make_rows(features_F: np.ndarray, attended_2D: np.ndarray, weights: BridgeWeights, work: np.ndarray) -> None:
    """U, in the first rows of `work`: identity plus what each feature, or a vector of attention, says."""
    identity_GD = weights.identity_GD
    rows, width = identity_GD.shape
    for g in range(rows):
        for d in range(width):
            work[g, d] = identity_GD[g, d]
        if g < weights.cuts_G.shape[0] - 1:
            for f in range(weights.cuts_G[g], weights.cuts_G[g + 1]):
                for d in range(width):
                    work[g, d] += features_F[f] * weights.rows_FD[f, d]
    for i in range(2):
        for d in range(width):
            work[rows - 2 + i, d] += attended_2D[i, d]


@part
def _make_keys(weights: BridgeWeights, work: np.ndarray) -> None:
    """LayerNorm of U W + b, in the rows of `work` behind U."""
    rows, width = weights.identity_GD.shape
    for g in range(rows):
        key = rows + g
        for d in range(width):
            work[key, d] = weights.key_D[d]
        for e in range(width):
            for d in range(width):
                work[key, d] += work[g, e] * weights.key_DD[e, d]
        mean, variance = np.float32(0), np.float32(0)
        for d in range(width):
            mean += work[key, d] / np.float32(width)
        for d in range(width):
            work[key, d] -= mean
            variance += work[key, d] * work[key, d] / np.float32(width)
        scale = np.float32(1) / np.sqrt(variance + _NORM_EPSILON)
        for d in range(width):
            work[key, d] = work[key, d] * scale * weights.norm_D[d] + weights.norm_bias_D[d]


@part
def _pool(n: int, weights: BridgeWeights, work: np.ndarray, scores: int, pooled: int) -> None:
    """work[pooled] = U weighted by the softmax of bridge `n` over the keys; work[scores] is scratch."""
    rows, width = weights.identity_GD.shape
    highest, total = np.float32(-np.inf), np.float32(0)
    for g in range(rows):
        score = np.float32(0)
        for d in range(width):
            score += weights.bridges_ND[n, d] * work[rows + g, d]
        work[scores, g] = score
        highest = max(highest, score)
    for g in range(rows):
        work[scores, g] = np.exp(work[scores, g] - highest)
        total += work[scores, g]
    for d in range(width):
        work[pooled, d] = np.float32(0)
    for g in range(rows):
        for d in range(width):
            work[pooled, d] += work[scores, g] / total * work[g, d]


@kernel
def make_bridges(features_F: np.ndarray, attended_2D: np.ndarray, weights: BridgeWeights, work: np.ndarray, vectors_NP: np.ndarray) -> None:
    """vectors_NP = V. `work`: scratch of 2 G + 3 rows as wide as the widest layer, and as G."""
    rows, width = weights.identity_GD.shape
    pooled, here, there = 2 * rows, 2 * rows + 1, 2 * rows + 2
    _make_rows(features_F, attended_2D, weights, work)
    _make_keys(weights, work)
    for n in range(weights.bridges_ND.shape[0]):
        _pool(n, weights, work, here, pooled)
        for d in range(width):
            work[here, d] = work[pooled, d]
        for layer in range(weights.layers_L4.shape[0]):
            weight, bias, depth, wide = weights.layers_L4[layer]
            for o in range(wide):
                work[there, o] = weights.rest[bias + o]
            for i in range(depth):
                value = work[here, i] if layer == 0 else max(work[here, i], np.float32(0))
                for o in range(wide):
                    work[there, o] += value * weights.rest[weight + i * wide + o]
            here, there = there, here
        for o in range(vectors_NP.shape[1]):
            vectors_NP[n, o] = work[here, o]
            if weights.skip_DP.shape[0] == 0:
                vectors_NP[n, o] += work[pooled, o]
        for d in range(weights.skip_DP.shape[0]):
            for o in range(vectors_NP.shape[1]):
                vectors_NP[n, o] += work[pooled, d] * weights.skip_DP[d, o]
