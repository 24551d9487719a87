"""The choice of the loss: each part alone, together, and with the teacher's probabilities as labels."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from schemas.train_choices import TrainChoices
from streams.training.copr import copr_loss, label_gains
from streams.training.losses import Labels, batch_losses, click_loss, softmax_loss, teacher_clicks


def sample(requests: int = 3, items: int = 6) -> tuple[torch.Tensor, Labels]:
    chance = torch.Generator().manual_seed(0)
    logits, bids, gains, clicks = (torch.rand(requests, items, generator=chance, dtype=torch.float64) for _ in range(4))
    labels = Labels(bids + 0.5, gains * 0.5, (clicks < 0.4).double(), torch.ones(requests, items, dtype=torch.bool))
    labels.clicked_BC[:, 0] = 1.0
    return 4 * logits - 2, labels


def test_the_total_is_the_weighted_sum_of_the_parts() -> None:
    logits, labels = sample()
    copr = copr_loss(logits, labels.bid_BC, label_gains(labels.teacher_BC, labels.clicked_BC, labels.bid_BC), labels.mask_BC)
    click, softmax = click_loss(logits, labels.clicked_BC, labels.mask_BC), softmax_loss(logits, labels.clicked_BC, labels.mask_BC)
    found = batch_losses(TrainChoices(copr=0.5, click=2.0, softmax=3.0), logits, labels, "ecpm")
    assert found.total.item() == pytest.approx((0.5 * copr + 2 * click + 3 * softmax).item())
    assert (found.copr.item(), found.click.item()) == pytest.approx((copr.item(), click.item()))


def test_a_weight_of_zero_leaves_a_part_out() -> None:
    logits, labels = sample()
    found = batch_losses(TrainChoices(copr=0.0, click=1.0), logits, labels, "ecpm")
    assert found.copr.item() == 0.0 and found.total.item() == found.click.item() > 0


def test_bids_have_no_part_in_a_model_that_ranks_by_click_nor_in_what_its_teacher_orders() -> None:
    logits, labels = sample()
    dearer = torch.linspace(1, 9, 6)  # the same clicks, and a teacher of the same mind: its eCPM rises as the bids do
    other = Labels(labels.bid_BC * dearer, labels.teacher_BC * dearer, labels.clicked_BC, labels.mask_BC)
    ours, theirs = (batch_losses(TrainChoices(), logits, of, "click").total.item() for of in (labels, other))
    assert ours == pytest.approx(theirs, rel=1e-12) and ours != batch_losses(TrainChoices(), logits, labels, "ecpm").total.item()


def test_calibrated_copr_leaves_what_all_logits_of_a_request_have_in_common_to_the_clicks() -> None:
    logits, labels = sample()
    labels.mask_BC[:, 4:] = False
    logits.requires_grad_(True)
    batch_losses(TrainChoices(copr=1.0, click=0.0, calibrated=True), logits, labels, "ecpm").copr.backward()
    assert logits.grad is not None and logits.grad[:, :4].abs().max() > 1e-3 and not logits.grad[:, 4:].any()
    assert logits.grad.sum(dim=1).abs().max() < 1e-12


def test_soft_labels_are_the_teachers_click_probability_and_the_click_where_there_is_none() -> None:
    nan = float("nan")
    labels = Labels(*(torch.tensor([v]) for v in ([2.0, 4.0, 1.0], [1.0, nan, 9.0], [0.0, 1.0, 0.0])), torch.ones(1, 3, dtype=torch.bool))
    assert teacher_clicks(labels).tolist() == [[0.5, 1.0, 1.0]]
    logits = torch.tensor([[0.0, 0.0, 0.0]])
    assert batch_losses(TrainChoices(copr=0.0, click=1.0, soft_labels=True), logits, labels, "ecpm").total.item() == pytest.approx(
        math.log(2)
    )


def test_soft_labels_are_right_at_the_teachers_probabilities_so_no_logit_is_better() -> None:
    _, labels = sample()
    best = torch.logit(teacher_clicks(labels)).requires_grad_(True)
    batch_losses(TrainChoices(copr=0.0, click=1.0, soft_labels=True), best, labels, "ecpm").total.backward()
    assert best.grad is not None and best.grad.abs().max() < 1e-12


def test_softmax_with_one_positive_is_cross_entropy_over_the_request() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    clicked = torch.tensor([[0.0, 1.0, 0.0]])
    expected = F.cross_entropy(logits, torch.tensor([1])).item()
    assert softmax_loss(logits, clicked, torch.ones(1, 3, dtype=torch.bool)).item() == pytest.approx(expected)


def test_positives_do_not_compete_in_softmax() -> None:
    clicked, mask = torch.tensor([[1.0, 1.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    logits = torch.tensor([[1.0, 3.0, 0.0]], requires_grad=True)
    softmax_loss(logits, clicked, mask).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(
        [-torch.sigmoid(torch.tensor(-x)).item() / 2 for x in (1.0, 3.0)]
        + [sum(torch.sigmoid(torch.tensor(-x)).item() / 2 for x in (1.0, 3.0))]
    )


@pytest.mark.parametrize("size", [50.0, 1e3, 1e6])
@pytest.mark.parametrize("soft", [False, True])
def test_every_part_has_finite_gradients_at_extreme_logits(size: float, soft: bool) -> None:
    _, labels = sample()
    logits = (size * torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, -1.0])).expand(3, 6).clone().requires_grad_(True)
    single = Labels(labels.bid_BC.float(), labels.teacher_BC.float(), labels.clicked_BC.float(), labels.mask_BC)
    loss = batch_losses(TrainChoices(copr=1.0, click=1.0, softmax=1.0, soft_labels=soft), logits, single, "ecpm").total
    loss.backward()
    assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


@pytest.mark.parametrize("clicked", [0.0, 1.0])
def test_a_request_of_one_kind_of_label_only_has_a_finite_softmax_and_gradient(clicked: float) -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    loss = softmax_loss(logits, torch.full((2, 3), clicked), mask)
    loss.backward()
    assert loss.item() == 0.0 and logits.grad is not None and logits.grad.isfinite().all()


def test_masked_items_have_no_gradient() -> None:
    logits, labels = sample()
    labels.mask_BC[:, 4:] = False
    logits.requires_grad_(True)
    batch_losses(TrainChoices(copr=1.0, click=1.0, softmax=1.0), logits, labels, "ecpm").total.backward()
    assert logits.grad is not None and not logits.grad[:, 4:].any() and logits.grad[:, :4].any()


@pytest.mark.parametrize(
    "weights",
    [
        TrainChoices(copr=0.0, click=1.0, softmax=0.0, soft_labels=True),
        TrainChoices(copr=0.0, click=0.0, softmax=1.0),
    ],
)
def test_gradients_are_those_of_finite_differences(weights: TrainChoices) -> None:
    logits, labels = sample()
    labels.mask_BC[0, 4:] = False
    assert torch.autograd.gradcheck(lambda x: batch_losses(weights, x, labels, "ecpm").total, (logits.requires_grad_(True),))


def test_each_further_task_adds_the_cross_entropy_of_its_own_outcome() -> None:
    logits, labels = sample()
    chance = torch.Generator().manual_seed(5)
    outcomes = (torch.rand(*logits.shape, 2, generator=chance) < 0.3).to(logits.dtype)
    theirs = torch.randn(*logits.shape, 2, generator=chance, dtype=logits.dtype)
    with_outcomes = dataclasses.replace(labels, outcomes_BCT=outcomes)
    alone = batch_losses(TrainChoices(), logits, labels, "ecpm").total
    found = batch_losses(TrainChoices(outcomes=0.5), logits, with_outcomes, "ecpm", theirs)
    expected = sum(click_loss(theirs[..., t], outcomes[..., t], labels.mask_BC) for t in range(2))
    assert found.total.item() == pytest.approx((alone + 0.5 * expected).item()) and found.outcomes.item() == pytest.approx(expected.item())
    one_task = batch_losses(TrainChoices(), logits, dataclasses.replace(labels, outcomes_BCT=outcomes[..., :0]), "ecpm", theirs[..., :0])
    assert one_task.total.item() == alone.item()


def test_the_bid_enters_copr_as_it_enters_the_formula() -> None:
    logits, labels = sample()
    rooted = dataclasses.replace(labels, bid_BC=labels.bid_BC**0.5, teacher_BC=labels.teacher_BC / labels.bid_BC**0.5)
    by_root = batch_losses(TrainChoices(copr=1.0, click=0.0), logits, labels, "click * buy * bid^0.5").total
    assert by_root.item() == pytest.approx(batch_losses(TrainChoices(copr=1.0, click=0.0), logits, rooted, "ecpm").total.item())


def test_only_the_task_shown_reads_items_that_were_not_shown() -> None:
    logits, labels = sample()
    shown = torch.zeros(3, 6, dtype=torch.bool)
    shown[:, :3] = True
    outcomes = torch.stack([labels.clicked_BC, shown.double()], dim=-1)
    labels = dataclasses.replace(labels, shown_BC=shown, outcomes_BCT=outcomes)
    others = torch.stack([logits, -logits], dim=-1)
    found = batch_losses(TrainChoices(copr=0.0, outcomes=0.5, shown=0.25), logits, labels, "click", others, shown_task=1)
    click = click_loss(logits[:, :3], labels.clicked_BC[:, :3], labels.mask_BC[:, :3])
    assert found.total.item() == pytest.approx((1.5 * click + 0.25 * click_loss(-logits, shown.double(), labels.mask_BC)).item())
