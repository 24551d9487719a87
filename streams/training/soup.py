"""Several fits from the same weights, and the mean of the weights that they end with.

Here: that mean, and what a killed trainer needs of it. Not here: the fits (trainer.py), which differ in the requests that they draw. Why: the final weights
of a fit depend in part on the requests that it happened to draw. Fits from the same weights end in one basin of the loss. So the mean of their weights is a
model too, in which much of that chance cancels. It takes as long to train as all of them, and to serve as one of them.

Source: Wortsman et al. 2022, "Model soups" (uniform soup).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_COUNTS = "counts"


class Soup:
    """`start`: the weights that every fit begins with. `mean`: of what the `fits` so far have ended with; `steps`: of them together."""

    def __init__(self, network: nn.Module) -> None:
        self.start = _copy(network)
        self.mean: Mapping[str, Tensor] = {}
        self.fits = self.steps = 0

    def add(self, network: nn.Module, steps: int) -> None:
        """Takes in what a fit has ended with."""
        weights = _copy(network)
        self.fits, self.steps = self.fits + 1, self.steps + steps
        self.mean = {name: self.mean[name].lerp(w, 1 / self.fits) for name, w in weights.items()} if self.mean else weights

    def state(self) -> dict[str, Tensor]:
        """Everything, as tensors by name; the inverse of `restore`."""
        named = {f"{part}/{name}": t for part in ("start", "mean") for name, t in getattr(self, part).items()}
        return {_COUNTS: torch.tensor([self.fits, self.steps]), **named}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continues from a state; an empty one changes nothing."""
        if state:
            self.fits, self.steps = state[_COUNTS].tolist()
            self.start, self.mean = _part(state, "start/"), _part(state, "mean/")


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}
