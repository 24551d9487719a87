"""The optimiser: the algorithm as it was published, and moments that can be taken up again."""

import numpy as np
import torch
from torch import Tensor

from streams.training.adam import Adam

SIZES = (3, 2), (4,), (2,)


def parameters() -> list[Tensor]:
    return [torch.full(size, 1.0, requires_grad=True) for size in SIZES]


def walk(optimiser: Adam, moved: list[Tensor], seeds: range) -> None:
    """Steps with gradients of which the last parameter gets every second one."""
    for seed in seeds:
        chance = torch.Generator().manual_seed(seed)
        optimiser.zero_grad()
        for number, parameter in enumerate(moved):
            if number < 2 or seed % 2:
                parameter.grad = torch.randn(parameter.shape, generator=chance)
        optimiser.learning_rate = 0.1 / (1 + seed)
        optimiser.step()


def test_steps_are_those_of_the_algorithm_and_what_has_no_gradient_stays() -> None:
    moved = parameters()
    walk(Adam(moved, 0.0), moved, range(6))
    for number, (parameter, size) in enumerate(zip(moved, SIZES, strict=True)):
        value, m, v, steps = np.ones(size), np.zeros(size), np.zeros(size), 0
        for seed in range(6):
            chance = torch.Generator().manual_seed(seed)
            drawn = [torch.randn(each, generator=chance).double().numpy() for each in SIZES[: 3 if seed % 2 else 2]]
            if number >= len(drawn):
                continue
            steps += 1
            gradient = drawn[number] + 1e-6 * value
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            value = value - 0.1 / (1 + seed) * (m / (1 - 0.9**steps)) / (np.sqrt(v / (1 - 0.999**steps)) + 1e-8)
        assert np.allclose(parameter.detach().numpy(), value, rtol=1e-5, atol=1e-6)


def test_restored_moments_go_on_bit_for_bit_and_are_copies() -> None:
    whole, first = parameters(), parameters()
    walk(Adam(whole, 0.0), whole, range(6))
    begun = Adam(first, 0.0)
    walk(begun, first, range(3))
    told = {number: {name: moment.clone() for name, moment in named.items()} for number, named in begun.moments.items()}
    second = [parameter.detach().clone().requires_grad_() for parameter in first]
    resumed = Adam(second, 0.0)
    resumed.restore(begun.moments)
    walk(resumed, second, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))
    assert all(torch.equal(begun.moments[number][name], moment) for number, named in told.items() for name, moment in named.items())
