"""The CPU scorer: complete, in fp32, and the reference for other devices. Needs no torch.

Arrays: C candidates, T tasks, D width, N bridges, H first hidden width, K bits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from schemas.model.parameters import Parameters
from schemas.model.score import rank_scores
from serving.engine.call_one.call_one import CallOne
from serving.engine.call_one.user_state import EngineUserState, HeadTables
from serving.engine.call_two.joint_pass import RequestUser, Scratch, build_sign_table, open_scratch, score_part
from serving.engine.call_two.version_weights import read_version_weights
from serving.engine.devices.workers import WORKERS
from serving.engine.tables.tables import Applied, Tables
from serving.engine.work import UserState, UserWork

_NO_SIGNS = np.zeros((0, 0), np.float32)
SHARE_MIN = 1024  # scratch memory is made for at least this many candidates


class CpuScorer:
    """One version's model on its tables. `score` is called by one thread, and helpers compute shares of it; `user_state` may be called by any thread."""

    tiers_by, device_error = "compiled", ""

    def __init__(self, parameters: Parameters, version: int, tables: Tables) -> None:
        self.parameters, self.spec, self._bids_R = parameters, parameters.spec, tables.columns["bid"]
        self.weights, self.call_one = read_version_weights(parameters), CallOne(parameters, version, tables)
        self._words = -(-self.spec.signature_bytes // 8)
        self._scratch: list[Scratch] = []

    def user_state(self, work: UserWork) -> UserState:
        """Call 1."""
        return self.call_one.user_state(work)

    def on_applied(self, applied: Applied) -> None:
        """The columns are the arena's own memory: nothing to copy."""

    def score(self, state: UserState, row_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T]) of live rows."""
        assert isinstance(state, EngineUserState)
        tables, columns, weights = self.call_one.tables_of(state), self.call_one.columns, self.weights
        user = self._request_user(tables, context, bool(state.arrays.din_count > 0))

        def compute(share: slice, scratch: Scratch, logits_CT: np.ndarray) -> None:
            score_part(columns, weights, user, row_C[share], scratch, logits_CT)

        return self.score_in_shares(row_C, tables.categories_G, compute)

    def score_in_shares(
        self, row_C: np.ndarray, categories_G: np.ndarray, compute: Callable[[slice, Scratch, np.ndarray], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The result of `score`, from compute(share, scratch, logits_CT): it fills in the logits of one share of the candidates, on any of the threads.

        categories_G: the user's; they are rows 1, 2, ... of the user's tables.
        """
        logits_CT = np.empty((len(row_C), len(self.spec.tasks)), np.float32)
        self._open_scratch(len(row_C))
        entries, known_G = self.weights.entry_of_category, categories_G < len(self.weights.entry_of_category)  # the last one may be padding
        entries[categories_G[known_G]] = np.flatnonzero(known_G) + 1
        try:
            WORKERS.run(lambda first, end, thread: compute(slice(first, end), self._scratch[thread], logits_CT[first:end]), len(row_C))
        finally:  # or the next user's candidates would be looked up in tables that are not theirs
            entries[categories_G[known_G]] = 0
        probabilities_CT = sigmoid(logits_CT)
        return rank_scores(self.spec.rank_terms, self.spec.tasks, probabilities_CT, self._bids_R[row_C]), probabilities_CT

    def _request_user(self, tables: HeadTables, context: Mapping[str, Any], reads_long: bool) -> RequestUser:
        """The user's tables, together with this request's context."""
        context_H, behaviours = self.call_one.context(context), tables.behaviours
        return RequestUser(
            tables.base_GH,
            context_H,
            tables.user_panels,
            tables.bea_panels,
            tables.sim_GD,
            build_sign_table(tables.signs_KF if reads_long else _NO_SIGNS),
            tables.sign_start_F,
            behaviours.planes_ZQBL,
            behaviours.valid_ZL,
            behaviours.shift_ZL,
            np.log1p(np.arange(behaviours.length + 1, dtype=np.float32)),
            behaviours.length,
            reads_long,
        )

    def _open_scratch(self, candidates: int) -> None:
        """Scratch for each thread that may take a share of `candidates`."""
        if not self._scratch or len(self._scratch[0].words_CQ) < candidates:
            size = max(SHARE_MIN, candidates)
            self._scratch = [open_scratch(self.weights, self.spec.width, self._words, size) for _ in range(WORKERS.threads)]


def sigmoid(logits_CT: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without an overflow: beyond +-88 it is 0 or 1 in float32 anyway."""
    return 1 / (1 + np.exp(-np.clip(logits_CT, -88, 88)))
