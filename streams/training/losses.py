"""What a fit minimises: a weighted sum of COPR (Eq. 10), click cross-entropy and softmax, chosen in one place.

Here: the choice (`LossWeights`) and its value on a batch. Not here: COPR itself (copr.py), batches, optimisers.

    copr       order of the ranking teacher's eCPM; needs bids to mean something; fixes ratios only, so it goes with `click`
    click      cross-entropy of y: of the drawn clicks, or with `soft_labels` of the ranking teacher's click probability (its eCPM over the
               bid) where it is known, which tells the same without the noise of one draw
    softmax    each positive against the other items of its request; for catalogues of positives with sampled negatives

Arrays: B requests, C shown items (padded, masked).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from streams.training.copr import click_loss, copr_loss, label_gains


@dataclass(frozen=True, slots=True)
class LossWeights:
    """How much of each loss; 0 leaves it out. The defaults were measured (trainer.py)."""

    copr: float = 0.3
    click: float = 1.0
    softmax: float = 0.0
    soft_labels: bool = False


DEFAULT_LOSS = LossWeights()


@dataclass(frozen=True, slots=True)
class Labels:
    """What the items of B requests were worth: float32 [B, C] each, and which places hold an item."""

    bid_BC: Tensor
    teacher_BC: Tensor
    clicked_BC: Tensor
    mask_BC: Tensor


@dataclass(frozen=True, slots=True)
class LossValues:
    """`total` is what is minimised; `copr` and `click` are its parts before weighting, 0 where a part is left out."""

    total: Tensor
    copr: Tensor
    click: Tensor


def batch_losses(weights: LossWeights, logits_BC: Tensor, labels: Labels, rank_by: str) -> LossValues:
    """The losses of click logits. A model that ranks by click orders clicks: bids have no part in its answer, and none in its COPR."""
    nothing = logits_BC.new_zeros(())
    copr = click = softmax = nothing
    if weights.copr:
        bid_BC = labels.bid_BC if rank_by == "ecpm" else torch.ones_like(labels.bid_BC)
        copr = copr_loss(logits_BC, bid_BC, label_gains(labels.teacher_BC, labels.clicked_BC, bid_BC), labels.mask_BC)
    if weights.click:
        target_BC = teacher_clicks(labels) if weights.soft_labels else labels.clicked_BC
        click = click_loss(logits_BC, target_BC, labels.mask_BC)
    if weights.softmax:
        softmax = softmax_loss(logits_BC, labels.clicked_BC, labels.mask_BC)
    return LossValues(weights.copr * copr + weights.click * click + weights.softmax * softmax, copr, click)


def teacher_clicks(labels: Labels) -> Tensor:
    """The teacher's click probability [B, C]: its eCPM over the bid, cut to 0..1; the drawn click where there is no teacher (NaN)."""
    known_BC = (labels.teacher_BC / labels.bid_BC.clamp(min=1e-12)).clamp(0, 1)
    return torch.where(labels.teacher_BC.isnan(), labels.clicked_BC, known_BC)


def softmax_loss(logits_BC: Tensor, clicked_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """-log softmax of each positive among itself and the negatives of its request, mean over positives; 0 without a positive.

    Other positives are left out of the denominator: two items that were both taken do not compete.
    """
    positive_BC = (clicked_BC > 0) & mask_BC
    negatives_B = logits_BC.masked_fill(positive_BC | ~mask_BC, -torch.inf).logsumexp(dim=1)
    # A request without negatives has -inf here, and 0 to add: softplus of -inf, with a gradient of 0.
    against_BC = torch.nn.functional.softplus(negatives_B.clamp(min=-1e30)[:, None] - logits_BC)
    return (against_BC * positive_BC).sum() / positive_BC.sum().clamp(min=1)
