"""Scores each batch of a round, then learns it: a follower's network, its optimiser and its generator; and how well the newest requests were predicted.

Here: `OnlineLearner`, `ProgressiveValidation`. Not here: where rounds come from (followed_log.py, view.py), the training step (training/trainer.py), the file
of the state (training/trainer_state.py), the measures (training/measures.py).
Invariants: a batch is scored with the weights from before it was learnt, so progressive validation never scores an example that was seen. All weights are
trained, embeddings and bridges among them. Multimodal embeddings (inputs) and W_hash (not a parameter) never change, so the signatures in the index stay
valid. Learning a round again gives the same weights. The generator that draws the batches is part of the state, and the vectors of behaviours are recomputed
at the beginning of each round.

Arrays: B requests, C shown items, X shown items of the window of progressive validation.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from schemas.errors import Misconfigured
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet
from streams.training.measures import calibration, gauc
from streams.training.trainer import VECTORS_EVERY, WARM_RATE, Learner, Learnt, item_vectors
from streams.training.trainer_state import TrainerState

# choices of [train] that have no meaning for a training that continues a model and has no end
OF_A_FIT = frozenset({"steps", "passes", "seconds", "start", "hold", "half_life_days", "fits"})
_DEFAULT_CHOICES = TrainChoices()
WINDOW_REQUESTS = 4_096
_WARM_UP_STEPS = 20  # steps in which the rate rises, because the moments of a new optimiser are not estimates yet


def follower_choices(given: Mapping[str, Any], of_file: TrainChoices = _DEFAULT_CHOICES) -> TrainChoices:
    """How a follower learns: the choices of [train] in `given`, else those of the model's file. The file's learning rate is meant for a fit, so
    `WARM_RATE` times it is taken; those `OF_A_FIT` are ignored. Raises Misconfigured (`bad_train_choice`) for one of them in `given`.

    The loss is that of a fit. (The teacher's click probability as label, without COPR, recovered less in a changing world.)
    """
    if ended := sorted(OF_A_FIT & set(given)):
        raise Misconfigured(
            "bad_train_choice", f"{ended[0]} has no meaning with --follow, which continues a model and does not end; leave it out"
        )
    return dataclasses.replace(of_file, learning_rate=of_file.learning_rate * WARM_RATE).replaced(given)


class OnlineLearner(Learner):
    """A network that learns round after round. The chosen rate is constant, because changes never end. `steps` counts the steps taken; it is the step of its
    state."""

    def __init__(self, network: AifNetwork, chosen: TrainChoices) -> None:
        super().__init__(network, chosen)
        self.steps = 0

    def learn(self, data: TrainingSet) -> Iterator[Learnt]:
        """Learns a round in batches of random order; yields each batch as it was scored before it was learnt. The learning rate is lower in the first
        steps, and in proportion for a batch that is not full."""
        self.network.train()
        size, vectors_RD = self.chosen.batch_requests, torch.zeros(0)
        order_Q = self._chance.permutation(len(data))
        for number, first in enumerate(range(0, len(data), size)):
            if number % VECTORS_EVERY == 0:
                vectors_RD = item_vectors(self.network, data)
            requests = order_Q[first : first + size]
            learnt = self.take_step(data, requests, vectors_RD, len(requests) / size * min(1.0, (self.steps + 1) / _WARM_UP_STEPS))
            self.steps += learnt.applied
            yield learnt
        self.network.eval()

    def restore(self, state: TrainerState) -> None:
        """Continues from a state between two rounds, of a learner with the same network and choices."""
        super().restore(state)
        self.steps = state.step


class ProgressiveValidation:
    """Keeps whole batches: the newest `requests_max` requests, and up to a batch more. GAUC groups by request here and not by user. It is the mean AUC of the
    requests with clicked and other items, weighted by their numbers of items."""

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
