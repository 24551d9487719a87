"""The user's vectors in call 1, in NumPy because they are tiny: the profile (Eq. 1), the rows U and the bridge vectors V of Algorithm 1.

Here: `UserVectors`. Not here: what reads the history (history_pass.py, attention.py), the specification (schemas/model/user_half.py, schemas/model/bea.py).

Arrays: D width, P bridge width, N bridges, G rows of U, F the profile's features side by side.
"""

import numpy as np

from serving.engine.call_one.user_weights import UserWeights
from serving.engine.work import UserWork

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
