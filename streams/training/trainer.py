"""Fits a network to a training set, by default with COPR (Eq. 10): `fit` is the loop, `Learner.take_step` one step of it.

Here: schedule, the requests of a step, the vectors of behaviours. Not here: the optimiser (adam.py), the mean of several fits (soup.py), where data
comes from (topic_events.py), files of a model (schemas/model/checkpoint.py).

The async vectors of *candidates* are computed with gradient in every step. Those of *behaviours* (protocol D1) are inputs, as in serving: they come from a
table of all item rows, which is renewed every `VECTORS_EVERY` steps without gradient.
Deterministic: the same data, seed and steps give the same weights on one machine; a limit in seconds gives up that (it sets the schedule). Measured on the
synthetic world (20,000 items, 12,000 impressions of 24; HR@100 of 200 users kept out, 10,000 candidates; 300 steps of 32 requests at 4e-3 = 7 s of one core;
another seed or learning rate, 2e-3 to 8e-3, moves HR by .01; popularity has .16):

    COPR weight, EPSILON   click alone   1, .01   .1, .01   .3, .1   1, .1   .1, .3   .3, .3   1, .3   .3, 1   1, 1
    HR@100                 .550          .494     .537      .597     .608    .610     .660     .691    .655    .697
    click cross-entropy    .355          .389     .358      .421     .503    .421     .522     .710    .524    .785

1,000 steps: click alone .562, (.3, .3) .687, (1, .3) .710. Batches of 16 or 64 requests for the same time: no difference. EPSILON as a multiple of the
request's mean eCPM was worse (.52 at 1, .46 at 2). A heavier COPR ranks better here and inflates y. On purchases of a real shop (online_retail, 200 steps,
recall@100), (1, .3) is worse than click alone: .160 against .187. (.3, .3) has .185, so it is the default. `calibrated` leaves the level of y to the clicks
(losses.py). It is off by default, because correct probabilities cost too many of the best items. In the demo's world (10,000 candidates, 600 steps, seed 0)
.3 then has .503 and .03 has .536, against .656 without it.

Arrays: B requests, C shown items, Q requests, G requests of a group, L behaviours, R item rows, D width, T tasks.
Source: AIF, section 5.1 (Adam, one loss, one epoch of billions of rows at 1e-4, weight decay 1e-5). Differs: cross-entropy besides COPR; some thousand steps
instead of an epoch, with a higher rate that falls, and 1e-6.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from infra.clock import DAY_MS
from schemas.errors import Misconfigured
from schemas.model.inputs import UserInputs, map_tensors
from schemas.model.network import AifNetwork
from schemas.model.score import SHOWN_OFFSET
from schemas.model.spec import ModelSpec
from schemas.train_choices import LIKENESS, TrainChoices
from streams.training.adam import Adam
from streams.training.impressions import Batch, TrainingSet
from streams.training.likeness import forget_items, keep_to_likeness
from streams.training.losses import batch_losses
from streams.training.soup import Soup
from streams.training.trainer_state import StateFile, TrainerState

T = TypeVar("T")
VECTORS_EVERY = 20
GRADIENT_NORM_MAX = 10.0
WARM_RATE = 0.25  # of a fit's learning rate: of what continues from weights that are good already
_WARM_UP = 0.03  # share of the run in which the learning rate rises
_HALVINGS_MAX = 40.0  # so that the oldest request can still be drawn where the newest are fewer than a batch
LOSSES = ("loss", "copr", "click")  # kept of each step
SHORT = 32  # histories up to this length are one group


@dataclass(frozen=True)
class TrainReport:
    """What a run did, with all its fits; losses are means over the last tenth of the last one: `loss`, which is minimised, and two of its parts."""

    steps: int
    seconds: float
    loss: float
    copr: float
    click: float


@dataclass(frozen=True)
class Learnt:
    """A step and its batch: the click logits float32 [B, C] from before the step, the clicks, and which places hold an item. Its losses, and whether it was
    taken. A gradient that is not finite changes nothing."""

    logits_BC: np.ndarray
    clicked_BC: np.ndarray
    mask_BC: np.ndarray
    loss: float
    copr: float
    click: float
    applied: bool


Forward = Callable[[AifNetwork, TrainingSet, Batch, Tensor], Tensor]


def task_logits(network: AifNetwork, data: TrainingSet, batch: Batch, vectors_RD: Tensor) -> Tensor:
    """Logits of every task [B, C, T], the click first. The user half runs once per request, the item half once per distinct row; `vectors_RD` are
    those of the behaviours' items (`item_vectors`)."""
    distinct_R, place_BC = torch.unique(batch.rows_BC.clamp(min=0), return_inverse=True)
    shown_RD, bridge_RN = network.item_rows(map_tensors(data.items.inputs, lambda t: t[distinct_R]))
    vectors_BLD = vectors_RD[batch.rows_BL.clamp(min=0)] * (batch.rows_BL >= 0).unsqueeze(-1)
    users = UserInputs(batch.users.profile, dataclasses.replace(batch.users.behaviours, vectors_BLD=vectors_BLD))
    rows = data.candidate_rows(batch, F.embedding(place_BC, shown_RD), F.embedding(place_BC, bridge_RN))
    groups = group_by_length(users.behaviours.mask_BL)
    if len(groups) == 1:
        return network.joint_logits(network.user_states(users), rows)
    parts = [network.joint_logits(network.user_states(take_users(users, g)), map_tensors(rows, itemgetter(g))) for g in groups]
    return torch.cat(parts)[torch.cat(groups).argsort()]


def task_offsets(spec: ModelSpec) -> Tensor:
    """Offsets of the loss for the logits of the tasks besides the click, [T - 1]."""
    return torch.tensor([SHOWN_OFFSET if place == spec.shown_task else 0.0 for place in range(len(spec.tasks) - 1)])


@torch.no_grad()
def item_vectors(network: AifNetwork, data: TrainingSet) -> Tensor:
    """Async vectors of every item row [R, D], without gradient."""
    distinct_R, place_R = data.items.distinct_inputs
    return network.item_rows(map_tensors(data.items.inputs, lambda t: t[distinct_R]))[0][place_R]


class Share(Protocol):
    """The value of the process that leads a team, in every process of it."""

    def __call__(self, value: T, /) -> T: ...


def _keep_own(value: T, /) -> T:
    return value


@dataclass(frozen=True)
class Team:
    """How a fit shares its work with other processes (team.py). All of them draw the same batches and take the same steps.

    logits  logits of all tasks [B, C, T] of the whole batch with the gradient of this process's share
    share   gives all of them the leader's share of the run, because clocks differ, and the state that only the leader has kept
    """

    logits: Forward = task_logits
    share: Share = _keep_own


ALONE = Team()


class Learner:
    """A network, its optimiser and its generator: what a fit and a follower take their steps with, and keep."""

    def __init__(self, network: AifNetwork, chosen: TrainChoices, logits: Forward = task_logits) -> None:
        self.network, self.chosen, self._logits = network, chosen, logits
        self._chance = np.random.default_rng(chosen.seed)
        self._optimiser = Adam(network.parameters(), chosen.learning_rate)

    def take_step(self, data: TrainingSet, requests: np.ndarray, vectors_RD: Tensor, rate: float) -> Learnt:
        """One step from the requests with these numbers, [B], at `rate` times the learning rate."""
        batch = data.batch(requests)
        shown_task = self.network.spec.shown_task
        if shown_task is not None:
            batch = data.with_negatives(batch, requests, self._chance, self.chosen.negatives)
        logits_BCT = self._logits(self.network, data, batch, vectors_RD)
        others_BCT = logits_BCT[..., 1:] + task_offsets(self.network.spec)
        losses = batch_losses(self.chosen, logits_BCT[..., 0], batch, self.network.spec.rank_by, others_BCT, shown_task)
        self._optimiser.zero_grad()
        losses.total.backward()
        if self.chosen.learns == LIKENESS:
            keep_to_likeness(self.network)
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_NORM_MAX)
        applied = bool(norm.isfinite())
        if applied:
            self._optimiser.learning_rate = self.chosen.learning_rate * rate
            self._optimiser.step()
        total, copr, click = (float(loss.detach()) for loss in (losses.total, losses.copr, losses.click))
        return Learnt(logits_BCT[..., 0].detach().numpy(), batch.clicked_BC.numpy(), batch.shown_mask.numpy(), total, copr, click, applied)

    def state(self, step: int, about: Mapping[str, Any]) -> TrainerState:
        """What `restore` continues from."""
        return TrainerState(step, self.network.state_dict(), self._optimiser.moments, self._chance.bit_generator.state, about)

    def restore(self, state: TrainerState) -> None:
        """Continues from the state of a learner with the same network and choices."""
        self.network.load_state_dict(dict(state.weights))
        self._optimiser.restore(state.moments)
        self._chance.bit_generator.state = dict(state.generator)


class _Run(Learner):
    """A fit between two steps: everything that the next step depends on."""

    def __init__(self, network: AifNetwork, data: TrainingSet, chosen: TrainChoices, team: Team) -> None:
        super().__init__(network, chosen, team.logits)
        self._data, self._vectors_RD = data, torch.zeros(0)
        self.losses: list[tuple[float, ...]] = []  # as in LOSSES

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    def advance(self, share: float) -> None:
        """One step at that share of the run."""
        if self.step % VECTORS_EVERY == 0:
            self._vectors_RD = item_vectors(self.network, self._data)
        requests = draw_requests(self._chance, self._data.time_Q, self.chosen, share, self.step)
        learnt = self.take_step(self._data, requests, self._vectors_RD, schedule(share, self.chosen.hold))
        self.losses.append((learnt.loss, learnt.copr, learnt.click))

    def keep(self, states: StateFile, soup: Soup) -> None:
        """Writes what to continue from. Only where `VECTORS_EVERY` divides the step: there the vectors are renewed anyway."""
        losses = np.array(self.losses, np.float64).reshape(-1, len(LOSSES))
        kept = soup.state() if self.chosen.fits > 1 else {}
        states.write(dataclasses.replace(self.state(self.step, states.about), losses=losses, soup=kept))

    def go_on(self, state: TrainerState) -> None:
        """`restore`, with the losses so far."""
        self.restore(state)
        self.losses = [tuple(losses) for losses in state.losses.tolist()]


def fit(
    network: AifNetwork,
    data: TrainingSet,
    chosen: TrainChoices,
    progress: Callable[[float], None] = lambda _: None,
    states: StateFile | None = None,
    team: Team = ALONE,
) -> TrainReport:
    """Trains in place. `progress` gets the share of the run done, 0 to 1. With `states` it continues from the state there, and keeps it.

    Raises Misconfigured (`nothing_to_learn`, `diverged`).
    """
    if len(data) == 0:
        raise Misconfigured(
            "nothing_to_learn", "no impression shows an item that the item topics describe; publish impressions and their items first"
        )
    if chosen.learns == LIKENESS:
        forget_items(network)
    started, soup = time.monotonic(), Soup(network)
    kept = team.share(states.read() if states is not None else None)
    if kept is not None:
        soup.restore(kept.soup)
    network.train()
    while soup.fits < chosen.fits:
        run = _Run(network, data, dataclasses.replace(chosen, seed=chosen.seed + soup.fits), team)
        if kept is not None:
            run.go_on(kept)
            kept = None
        else:
            network.load_state_dict(soup.start)
        _advance_to_end(run, chosen, lambda share: progress((soup.fits + share) / chosen.fits), states, team, soup)
        losses = _last_losses(run.losses, chosen)
        soup.add(network, run.step)
    network.load_state_dict(soup.mean)
    network.eval()
    return TrainReport(soup.steps, time.monotonic() - started, *losses)


def _advance_to_end(
    run: _Run, chosen: TrainChoices, progress: Callable[[float], None], states: StateFile | None, team: Team, soup: Soup
) -> None:
    """Takes the steps of one fit, and keeps its state."""
    saved, started = run.step, time.monotonic()
    while (share := team.share(_share(chosen, run.step, time.monotonic() - started))) < 1.0:
        if states is not None and run.step % VECTORS_EVERY == 0 and run.step - saved >= states.every_steps:
            run.keep(states, soup)
            saved = run.step
        run.advance(share)
        progress(share)


def _last_losses(losses: Sequence[tuple[float, ...]], chosen: TrainChoices) -> list[float]:
    """Means over the last tenth of the steps whose losses are finite. Raises Misconfigured (`diverged`) where none of them has any."""
    last = np.array(losses[-max(1, len(losses) // 10) :])
    finite = last[np.isfinite(last).all(axis=1)]
    if not len(finite):
        raise Misconfigured(
            "diverged",
            f"the losses of the last {len(last)} steps are not finite, so the weights are of no use; "
            f"choose a learning_rate below {chosen.learning_rate:g}",
        )
    return [float(loss) for loss in finite.mean(axis=0)]


def _share(chosen: TrainChoices, step: int, seconds: float) -> float:
    """How much of a fit is done: by its steps, or where those are not chosen by its seconds."""
    return step / chosen.steps if chosen.steps else seconds / chosen.seconds


def schedule(share: float, hold: float = 0.0) -> float:
    """Warm-up, the highest rate until the share `hold` of the run, then half a cosine down to a hundredth."""
    fall = max(0.0, share - hold) / (1 - hold)
    return min(1.0, 0.05 + share / _WARM_UP) * (0.505 + 0.495 * math.cos(math.pi * fall))


def draw_requests(chance: np.random.Generator, time_Q: np.ndarray, chosen: TrainChoices, share: float, step: int) -> np.ndarray:
    """Different requests for one step, at that share of the run; all of them if there are no more than a batch takes.

    Each pass over the requests has an order of its own, and a step takes its part of it. With an independent draw in every step, a twentieth of them would be
    in none of three passes. With `half_life_days` a request of age a (before the newest) is drawn with chance 2^(-share a / half life) instead. So all are
    alike at first, and then ever more of the newest are drawn. A fit that learns all alike learns the mean of its whole period, but serves the time after it.
    For example, the first customers of a shop are all new to it, so repeats would weigh too little. Drawing only the newest would leave few requests to learn
    the rest from. The served model reads no request's time.
    """
    count = min(chosen.batch_requests, len(time_Q))
    if not chosen.half_life_days:
        number, part = divmod(step, len(time_Q) // count)
        return _order_of_pass(chosen.seed, number, len(time_Q))[part * count : (part + 1) * count]
    halvings_Q = (time_Q.max() - time_Q) / (chosen.half_life_days * DAY_MS)
    weight_Q = np.exp2(-np.minimum(share * halvings_Q, _HALVINGS_MAX))
    return chance.choice(len(time_Q), count, replace=False, p=weight_Q / weight_Q.sum())


@functools.lru_cache(maxsize=1)
def _order_of_pass(seed: int, number: int, requests: int) -> np.ndarray:
    return np.random.default_rng([seed, number]).permutation(requests)


def group_by_length(mask_BL: Tensor) -> list[Tensor]:
    """Places of the requests, [G] each, shortest first; within a group the longest is less than twice the shortest (or all are short).

    A shop's longest history is twenty times its median: padded to the longest, four fifths of a batch's attention and similarities would be computed on
    padding. No result depends on padding, so logits are the same up to rounding.
    """
    level_B = (mask_BL.sum(dim=1).clamp(min=SHORT) / SHORT).log2().floor()
    return [torch.nonzero(level_B == level).flatten() for level in level_B.unique()]


def take_users(users: UserInputs, group_G: Tensor) -> UserInputs:
    """Those of one group, padded to its longest history (behaviours are right-aligned)."""
    longest = max(1, int(users.behaviours.mask_BL[group_G].sum(dim=1).max()))
    profile = map_tensors(users.profile, lambda t: t[group_G])
    return UserInputs(profile, map_tensors(users.behaviours, lambda t: t[group_G, -longest:]))
