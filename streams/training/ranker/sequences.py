"""Requests as the ranker reads them: [profile, behaviours, context | candidates], joined as of the request.

Not here: the network (schemas/model/ranker), steps (fit.py). The window of the history is the one that serving reads (`window_start`). Every cut of it into
a prefix and a suffix has the same logits, so none is drawn in training.

Arrays: B requests, C candidates, L behaviours, n tokens before the candidates, R item rows, T tasks.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from schemas.model.ranker.layers import Kv
from schemas.model.ranker.ranker import Ranker
from schemas.model.ranker.spec import encode_items, window_start
from streams.training.impressions import Batch, TrainingSet
from streams.training.item_table import NOT_AN_ITEM


class RankerRows:
    """The requests of a training set. REQUIRES: its spec has a ranker."""

    def __init__(self, data: TrainingSet) -> None:
        assert data.spec.ranker is not None
        self.data, self.spec = data, data.spec.ranker

    @cached_property
    def row_tokens(self) -> np.ndarray:
        """The row of the ranker's item table of each item row, int64 [R]."""
        items = self.data.items
        return np.repeat(encode_items(self.spec, list(items.index)), items.end_I - items.begin_I)

    def logits(
        self, ranker: Ranker, requests: np.ndarray, batch: Batch, aif_BCT: Tensor, store: Callable[[Kv], Kv] = lambda kv: kv
    ) -> Tensor:
        """Logits [B, C, T] of these requests, with gradient. `batch` has their profiles, contexts and candidates; `aif_BCT` are AIF's logits.
        `store`: what becomes of keys and values before candidates read them."""
        histories, end_B = self.data.histories, self.data.history_end_Q[requests]
        length_B = end_B - histories.begin_U[self.data.user_Q[requests]]
        read_B = length_B - np.array([window_start(self.spec, n) for n in length_B.tolist()])
        place_BL = (end_B - read_B)[:, None] + np.arange(max(1, read_B.max()))
        place_BL = torch.from_numpy(np.minimum(place_BL, end_B[:, None] - 1).clip(0))
        behaviours_BLD = ranker.behaviour_tokens(histories.token_H[place_BL], histories.kind_H[place_BL])
        # Left-aligned, the context after the last behaviour of each: no earlier token sees the places behind, and their values are zeros.
        context_B1D, after_B = ranker.context_token(batch.context), torch.from_numpy(read_B) + 2
        before_BnD = torch.cat([ranker.profile_token(batch.users.profile), behaviours_BLD, context_B1D], 1)
        before_BnD = before_BnD.index_put((torch.arange(len(requests)), after_B - 1), context_B1D[:, 0])
        whole = store(ranker.extend(before_BnD))
        seen_Bn = torch.arange(before_BnD.shape[1]) < after_B[:, None]
        rows_BC = batch.rows_BC.numpy()
        items_BC = torch.from_numpy(np.where(rows_BC == NOT_AN_ITEM, 0, self.row_tokens[rows_BC]))
        past = Kv(whole.keys, whole.values * seen_Bn[:, None, :, None])
        return ranker.score(ranker.candidate_tokens(items_BC, aif_BCT), aif_BCT, past, after_B)
