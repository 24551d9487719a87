"""Progressive validation: how well the newest requests were predicted before they were learnt.

Here: the window of requests and its figures. Not here: scoring (learner.py), the metrics (training/metrics.py). GAUC groups by request here and not by
user: it is the mean AUC of the requests that have items with and without a click, weighted by their numbers of items.

Arrays: B requests, C shown items, X shown items of the window.
"""

import math
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from streams.training.following.learner import Scored
from streams.training.metrics import calibration, gauc

WINDOW_REQUESTS = 4_096


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of the window; NaN where there is no data for one. `calibration` is predicted clicks over clicks; the losses are means over batches."""

    requests: int
    gauc: float
    click: float
    copr: float
    calibration: float

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, which has no NaN."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


class ProgressiveValidation:
    """Keeps whole batches: the newest `requests_max` requests, and up to a batch more."""

    def __init__(self, requests_max: int = WINDOW_REQUESTS) -> None:
        self._requests_max = requests_max
        self._batches: deque[Scored] = deque()
        self._requests = 0

    def add(self, scored: Scored) -> None:
        """Adds a batch as it was scored before it was learnt. One whose logits are not finite is left out."""
        if not np.isfinite(scored.logits_BC[scored.mask_BC]).all():
            return
        self._batches.append(scored)
        self._requests += len(scored.logits_BC)
        while self._requests - len(self._batches[0].logits_BC) >= self._requests_max:
            self._requests -= len(self._batches.popleft().logits_BC)

    def figures(self) -> Progress:
        """The figures of the current window."""
        nothing = float("nan")
        if not self._batches:
            return Progress(0, nothing, nothing, nothing, nothing)
        logits_X, clicked_X = (np.concatenate([getattr(b, name)[b.mask_BC] for b in self._batches]) for name in ("logits_BC", "clicked_BC"))
        items = np.concatenate([b.mask_BC.sum(1) for b in self._batches])
        request_X = np.repeat(np.arange(len(items)), items)
        click, copr = np.mean([(b.click, b.copr) for b in self._batches], axis=0)
        predicted_X = 1 / (1 + np.exp(-logits_X.astype(np.float64)))
        return Progress(
            self._requests, gauc(request_X, logits_X, clicked_X), float(click), float(copr), calibration(predicted_X, clicked_X)
        )
