"""COPR: the pair-wise loss that makes pre-ranking agree with the order of ranking in eCPM (Eq. 10), weighted by Delta-NDCG.

    L = sum over pairs (i above j) of DeltaNDCG(i, j) * log(1 + exp(-(y_i bid_i / (y_j bid_j) - 1)))

Here: the loss of a batch of requests as a pure function of tensors, and its weights. Not here: the level of y (losses.py), the network, batches, optimisers.
"i above j" is the order of the gains: the teacher's eCPM, or click times bid where there is no teacher. A pair of equal gains
has no weight. DeltaNDCG(i, j) = |gain_i - gain_j| * |1/log2(1 + r_i) - 1/log2(1 + r_j)| / IDCG with ranks r in that order.

Differs: EPSILON is added to the denominator. Without it the gradient is NaN from logits of -50 on, although the loss is finite. With it the gradient is
finite everywhere, and the loss of a pair is at most log(1 + e). Its size was measured (trainer.py). At 1e-2 a small y_j raises the ratio most easily, so
training changes the bottom of the list. At 0.3 only a high y_i raises it, and training changes the top. Bids are divided by their mean over the request, so
that EPSILON does not depend on the currency.

Differs too: the mean over requests instead of a sum, so that the learning rate does not depend on the size of a batch. Order and ranks are those of
the teacher and not of the current scores, so they are constant during a training.

Arrays: B requests, C shown items (padded, masked).  Source: AIF, eq. (10); COPR (arXiv 2306.03516).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 0.3


def label_gains(teacher_BC: Tensor, clicked_BC: Tensor, bid_BC: Tensor) -> Tensor:
    """Gains >= 0, [B, C]: the teacher's eCPM, or click times bid where an item has no teacher (NaN)."""
    return torch.where(teacher_BC.isnan(), clicked_BC * bid_BC, teacher_BC)


def delta_ndcg(gains_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """Weight of each pair (i above j), [B, C, C]; zero where i is not above j, where either is masked, and where no gain is positive."""
    last_BC = gains_BC.masked_fill(~mask_BC, -1.0)  # a masked place takes no rank, not even among gains of 0
    order_BC = last_BC.argsort(dim=1, descending=True, stable=True)
    gains_BC = gains_BC * mask_BC
    rank_BC = torch.empty_like(order_BC).scatter_(1, order_BC, torch.arange(order_BC.shape[1], device=order_BC.device).expand_as(order_BC))
    discount_BC = 1 / torch.log2(rank_BC + 2.0)
    ideal_B = (gains_BC * discount_BC).sum(dim=1)
    difference_BCC = (gains_BC[:, :, None] - gains_BC[:, None, :]).clamp(min=0)
    weight_BCC = difference_BCC * (discount_BC[:, :, None] - discount_BC[:, None, :]).abs()
    both_BCC = mask_BC[:, :, None] & mask_BC[:, None, :]
    return weight_BCC * both_BCC / ideal_B.clamp(min=1e-12)[:, None, None]


def copr_loss(logits_BC: Tensor, bid_BC: Tensor, gains_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """Eq. 10, mean over the requests in which some pair has a weight; 0 if none has. `logits_BC` is the click's; y = sigmoid of it."""
    items_B = mask_BC.sum(dim=1).clamp(min=1)
    mean_bid_B = (bid_BC * mask_BC).sum(dim=1) / items_B
    ecpm_BC = torch.sigmoid(logits_BC) * bid_BC / mean_bid_B.clamp(min=1e-12)[:, None]
    ratio_BCC = ecpm_BC[:, :, None] / (ecpm_BC[:, None, :] + EPSILON)
    weight_BCC = delta_ndcg(gains_BC, mask_BC)
    loss_B = (weight_BCC * F.softplus(1 - ratio_BCC)).sum(dim=(1, 2))
    return loss_B.sum() / (weight_BCC.sum(dim=(1, 2)) > 0).sum().clamp(min=1)
