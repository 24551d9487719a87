"""Fits the ranker of a network on the requests that the network has learnt; the network itself stays as it is.

The losses are those of the network: cross-entropy of each task, and COPR where it has a weight. AIF's logits are an input and the base of the ranker's.

Start: an item's token is its multimodal embedding where it has one, and queries are keys, so the first layer starts as a likeness of candidates and
behaviours. From random tokens the same likeness takes most of a fit (docs/EXPERIMENTS.md).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from schemas.errors import Misconfigured
from schemas.model.network import AifNetwork
from schemas.model.ranker.ranker import Ranker
from schemas.train_choices import TrainChoices
from streams.training.adam import Adam
from streams.training.impressions import TrainingSet
from streams.training.losses import batch_losses
from streams.training.questions import score_tasks
from streams.training.ranker.sequences import RankerRows
from streams.training.trainer import GRADIENT_NORM_MAX, draw_requests, schedule, task_offsets


def fit_ranker(network: AifNetwork, data: TrainingSet, chosen: TrainChoices, progress: Callable[[float], None] = lambda _: None) -> float:
    """Trains `network.ranker` in place for `chosen.ranker_steps`; returns the loss, the mean over the last tenth of the steps.

    Raises Misconfigured (`diverged`).
    """
    assert network.ranker is not None
    ranker, rows, chance = network.ranker, RankerRows(data), np.random.default_rng(chosen.seed)
    if not ranker.head.weight.any():
        start_from_embeddings(ranker, rows)
    aif_QCT = torch.from_numpy(score_tasks(network, data))
    optimiser, losses = Adam(ranker.parameters(), chosen.learning_rate), list[float]()
    for step in range(chosen.ranker_steps):
        requests = draw_requests(chance, data.time_Q, chosen, step / chosen.ranker_steps, step)
        batch = data.batch(requests)
        aif_BCT = torch.where(batch.mask_BC[..., None], aif_QCT[torch.from_numpy(requests)], 0.0)
        logits_BCT = rows.logits(ranker, requests, batch, aif_BCT)
        others_BCT = logits_BCT[..., 1:] + task_offsets(network.spec)
        loss = batch_losses(chosen, logits_BCT[..., 0], batch, network.spec.rank_by, others_BCT, network.spec.shown_task).total
        optimiser.zero_grad()
        loss.backward()
        if torch.nn.utils.clip_grad_norm_(ranker.parameters(), GRADIENT_NORM_MAX).isfinite():
            optimiser.learning_rate = chosen.learning_rate * schedule(step / chosen.ranker_steps)
            optimiser.step()
        losses.append(float(loss.detach()))
        progress((step + 1) / chosen.ranker_steps)
    last = float(np.mean(losses[-max(1, len(losses) // 10) :]))
    if not np.isfinite(last):
        raise Misconfigured("diverged", f"the ranker's losses are not finite; choose a learning_rate below {chosen.learning_rate:g}")
    return last


@torch.no_grad()
def start_from_embeddings(ranker: Ranker, rows: RankerRows) -> None:
    """Sets items' tokens to their embeddings, as wide as fit, and each layer's queries to its keys."""
    embeddings_RM = torch.from_numpy(rows.data.items.multimodal_RM[:, : ranker.spec.width])
    if embeddings_RM.shape[1]:
        tokens_RD = F.pad(F.normalize(embeddings_RM, dim=-1), (0, ranker.spec.width - embeddings_RM.shape[1]))
        ranker.items.weight[torch.from_numpy(rows.row_tokens)] = tokens_RD
    for w_in in ranker.layers.w_in.children():
        assert isinstance(w_in, torch.nn.Linear)
        queries_DD, keys_DD = w_in.weight.chunk(4)[2:]
        queries_DD.copy_(keys_DD)
