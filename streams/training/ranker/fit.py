"""Fits the ranker of a network on the requests that the network has learnt; the network itself stays as it is.

The losses are those of the network: cross-entropy of each task, and COPR where it has a weight. AIF's logits are an input and the base of the ranker's.

Start: an item's token is its multimodal embedding where it has one, and is not learnt then: learnt one by one from few impressions, tokens lose their likeness.
From random weights 400 steps found nothing; from the likeness they do (docs/EXPERIMENTS.md).
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

_OTHERS = 0.1  # scale of the random start of all other weights; at full size it would drown the likeness
_SHARPNESS = 2.0  # of queries and keys


def fit_ranker(network: AifNetwork, data: TrainingSet, chosen: TrainChoices, progress: Callable[[float], None] = lambda _: None) -> float:
    """Trains `network.ranker` in place for `chosen.ranker_steps`; returns the loss, the mean over the last tenth of the steps.

    Raises Misconfigured (`diverged`).
    """
    assert network.ranker is not None
    ranker, rows, chance = network.ranker, RankerRows(data), np.random.default_rng(chosen.seed)
    if not ranker.head.weight.any():
        start_from_embeddings(ranker, rows)
    ranker.items.requires_grad_(not data.items.multimodal_RM.shape[1])
    steps = chosen.ranker_steps
    draws = [draw_requests(chance, data.time_Q, chosen, step / steps, step) for step in range(steps)]
    asked_N = np.unique(np.concatenate(draws))  # a short fit draws few of the requests
    aif_NCT = torch.from_numpy(score_tasks(network, data.take(asked_N)))
    optimiser, losses = Adam(ranker.parameters(), chosen.learning_rate), list[float]()
    for step, requests in enumerate(draws):
        batch = data.batch(requests)
        aif_BCT = torch.where(batch.mask_BC[..., None], aif_NCT[np.searchsorted(asked_N, requests)], 0.0)
        logits_BCT = rows.logits(ranker, requests, batch, aif_BCT)
        others_BCT = logits_BCT[..., 1:] + task_offsets(network.spec)
        loss = batch_losses(chosen, logits_BCT[..., 0], batch, network.spec.rank_by, others_BCT, network.spec.shown_task).total
        optimiser.zero_grad()
        loss.backward()
        if torch.nn.utils.clip_grad_norm_(ranker.parameters(), GRADIENT_NORM_MAX).isfinite():
            optimiser.learning_rate = chosen.learning_rate * schedule(step / steps)
            optimiser.step()
        losses.append(float(loss.detach()))
        progress((step + 1) / steps)
    last = float(np.mean(losses[-max(1, len(losses) // 10) :]))
    if not np.isfinite(last):
        raise Misconfigured("diverged", f"the ranker's losses are not finite; choose a learning_rate below {chosen.learning_rate:g}")
    return last


@torch.no_grad()
def start_from_embeddings(ranker: Ranker, rows: RankerRows) -> None:
    """Sets tokens and layers in place so that the ranker starts as a likeness of candidate and history; nothing without multimodal embeddings.

    tokens   the leading principal directions e of the embeddings in the first half; the second half is for what layers add
    W_in     u, v, q and k are e and -e: SiLU(x) - SiLU(-x) = x, so nothing of e is lost
    W_out    adds the two halves of u * attention, a likeness by direction, to the second half of the token

    The slowest rotations get the first directions: the others tell distances, and a likeness must hold over all of them.
    """
    embeddings_RM = torch.from_numpy(rows.data.items.multimodal_RM)
    if not embeddings_RM.shape[1]:
        return
    width, half, head = ranker.spec.width, ranker.spec.width // 2, ranker.spec.width // ranker.spec.heads
    centred_RM = embeddings_RM - embeddings_RM.mean(0)
    directions_ME = torch.linalg.eigh(centred_RM.T @ centred_RM)[1].flip(1)[:, :half]
    slowest_first = sorted(range(half), key=lambda e: -((e % head) % max(1, head // 2)))[: directions_ME.shape[1]]
    tokens_RD = torch.zeros(len(embeddings_RM), width)
    tokens_RD[:, slowest_first] = F.normalize(centred_RM @ directions_ME, dim=-1)
    ranker.items.weight[torch.from_numpy(rows.row_tokens)] = tokens_RD
    for others in (ranker.kinds, ranker.w_logits, ranker.w_profile, ranker.w_context):
        others.weight *= _OTHERS
    identity_EE = torch.eye(half)
    both_DE = torch.cat([identity_EE, -identity_EE])
    for w_in, w_out in zip(ranker.layers.w_in, ranker.layers.w_out, strict=True):
        assert isinstance(w_in, torch.nn.Linear) and isinstance(w_out, torch.nn.Linear)
        w_in.weight *= _OTHERS
        w_out.weight *= _OTHERS
        for part, scale in zip(w_in.weight.chunk(4), (1.0, 1.0, _SHARPNESS, _SHARPNESS), strict=True):
            part[:, :half] += scale * both_DE
        w_out.weight[half:] += torch.cat([identity_EE, identity_EE], 1)
