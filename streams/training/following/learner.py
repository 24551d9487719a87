"""Score, then learn: the network, its optimiser and the generator of a follower, and what a round does to them.

Here: `OnlineLearner`. Not here: where rounds come from (followed_log.py, view.py), the step itself (training/trainer.py), the file of the state
(training/trainer_state.py). Every batch is scored with the weights of before it, and the scores are what progressive validation is made of: no
example is ever scored by weights that have seen it.
What learns: embeddings, bridges, every weight. What stays: multimodal embeddings (inputs) and W_hash (carried, never a parameter), so the
signatures that are in the index stay right. A round is learnt the same whenever it is learnt: batches are drawn by a generator that is part of the
state, and the vectors of behaviours are renewed at its beginning.

Arrays: B requests, C shown items.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.errors import Misconfigured
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.adam import Adam
from streams.training.impressions import TrainingSet
from streams.training.losses import LossWeights, loss_weights
from streams.training.trainer import VECTORS_EVERY, WARM_RATE, VectorTable, train_step
from streams.training.trainer_state import TrainerState

ONLINE_LOSS = LossWeights(copr=0.3, click=1.0)
# choices of [train] that mean nothing to what goes on from a model and does not end
OF_A_FIT = frozenset({"steps", "seconds", "start", "half_life_days"})
_DEFAULT_CHOICES = TrainChoices()
_WARM_UP_STEPS = 20  # the moments of a fresh optimiser know nothing yet


@dataclass(frozen=True)
class OnlineOptions:
    """How a follower learns. The rate is constant: what moves must be followed for ever.
    The loss is the one that checkpoints are trained with by default. (The teacher's probability instead of COPR recovered less in the moving world.)
    """

    learning_rate: float = 1e-3
    batch_requests: int = 32
    behaviours_max: int = 256
    seed: int = 0
    loss: LossWeights = field(default_factory=lambda: ONLINE_LOSS)


def online_options(given: Mapping[str, Any], of_file: TrainChoices = _DEFAULT_CHOICES) -> OnlineOptions:
    """The options of a follower: choices of [train] that were named, else those of the model's file, whose rate is a fit's (`WARM_RATE` of it is
    taken) and whose limits and start are a fit's business. Raises Misconfigured for a named one that means nothing to what never ends."""
    chosen = dataclasses.replace(of_file, learning_rate=of_file.learning_rate * WARM_RATE).replaced(given)
    if ended := sorted(OF_A_FIT & set(given)):
        raise Misconfigured("bad_train_choice", f"{ended[0]} means nothing with --follow, which goes on from a model and does not end")
    return OnlineOptions(chosen.learning_rate, chosen.batch_requests, chosen.behaviours_max, chosen.seed, loss_weights(chosen))


@dataclass(frozen=True)
class Scored:
    """Progressive scores of one batch: click logits [B, C] and losses before the step, clicks, which places hold an item."""

    logits_BC: np.ndarray
    clicked_BC: np.ndarray
    mask_BC: np.ndarray
    click: float
    copr: float
    applied: bool


class OnlineLearner:
    """`steps` counts those taken, `refused` those whose gradient was not finite."""

    def __init__(self, network: AifNetwork, options: OnlineOptions) -> None:
        self.network, self._options = network, options
        self._chance = np.random.default_rng(options.seed)
        self._optimiser = Adam(network.parameters(), options.learning_rate)
        self.steps = self.refused = 0

    def learn(self, data: TrainingSet) -> Iterator[Scored]:
        """Each batch of a round scored, then learnt."""
        self.network.train()
        size, vectors = self._options.batch_requests, VectorTable(self.network, data)
        order_Q = self._chance.permutation(len(data))
        for number, first in enumerate(range(0, len(data), size)):
            if number % VECTORS_EVERY == 0:
                vectors.renew()
            yield self._learn_batch(data, order_Q[first : first + size], vectors)
        self.network.eval()

    def _learn_batch(self, data: TrainingSet, requests: np.ndarray, vectors: VectorTable) -> Scored:
        """One step; fewer requests than a batch has move the weights by as much less."""
        share = len(requests) / self._options.batch_requests * min(1.0, (self.steps + 1) / _WARM_UP_STEPS)
        self._optimiser.learning_rate = self._options.learning_rate * share
        batch = data.batch(requests, self._options.behaviours_max)
        learnt = train_step(self.network, data, batch, vectors.of, self._optimiser, self._options.loss)
        self.steps += learnt.applied
        self.refused += not learnt.applied
        click, copr = (float(loss.detach()) for loss in (learnt.losses.click, learnt.losses.copr))
        return Scored(learnt.logits_BC.numpy(), batch.clicked_BC.numpy(), batch.mask_BC.numpy(), click, copr, learnt.applied)

    def state(self, about: Mapping[str, Any]) -> TrainerState:
        """What to go on from, between two rounds."""
        return TrainerState(
            self.steps, self.network.state_dict(), self._optimiser.moments, np.zeros((0, 2)), self._chance.bit_generator.state, about
        )

    def restore(self, state: TrainerState) -> None:
        """Goes on from a state of the same network and options."""
        self.network.load_state_dict(dict(state.weights))
        self._optimiser.restore(state.moments)
        self._chance.bit_generator.state = dict(state.generator)
        self.steps = state.step
