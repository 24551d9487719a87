"""Call 1 after the history: attention over the latest behaviours (Eq. 2 among themselves, Eq. 3 by the profile), and the bridge vectors of Algorithm 1.

Scores and weights of BLOCK rows at a time stay in the cache; products use the tiles of call 2. The last layer of Eq. 2's network is linear and is followed
by a mean, so it is applied once, to the mean.

Cost: 0.15 ms for 256 behaviours of the default model.

Arrays: A behaviours, B of a block, D width (padded), H widths of hidden layers; P bridge width, N bridges, G rows of U, F the profile's features side by
side.
"""

from typing import NamedTuple

import numpy as np

from schemas.kernels.compiled import kernel, subkernel
from schemas.kernels.float32_code import LANES, soften_row
from schemas.kernels.products import BLOCK, multiply, pack_panels, padded, run_layers
from schemas.kernels.vector_blocks import address, aligned
from serving.engine.call_one.user_weights import UserWeights
from serving.engine.work import UserWork


class Attended(NamedTuple):
    """One user's latest behaviours as panels, and memory to work in.

    - keys, values: panels of columns [D, A] and of rows [A, D]
    - weights_BA, totals_B: weights of a block and their sums
    - first_BH, second_BH: outputs of a block's layers, in turn; mean_H: the mean of the last
    """

    keys: np.ndarray
    values: np.ndarray
    weights_BA: np.ndarray
    totals_B: np.ndarray
    first_BH: np.ndarray
    second_BH: np.ndarray
    mean_H: np.ndarray
    zeros: np.ndarray


def lay_out_attended(weights: UserWeights, rows_AD: np.ndarray) -> Attended:
    """What `attend` works on; rows_AD are padded to whole vectors."""
    columns, width = padded(len(rows_AD)), weights.width_padded
    widest = max([width, *weights.ffn[0][:, 3].tolist()])
    return Attended(
        keys=pack_panels(rows_AD[:, : weights.spec.width].T),
        values=pack_panels(rows_AD),
        weights_BA=aligned((BLOCK, columns)),
        totals_B=np.zeros(BLOCK, np.float32),
        first_BH=aligned((BLOCK, widest)),
        second_BH=aligned((BLOCK, widest)),
        mean_H=np.zeros(widest, np.float32),
        zeros=aligned((max(columns, widest),)),
    )


@subkernel
def _attend_block(rows: int, queries: int, query_stride: int, width: int, length: int, padded_width: int, scratch: Attended) -> None:
    """scratch.first_BH = softmax(queries behaviours^T / sqrt(D)) behaviours of a block of queries at an address."""
    zeros, none, columns = address(scratch.zeros), np.float32(-np.inf), scratch.weights_BA.shape[1]
    stride = 4 * columns
    weights, values = address(scratch.weights_BA), address(scratch.values)
    multiply(rows, queries, query_stride, address(scratch.keys), width, columns, zeros, 0, weights, stride, none)
    scale = np.float32(1.0 / np.sqrt(width))
    for i in range(rows):
        for j in range(length, columns):
            scratch.weights_BA[i, j] = none
        scratch.totals_B[i] = soften_row(address(scratch.weights_BA) + i * stride, columns // LANES, scale)
    first, first_stride = address(scratch.first_BH), 4 * scratch.first_BH.shape[1]
    multiply(rows, weights, stride, values, length, padded_width, zeros, 0, first, first_stride, none)
    for i in range(rows):
        for d in range(padded_width):
            scratch.first_BH[i, d] /= scratch.totals_B[i]


@kernel
def attend(
    rows_AD: np.ndarray,
    profile_D: np.ndarray,
    width: int,
    layers: np.ndarray,
    rest: np.ndarray,
    scratch: Attended,
    out_2D: np.ndarray,
) -> None:
    """out_2D [2, D] = (Eq. 2, Eq. 3) of A >= 1 projected behaviours, in memory for whole tiles of rows; profile_D is padded as they are. `layers` and
    `rest` are Eq. 2's network, `scratch` what `lay_out_attended` made of these rows."""
    length, padded_width = rows_AD.shape
    stride, none = 4 * padded_width, np.float32(-np.inf)
    last, mean_H = layers.shape[0] - 1, scratch.mean_H
    depth, stride_H = layers[last, 2], 4 * scratch.second_BH.shape[1]
    for start in range(0, length, BLOCK):
        rows = min(BLOCK, length - start)
        _attend_block(rows, address(rows_AD) + start * stride, stride, width, length, padded_width, scratch)
        run_layers(layers, rest, last, rows, scratch.first_BH, scratch.second_BH)
        hidden_BH = scratch.second_BH if last % 2 else scratch.first_BH
        for i in range(rows):
            for h in range(depth):
                mean_H[h] += hidden_BH[i, h]
            for d in range(padded_width):
                out_2D[0, d] += rows_AD[start + i, d]
    for h in range(depth):
        scratch.second_BH[0, h] = mean_H[h] / length
    panels, bias = address(rest) + 4 * layers[last, 0], address(rest) + 4 * layers[last, 1]
    multiply(1, address(scratch.second_BH), stride_H, panels, depth, layers[last, 3], bias, 0, address(scratch.first_BH), stride_H, none)
    for d in range(padded_width):
        out_2D[0, d] = out_2D[0, d] / length + scratch.first_BH[0, d]
        scratch.second_BH[0, d] = profile_D[d]
    _attend_block(1, address(scratch.second_BH), stride_H, width, length, padded_width, scratch)
    for d in range(padded_width):
        out_2D[1, d] = scratch.first_BH[0, d]


_NORM_EPSILON = np.float32(1e-5)  # torch's LayerNorm


class UserVectors:
    """Makes the vectors with the weights of one version, which are transposed once."""

    def __init__(self, weights: UserWeights) -> None:
        p, self._features = weights.parameters, weights.profile_features
        self._w_profile, self._b_profile = p["user_half.w_profile.weight"].T.copy(), p["user_half.w_profile.bias"]
        self._rows = [p[f"user_half.rows.{i}.weight"].T.copy() for i in range(len(self._features.widths))]
        self._cuts = [0, *np.cumsum(self._features.widths).tolist()]
        self._identity_GD = p["user_half.row_identity_GD"]
        self._w_key, self._b_key = p["bea.user_key.weight"].T.copy(), p["bea.user_key.bias"]
        self._norm, self._norm_bias = p["bea.user_norm.weight"], p["bea.user_norm.bias"]
        self._bridges_ND = p["bea.bridges_ND"] / np.float32(weights.spec.width**0.5)
        self._f = [(weight.T.copy(), bias) for weight, bias in p.mlp("bea.f")]
        skip = p.find("bea.skip.weight")
        self._skip_DP = None if skip is None else skip.T.copy()

    def embed_profile(self, work: UserWork) -> tuple[np.ndarray, np.ndarray]:
        """(features_F: the profile's features side by side, profile_D of Eq. 1)."""
        features_F = self._features.embed_one(work.profile)
        return features_F, features_F @ self._w_profile + self._b_profile

    def bridge_vectors(self, features_F: np.ndarray, attended_2D: np.ndarray) -> np.ndarray:
        """V [N, P], Algorithm 1, lines 1 and 2."""
        rows_GD = self._identity_GD.copy()
        for g, w_row in enumerate(self._rows):
            rows_GD[g] += features_F[self._cuts[g] : self._cuts[g + 1]] @ w_row
        rows_GD[-2:] += attended_2D
        scores_NG = self._bridges_ND @ self._normalise(rows_GD @ self._w_key + self._b_key).T
        weights_NG = np.exp(scores_NG - scores_NG.max(axis=1, keepdims=True))
        pooled_ND = (weights_NG @ rows_GD) / weights_NG.sum(axis=1, keepdims=True)
        hidden = pooled_ND
        for layer, (weight, bias) in enumerate(self._f):
            hidden = (np.maximum(hidden, 0) if layer else hidden) @ weight + bias
        return np.asarray(hidden + (pooled_ND if self._skip_DP is None else pooled_ND @ self._skip_DP))

    def _normalise(self, x_GD: np.ndarray) -> np.ndarray:
        """LayerNorm."""
        centred_GD = x_GD - x_GD.mean(axis=1, keepdims=True)
        variance_G1 = np.square(centred_GD).mean(axis=1, keepdims=True)
        return np.asarray(centred_GD / np.sqrt(variance_G1 + _NORM_EPSILON) * self._norm + self._norm_bias)
