"""Progressive validation: how well each batch was predicted before it was learnt, over the newest requests.

Here: the window and its figures. Not here: scoring (learner.py), metrics of users (training/metrics.py). A request counts as a user does elsewhere:
the AUC of each with a click and without, weighted by its items.

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
    """Figures of the window; NaN where nothing says anything. `calibration` is predicted over seen clicks, losses are means over batches."""

    requests: int
    gauc: float
    click: float
    copr: float
    calibration: float

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, which has no NaN."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


class ProgressiveValidation:
    """Keeps the newest `requests_max` requests or a few more."""

    def __init__(self, requests_max: int = WINDOW_REQUESTS) -> None:
        self._requests_max = requests_max
        self._batches: deque[Scored] = deque()
        self._requests = 0

    def add(self, scored: Scored) -> None:
        """One batch, scored before it was learnt; one that could not be scored says nothing."""
        if not np.isfinite(scored.logits_BC[scored.mask_BC]).all():
            return
        self._batches.append(scored)
        self._requests += len(scored.logits_BC)
        while self._requests - len(self._batches[0].logits_BC) >= self._requests_max:
            self._requests -= len(self._batches.popleft().logits_BC)

    def figures(self) -> Progress:
        """Of the window as it is."""
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
