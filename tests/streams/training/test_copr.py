"""COPR (Eq. 10): the formula by plain loops, and the closed form of its gradient. Extreme logits, and the level: test_losses.py."""

import math

import pytest
import torch

from streams.training.copr import EPSILON, copr_loss, delta_ndcg, label_gains


def plain_copr(logits: list[float], bids: list[float], gains: list[float]) -> float:
    """Eq. 10 for one request, pair by pair; bids relative to their mean."""
    n, mean_bid = len(gains), sum(bids) / len(bids)
    ecpm = [bid / mean_bid / (1 + math.exp(-x)) for x, bid in zip(logits, bids, strict=True)]
    order = sorted(range(n), key=lambda i: -gains[i])
    discount = {i: 1 / math.log2(2 + rank) for rank, i in enumerate(order)}
    ideal = sum(gains[i] * discount[i] for i in range(n))
    total = 0.0
    for i in range(n):
        for j in range(n):
            if gains[i] > gains[j]:
                weight = (gains[i] - gains[j]) * abs(discount[i] - discount[j]) / ideal
                total += weight * math.log1p(math.exp(-(ecpm[i] / (ecpm[j] + EPSILON) - 1)))
    return total


def sample(requests: int = 3, items: int = 6, seed: int = 0) -> tuple[torch.Tensor, ...]:
    chance = torch.Generator().manual_seed(seed)
    logits, bids, gains = (torch.rand(requests, items, generator=chance, dtype=torch.float64) for _ in range(3))
    return 4 * logits - 2, bids + 0.1, gains, torch.ones(requests, items, dtype=torch.bool)


def test_the_loss_is_equation_10_summed_over_pairs() -> None:
    logits, bids, gains, mask = sample()
    expected = [plain_copr(*(t[b].tolist() for t in (logits, bids, gains))) for b in range(len(logits))]
    # Ranks are discounted in fp32.
    assert copr_loss(logits, bids, gains, mask).item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_delta_ndcg_is_what_swapping_two_items_costs() -> None:
    _, _, gains, mask = sample()

    def dcg(order: list[int], of: list[float]) -> float:
        return sum(of[i] / math.log2(2 + rank) for rank, i in enumerate(order))

    for found, of in zip(delta_ndcg(gains, mask).tolist(), gains.tolist(), strict=True):
        best = sorted(range(len(of)), key=lambda i: -of[i])
        for i in range(len(of)):
            for j in range(len(of)):
                swapped = [j if n == i else i if n == j else n for n in best]
                lost = 1 - dcg(swapped, of) / dcg(best, of) if of[i] > of[j] else 0.0
                assert found[i][j] == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize("logits", [(0.3, -0.4), (-3.0, 2.0), (4.0, -4.0)])
def test_the_gradient_of_one_pair_has_its_closed_form(logits: tuple[float, float]) -> None:
    """d/dx_i = -w sigmoid(1 - rho) rho (1 - y_i) and d/dx_j = +w sigmoid(1 - rho) rho (1 - y_j) e_j / (e_j + epsilon), rho = e_i / (e_j + epsilon)."""
    x = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    gains, mask = torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    copr_loss(x, torch.ones_like(gains), gains, mask).backward()
    y_i, y_j = (1 / (1 + math.exp(-v)) for v in logits)
    rho = y_i / (y_j + EPSILON)
    slope = delta_ndcg(gains, mask)[0, 0, 1].item() / (1 + math.exp(rho - 1)) * rho
    assert x.grad is not None
    assert x.grad[0].tolist() == pytest.approx([-slope * (1 - y_i), slope * (1 - y_j) * y_j / (y_j + EPSILON)], rel=1e-6)


def test_its_gradient_is_that_of_finite_differences() -> None:
    logits, bids, gains, mask = sample()
    mask[0, 4:] = False
    assert torch.autograd.gradcheck(lambda x: copr_loss(x, bids, gains, mask), (logits.requires_grad_(True),))


@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_masked_item_changes_nothing(at: int) -> None:
    """Also where it stands before others, and where those have no gain either: it takes no rank from them."""
    logits, bids, gains, mask = sample()
    gains[:, 2:] = 0.0
    columns = ((logits, 9.0), (bids, 1.0), (gains, 5.0), (mask, False))
    *wider, masked = (torch.cat([t[:, :at], torch.full_like(t[:, :2], value), t[:, at:]], 1) for t, value in columns)
    assert copr_loss(*wider, masked).item() == pytest.approx(copr_loss(logits, bids, gains, mask).item(), rel=1e-12)


def test_equal_gains_weigh_nothing_and_a_request_of_such_gives_zero() -> None:
    logits, bids, gains, mask = sample()
    assert copr_loss(logits, bids, torch.ones_like(gains), mask).item() == 0.0
    weights = delta_ndcg(gains, mask)
    assert (weights >= 0).all() and ((weights > 0) & (weights.transpose(1, 2) > 0)).sum() == 0


def test_without_a_teacher_the_gain_is_click_times_bid() -> None:
    teacher = torch.tensor([[1.5, float("nan"), float("nan")]])
    assert label_gains(teacher, torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[2.0, 3.0, 4.0]])).tolist() == [[1.5, 3.0, 0.0]]
