"""The user half's weights, which are the same for all users, in the forms that the compiled passes and the small products read.

Here: `UserWeights`, made once per version. Not here: what is computed with them (history_pass.py, attention.py, user_vectors.py), the fold through the
head (folded_user.py).

Arrays: X inputs of a behaviour's projection, E embedding width, D width, Dp the same padded to a vector.
"""

from typing import NamedTuple

import numpy as np

from schemas.features import Scope
from schemas.kernels.float32_code import LANES
from schemas.kernels.products import pack_panels, pad_columns, padded
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import encode_recency
from schemas.model.parameters import Parameters
from serving.engine.call_one.embedded_features import EmbeddedFeatures
from serving.engine.call_two.version_weights import pack_layers


class HistoryWeights(NamedTuple):
    """Eq. 1, second line, in two parts. `kinds`, `categories` [rows, Dp]: their tables already multiplied by W_seq (one row of zeros if there is none).
    `w_seq`: panels [X, Dp] for item id [E] (table `items`, empty if there is none), own features and recency [F] and vector [D], side by side. The table of
    item ids is not multiplied in advance, because it may be as large as the catalogue."""

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
