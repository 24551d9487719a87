"""Progressive validation: how well the newest requests were predicted before they were learnt.

Here: the window of requests and its figures. Not here: scoring (learner.py), the metrics (training/metrics.py). GAUC groups by request here and not by
user: it is the mean AUC of the requests that have items with and without a click, weighted by their numbers of items.

Arrays: B requests, C shown items, X shown items of the window.
"""

import math
from collections import deque

import numpy as np

from streams.training.metrics import calibration, gauc
from streams.training.trainer import Learnt

WINDOW_REQUESTS = 4_096


class ProgressiveValidation:
    """Keeps whole batches: the newest `requests_max` requests, and up to a batch more."""

    def __init__(self, requests_max: int = WINDOW_REQUESTS) -> None:
        self._requests_max = requests_max
        self._batches: deque[Learnt] = deque()
        self._requests = 0

    def add(self, scored: Learnt) -> None:
        """Adds a batch as it was scored before it was learnt. One whose logits are not finite is left out."""
        if not np.isfinite(scored.logits_BC[scored.mask_BC]).all():
            return
        self._batches.append(scored)
        self._requests += len(scored.logits_BC)
        while self._requests - len(self._batches[0].logits_BC) >= self._requests_max:
            self._requests -= len(self._batches.popleft().logits_BC)

    def figures(self) -> dict[str, float | None]:
        """Of the current window: requests, GAUC, the losses (means over batches), and predicted clicks over clicks; None where there is no data for one."""
        if not self._batches:
            return {"requests": 0, **dict.fromkeys(("gauc", "click", "copr", "calibration"))}
        logits_X, clicked_X = (np.concatenate([getattr(b, name)[b.mask_BC] for b in self._batches]) for name in ("logits_BC", "clicked_BC"))
        items = np.concatenate([b.mask_BC.sum(1) for b in self._batches])
        request_X = np.repeat(np.arange(len(items)), items)
        click, copr = np.mean([(b.click, b.copr) for b in self._batches], axis=0)
        predicted_X = 1 / (1 + np.exp(-logits_X.astype(np.float64)))
        found = {"gauc": gauc(request_X, logits_X, clicked_X), "click": float(click), "copr": float(copr)}
        found["calibration"] = calibration(predicted_X, clicked_X)
        return {"requests": self._requests, **{name: value if math.isfinite(value) else None for name, value in found.items()}}
