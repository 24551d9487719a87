"""Which requests the steps of a fit take: all alike, or ever more of the newest.

Here: the draw. Not here: what a step does with them (trainer.py). A fit that draws all alike learns the mean of its whole period, and is asked about
what comes after it. Where the two differ and no input says so, the weights are of the middle of the period: of a shop whose first customers are all new
to it, repeats weigh too little in the end. Drawing only the newest would leave few requests to learn the rest from, so a fit begins with all alike and
ends with the newest: at a share s of the run, a request of age a (before the newest one) is drawn with chance 2^(-s a / half life).
Nothing that is served reads a request's time: what is drawn differs, not what a request is.

Arrays: Q requests.
"""

import numpy as np

from infra.clock import DAY_MS

_HALVINGS_MAX = 40.0  # so that the oldest can still be drawn where the newest are fewer than a batch


class RequestDraw:
    """`half_life_days` of the chance to be drawn, at the end of the run; 0 = all alike, always."""

    def __init__(self, time_Q: np.ndarray, half_life_days: float) -> None:
        self._count = len(time_Q)
        self._halvings_Q = None
        if half_life_days:
            self._halvings_Q = (time_Q.max() - time_Q) / (half_life_days * DAY_MS)

    def draw(self, chance: np.random.Generator, count: int, share: float) -> np.ndarray:
        """Different requests for one step, at that share of the run; all of them if there are no more than `count`."""
        chances_Q = None if self._halvings_Q is None else self._chances(self._halvings_Q, share)
        return chance.choice(self._count, min(count, self._count), replace=False, p=chances_Q)

    @staticmethod
    def _chances(halvings_Q: np.ndarray, share: float) -> np.ndarray:
        weight_Q = np.exp2(-np.minimum(share * halvings_Q, _HALVINGS_MAX))
        return np.asarray(weight_Q / weight_Q.sum())
