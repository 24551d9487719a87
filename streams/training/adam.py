"""Adam (Kingma and Ba, 2015, algorithm 1) with an L2 penalty on the weights (not decoupled, as AdamW's is), in one compiled pass over all parameters.

torch.optim.Adam(fused=True) calls the same pass and gives the same bits. But its first step imports torch's compiler, which is not used here: 1,150
modules, over 2 s of a core and 100 MB in every process that trains. Not here: schedules, losses, the file of a trainer's state (trainer_state.py).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_DECAY = 1e-6


class Adam:
    """`learning_rate` may be set before any step. A parameter without a gradient stays as it is."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self._parameters, self.learning_rate = list(parameters), learning_rate
        self._moments: dict[int, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Clears the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter that has a gradient."""
        moved = [(number, p, p.grad) for number, p in enumerate(self._parameters) if p.grad is not None]
        if not moved:
            return
        for number, p, _ in moved:
            if number not in self._moments:
                self._moments[number] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        kept = [self._moments[number] for number, _, _ in moved]
        steps = [m["step"] for m in kept]
        torch._foreach_add_(steps, 1.0)
        torch._fused_adam_(
            [p for _, p, _ in moved],
            [gradient for _, _, gradient in moved],
            [m["exp_avg"] for m in kept],
            [m["exp_avg_sq"] for m in kept],
            [],
            steps,
            lr=self.learning_rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=_DECAY,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )

    @property
    def moments(self) -> Mapping[int, Mapping[str, Tensor]]:
        """The state to continue from, by the parameter's number: `step`, `exp_avg`, `exp_avg_sq`."""
        return self._moments

    def restore(self, moments: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continues from copies of the moments of the same parameters."""
        self._moments = {number: {name: moment.clone() for name, moment in named.items()} for number, named in moments.items()}
