"""The final order computed again: one pass of the ranker over the whole window, with no prefix, no pages and no pieces.

Not here: AIF's scores (parity.py). The server stores keys and values in fp16, which moves a logit by up to `FINAL_TOLERANCE`.
Arrays: C candidates in AIF's answer, T tasks.
"""

from collections.abc import Sequence

import numpy as np
import torch

from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.behaviour_codes import encode_kind
from schemas.model.inputs import FeatureTensors, encode_context
from schemas.model.network import AifNetwork
from schemas.model.ranker.spec import encode_items
from schemas.requests import PrerankRequest

FINAL_TOLERANCE = 5e-3  # of a logit
LOGIT_MAX = 20.0  # as the server clips AIF's


@torch.inference_mode()
def rank_finally(
    network: AifNetwork, request: PrerankRequest, history: Sequence[Id], start: int, ids: Sequence[Id], aif_CT: np.ndarray
) -> np.ndarray:
    """Final probabilities [C, T] from AIF's. `history`: the items of the request's behaviours; `start`: the first of them that is read."""
    ranker, spec = network.ranker, network.spec
    assert ranker is not None
    read = (request.behaviours or [])[start:]
    block = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [request.features or {}]))
    items = torch.from_numpy(encode_items(ranker.spec, history[start:]))
    kinds = torch.tensor([encode_kind(spec, one.kind) for one in read], dtype=torch.int64)
    tokens = (
        ranker.profile_token(block),
        ranker.behaviour_tokens(items[None], kinds[None]),
        ranker.context_token(encode_context(spec, request.context)),
    )
    before = torch.cat(tokens, 1)
    logits = torch.logit(torch.from_numpy(aif_CT).double()).clamp(-LOGIT_MAX, LOGIT_MAX).float()[None]
    candidates = ranker.candidate_tokens(torch.from_numpy(encode_items(ranker.spec, ids))[None], logits)
    count = before.shape[1]
    seen = torch.ones(1, count, dtype=torch.bool)
    return torch.sigmoid(ranker.full(before, torch.arange(count)[None], seen, candidates, logits))[0].numpy()
