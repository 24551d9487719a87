"""Scores each batch of a round, then learns it: a follower's network, its optimiser and its generator.

Here: `OnlineLearner`. Not here: where rounds come from (followed_log.py, view.py), the training step (training/trainer.py), the file of the state
(training/trainer_state.py).
Invariants: a batch is scored with the weights from before it was learnt, so progressive validation never scores an example that was seen. All weights
are trained, embeddings and bridges among them; multimodal embeddings (inputs) and W_hash (not a parameter) stay as they are, so the signatures in the
index stay valid. Learning a round again gives the same weights: the batches are drawn by a generator that is part of the state, and the vectors of
behaviours are recomputed at the beginning of each round.

Arrays: B requests, C shown items.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.errors import Misconfigured
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.adam import Adam
from streams.training.impressions import TrainingSet
from streams.training.losses import loss_weights
from streams.training.trainer import VECTORS_EVERY, WARM_RATE, VectorTable, train_step
from streams.training.trainer_state import TrainerState

# choices of [train] that have no meaning for a training that continues a model and has no end
OF_A_FIT = frozenset({"steps", "passes", "seconds", "start", "half_life_days", "fits"})
_DEFAULT_CHOICES = TrainChoices()
_WARM_UP_STEPS = 20  # steps in which the rate rises, because the moments of a new optimiser are not estimates yet


def follower_choices(given: Mapping[str, Any], of_file: TrainChoices = _DEFAULT_CHOICES) -> TrainChoices:
    """How a follower learns: the choices of [train] in `given`, else those of the model's file. The file's learning rate is meant for a fit, so
    `WARM_RATE` times it is taken; those `OF_A_FIT` are ignored. Raises Misconfigured (`bad_train_choice`) for one of them in `given`.

    The loss is that of a fit. (The teacher's click probability as label, without COPR, recovered less in a changing world.)
    """
    if ended := sorted(OF_A_FIT & set(given)):
        raise Misconfigured("bad_train_choice", f"{ended[0]} means nothing with --follow, which goes on from a model and does not end")
    return dataclasses.replace(of_file, learning_rate=of_file.learning_rate * WARM_RATE).replaced(given)


@dataclass(frozen=True)
class Scored:
    """A batch as it was scored before its step: click logits float32 [B, C], clicks, which places hold an item, the losses, and whether the step
    was applied."""

    logits_BC: np.ndarray
    clicked_BC: np.ndarray
    mask_BC: np.ndarray
    click: float
    copr: float
    applied: bool


class OnlineLearner:
    """A network that learns round after round. The rate that was chosen is constant, because what changes has to be followed without end. `steps` counts
    the steps taken."""

    def __init__(self, network: AifNetwork, chosen: TrainChoices) -> None:
        self.network, self._chosen = network, chosen
        self._chance = np.random.default_rng(chosen.seed)
        self._optimiser = Adam(network.parameters(), chosen.learning_rate)
        self.steps = 0

    def learn(self, data: TrainingSet) -> Iterator[Scored]:
        """Learns a round in batches of random order; yields each batch as it was scored before it was learnt."""
        self.network.train()
        size, vectors = self._chosen.batch_requests, VectorTable(self.network, data)
        order_Q = self._chance.permutation(len(data))
        for number, first in enumerate(range(0, len(data), size)):
            if number % VECTORS_EVERY == 0:
                vectors.renew()
            yield self._learn_batch(data, order_Q[first : first + size], vectors)
        self.network.eval()

    def _learn_batch(self, data: TrainingSet, requests: np.ndarray, vectors: VectorTable) -> Scored:
        """One step. The learning rate is lower in the first steps, and in proportion for a batch that is not full."""
        share = len(requests) / self._chosen.batch_requests * min(1.0, (self.steps + 1) / _WARM_UP_STEPS)
        self._optimiser.learning_rate = self._chosen.learning_rate * share
        batch = data.batch(requests, self._chosen.behaviours_max)
        learnt = train_step(self.network, data, batch, vectors.of, self._optimiser, loss_weights(self._chosen))
        self.steps += learnt.applied
        click, copr = (float(loss.detach()) for loss in (learnt.losses.click, learnt.losses.copr))
        return Scored(learnt.logits_BC.numpy(), batch.clicked_BC.numpy(), batch.mask_BC.numpy(), click, copr, learnt.applied)

    def state(self, about: Mapping[str, Any]) -> TrainerState:
        """The state between two rounds, from which `restore` continues."""
        return TrainerState(
            self.steps, self.network.state_dict(), self._optimiser.moments, np.zeros((0, 2)), self._chance.bit_generator.state, about
        )

    def restore(self, state: TrainerState) -> None:
        """Continues from a state of a learner with the same network and choices."""
        self.network.load_state_dict(dict(state.weights))
        self._optimiser.restore(state.moments)
        self._chance.bit_generator.state = dict(state.generator)
        self.steps = state.step
