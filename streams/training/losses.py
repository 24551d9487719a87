"""The loss that a fit minimises: a weighted sum of COPR (Eq. 10), cross-entropy of clicks, softmax, and cross-entropy of other outcomes.

Here: the sum for a batch; its weights are choices of [train] (schemas/train_choices.py), whose defaults trainer.py explains. Not here: COPR itself (copr.py),
batches, optimisers.

    copr       the order of the ranking teacher's eCPM. With `calibrated` it does not set the level of a request's y (`keep_level`), and needs `click`
    click      cross-entropy of y with the drawn clicks; with `soft_labels`, with the teacher's click probability (its eCPM over the bid) where it
               is known, which is without the noise of a draw
    softmax    each positive against the negatives of its request; for catalogues of positives with sampled negatives
    outcomes   cross-entropy of each task beside the click, over all impressions, clicked or not. Its probability is therefore one per impression,
               as the click's is, and may be multiplied with the bid (ESMM, arXiv 1804.07931)

COPR orders the click's logit. The bid enters it, and the teacher's order (`teacher_scores`), with the exponent that it has in the model's `rank_by`.

Arrays: B requests, C shown items (padded, masked), T tasks besides the click.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.model.score import bid_exponent
from schemas.train_choices import TrainChoices
from streams.training.copr import copr_loss, label_gains

_WEIGHT_MIN = 1e-12  # the smallest divisor of a level, where every y is 0 or 1
_BID_MIN = 1e-12  # the smallest divisor of an eCPM
_SCORE_MAX = 1e30  # an eCPM over a tiny bid is cut here, so that the sum over a request stays finite in fp32


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of B requests. Bid, teacher's eCPM (NaN: unknown) and click are float32 [B, C]; other outcomes are float32 [B, C, T], or None. Of the masks,
    `mask_BC` says which places hold an item, `shown_BC` which hold an item that was shown (None: all of them)."""

    bid_BC: Tensor
    teacher_BC: Tensor
    clicked_BC: Tensor
    mask_BC: Tensor
    outcomes_BCT: Tensor | None = None
    shown_BC: Tensor | None = None

    @property
    def shown_mask(self) -> Tensor:
        """Places of items that were shown, bool [B, C]: all but those of drawn negatives."""
        return self.mask_BC if self.shown_BC is None else self.mask_BC & self.shown_BC


@dataclass(frozen=True, slots=True)
class LossValues:
    """`total` is minimised; the others are parts of it before weighting, 0 where a part is left out."""

    total: Tensor
    copr: Tensor
    click: Tensor
    outcomes: Tensor


def batch_losses(
    weights: TrainChoices,
    logits_BC: Tensor,
    labels: Labels,
    rank_by: str,
    outcome_logits_BCT: Tensor | None = None,
    shown_task: int | None = None,
) -> LossValues:
    """The losses of click logits and of those of the other tasks. The bid enters COPR as it enters `rank_by`: a model that ranks by click learns the order of
    the teacher's click probabilities, without bids. The place `shown_task` is that of the task `shown` among the other tasks."""
    nothing = logits_BC.new_zeros(())
    copr = click = softmax = outcomes = nothing
    shown_BC = labels.shown_mask
    if weights.copr:
        exponent = bid_exponent(rank_by)
        bid_BC = labels.bid_BC**exponent
        copr = copr_loss(
            keep_level(logits_BC, shown_BC) if weights.calibrated else logits_BC,
            bid_BC,
            label_gains(teacher_scores(labels, exponent), labels.clicked_BC, bid_BC),
            shown_BC,
        )
    if weights.click:
        target_BC = teacher_clicks(labels) if weights.soft_labels else labels.clicked_BC
        click = click_loss(logits_BC, target_BC, shown_BC)
    if weights.softmax:
        softmax = softmax_loss(logits_BC, labels.clicked_BC, shown_BC)
    total = weights.copr * copr + weights.click * click + weights.softmax * softmax
    if outcome_logits_BCT is not None and labels.outcomes_BCT is not None:
        for task, (of_task_BC, came_BC) in enumerate(zip(outcome_logits_BCT.unbind(-1), labels.outcomes_BCT.unbind(-1), strict=True)):
            weight, counted_BC = (weights.shown, labels.mask_BC) if task == shown_task else (weights.outcomes, shown_BC)
            if weight:
                loss = click_loss(of_task_BC, came_BC, counted_BC)
                outcomes, total = outcomes + loss, total + weight * loss
    return LossValues(total, copr, click, outcomes)


def keep_level(logits_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """The same logits; of a loss of these, the gradient by each request's logits sums to 0: it moves no shift that they have in common.

    EPSILON makes Eq. 10 depend on the level of y: all y rise until the clicks' loss holds them, at 1.4 to 1.8 times the expected clicks. So the level is left
    to the clicks. The gradient g becomes g - w sum(g) / sum(w), with w = y (1 - y): equal shares would push low logits to minus infinity.
    """
    weight_BC = (torch.sigmoid(logits_BC) * torch.sigmoid(-logits_BC) * mask_BC).detach()
    level_B = (weight_BC * logits_BC.masked_fill(~mask_BC, 0)).sum(dim=1) / weight_BC.sum(dim=1).clamp(min=_WEIGHT_MIN)
    return logits_BC + (level_B.detach() - level_B)[:, None]


def click_loss(logits_BC: Tensor, clicked_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """Cross-entropy of the clicks, mean over shown items. Eq. 10 fixes ratios only: this anchors the level of y, and it still pulls where
    COPR's gradient fades (badly misordered pairs)."""
    loss_BC = F.binary_cross_entropy_with_logits(logits_BC, clicked_BC, reduction="none")
    return (loss_BC * mask_BC).sum() / mask_BC.sum().clamp(min=1)


def teacher_scores(labels: Labels, exponent: float) -> Tensor:
    """The teacher's scores for a model that ranks by click * bid^exponent, [B, C]: its eCPM if the exponent is 1, its click probability if it is 0; NaN
    where there is no teacher."""
    if exponent == 1:
        return labels.teacher_BC
    clicks_BC = labels.teacher_BC / labels.bid_BC.clamp(min=_BID_MIN)
    return (clicks_BC * labels.bid_BC**exponent).clamp(max=_SCORE_MAX)


def teacher_clicks(labels: Labels) -> Tensor:
    """The teacher's click probability [B, C]: its eCPM over the bid, cut to 0..1; the drawn click where there is no teacher (NaN)."""
    known_BC = (labels.teacher_BC / labels.bid_BC.clamp(min=_BID_MIN)).clamp(0, 1)
    return torch.where(labels.teacher_BC.isnan(), labels.clicked_BC, known_BC)


def softmax_loss(logits_BC: Tensor, clicked_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """-log softmax of each positive among itself and the negatives of its request, mean over positives; 0 without a positive.

    Other positives are left out of the denominator: two items that were both taken do not compete.
    """
    positive_BC = (clicked_BC > 0) & mask_BC
    negatives_B = logits_BC.masked_fill(positive_BC | ~mask_BC, -torch.inf).logsumexp(dim=1)
    # A request without negatives has -inf here, and 0 to add: softplus of -inf, with a gradient of 0.
    against_BC = F.softplus(negatives_B.clamp(min=-1e30)[:, None] - logits_BC)
    return (against_BC * positive_BC).sum() / positive_BC.sum().clamp(min=1)
