"""The synthetic world as data to measure on: its events as training reads them, held-out users, and what is true of their candidates.

Here: which candidates, and how much each user's ranking was worth. Not here: the world (infra/data/world.py), training, tables.
The truth is the true click probability, so no figure carries the noise of drawn clicks.
Held-out users are in two folds: by the tuning fold sizes, steps and learning rates are chosen, of the reported fold are the figures, and
nothing is chosen by it.

    gauc      expected AUC over candidates drawn as impressions are (half from the user's interests), weighted by expected clicks
    gauc_new  the same over candidates that the user has not met
    gauc_buy  the same of purchases instead of clicks, by the model's second task; gauc_buy_by_click: by its click
    hr_at_100 share of the ten best by true eCPM, of all candidates of the catalogue's sample, found in our hundred best by score
    ctr, rpm  the cascade: our hundred best, of them the teacher's ten best, what those are clicked and what they earn for 1,000 shown

Arrays: U users, C candidates, T tasks.
"""

import functools
from dataclasses import dataclass

import numpy as np

from infra.data.world import QUALITY_ATTRIBUTES, SIGNALS, World, WorldSize
from infra.data.world_catalogue import FIRST_ITEM_ID, FIRST_USER_ID, NOW_MS, WorldCatalogue
from schemas.features import FeatureSchema
from schemas.ids import Id
from streams.training.evaluation.questions import ask
from streams.training.evaluation.teacher import teachers_choice
from streams.training.impressions import Events, TrainingSet
from streams.training.metrics import UserValues, best_columns, expected_aucs, hit_rates, recalls_at_k

# What a sequential model can afford at ranking time: one facet of the user in six, no style, trait or occasion of the item (paper: the
# asynchronous model has up to 7 times the user features and 3 times the item features).
CHEAP_FEATURES = frozenset(
    {"facet_0", "price_level", "category", "price", "bid", "picture", *(f"attribute_{n}" for n in range(QUALITY_ATTRIBUTES))}
)
PRE_RANKED, SHOWN, RELEVANT = 100, 10, 10
MORE_CANDIDATES = 0.15
TUNING, REPORTED = "tuning", "reported"
_TUNING_SHARE = 0.4  # of the held-out users; the first ones
_NEAR, _ANY = 21, 22  # streams of random numbers of the world's generator
_CONTEXT = {"hour": f"h{NOW_MS // 3_600_000 % 24}"}


@dataclass(frozen=True)
class WorldTruth:
    """One world with its questions to one fold of users: `near` candidates for GAUC, `anywhere` (15% more than are counted) for HR and the cascade."""

    catalogue: WorldCatalogue
    near_candidates: int = 200
    any_candidates: int = 2_000
    fold: str = REPORTED

    @property
    def schema(self) -> FeatureSchema:
        return self.catalogue.schema

    @functools.cached_property
    def events(self) -> Events:
        """The catalogue's events, as a reader of the topics would have them."""
        c = self.catalogue
        return Events(list(c.items()), list(c.new_items()), list(c.users()), list(c.behaviours()), list(c.impressions()))

    @functools.cached_property
    def held_out(self) -> np.ndarray:
        """Rows of the fold's users, who are in no impression, [U]."""
        size = self.catalogue.world.size
        first = size.users + round(_TUNING_SHARE * size.held_out)
        return np.arange(size.users, first) if self.fold == TUNING else np.arange(first, size.users + size.held_out)

    @functools.cached_property
    def near(self) -> np.ndarray:
        """Item rows drawn as impressions are: every second from the user's interests."""
        world, rng = self.catalogue.world, self.catalogue.world.rng(_NEAR)
        shape = (len(self.held_out), self.near_candidates)
        interests_UQ = world.users.interests_UQ[self.held_out]
        chosen_UC = np.take_along_axis(interests_UQ, rng.integers(0, interests_UQ.shape[1], shape), 1)
        liked_UC, other_UC = world.draw_in_category(rng, chosen_UC), rng.integers(0, world.size.items, shape)
        return np.where(np.arange(shape[1]) % 2 == 0, liked_UC, other_UC)

    @functools.cached_property
    def anywhere(self) -> np.ndarray:
        """Different item rows of the whole catalogue, 15% more than are counted, in random order."""
        world, rng = self.catalogue.world, self.catalogue.world.rng(_ANY)
        wanted = min(round(self.any_candidates * (1 + MORE_CANDIDATES)), world.size.items)
        return np.stack([rng.choice(world.size.items, wanted, replace=False) for _ in self.held_out])

    @property
    def counted(self) -> int:
        """How many of `anywhere` a model ranks; the others are the 15% more."""
        return min(self.any_candidates, self.anywhere.shape[1])

    def probabilities(self, rows_UC: np.ndarray) -> np.ndarray:
        """The true click probability of each held-out user's candidates."""
        return self.catalogue.world.click_probability(self.held_out, rows_UC)

    def questions(self, data: TrainingSet, rows_UC: np.ndarray) -> TrainingSet:
        """The held-out users' candidates as questions to a network."""
        users: list[Id] = (FIRST_USER_ID + self.held_out).tolist()
        return ask(data, users, NOW_MS, FIRST_ITEM_ID + rows_UC, _CONTEXT)

    def bids(self, rows_UC: np.ndarray) -> np.ndarray:
        """The bids of candidates."""
        return self.catalogue.world.items.bid_I[rows_UC]

    @functools.cached_property
    def near_is_new(self) -> np.ndarray:
        """Which of `near` the user has not met."""
        histories = self.catalogue.world.histories.item_UH[self.held_out]
        return ~np.stack([np.isin(near, met) for near, met in zip(self.near, histories, strict=True)])


@functools.lru_cache(4)
def open_truth(seed: int, size: WorldSize, signals: tuple[tuple[str, float], ...] = (), fold: str = REPORTED) -> WorldTruth:
    """The world of a seed and size with some signals' weights changed; kept, because every cell of a process asks for it."""
    return WorldTruth(_open_catalogue(seed, size, signals), fold=fold)


@functools.lru_cache(2)
def _open_catalogue(seed: int, size: WorldSize, signals: tuple[tuple[str, float], ...]) -> WorldCatalogue:
    """One for both folds."""
    return WorldCatalogue(World(seed, size, SIGNALS | dict(signals)))


def measure_near(truth: WorldTruth, logits_UC: np.ndarray) -> dict[str, UserValues]:
    """gauc and gauc_new of the scores of `near`."""
    probability_UC = truth.probabilities(truth.near)
    return {
        "gauc": expected_aucs(logits_UC, probability_UC),
        "gauc_new": expected_aucs(logits_UC, probability_UC, truth.near_is_new),
    }


def measure_purchases(truth: WorldTruth, logits_UCT: np.ndarray) -> dict[str, UserValues]:
    """gauc_buy of a model of two tasks, by each of them: what the second is worth for what it is for."""
    world = truth.catalogue.world
    bought_UC = truth.probabilities(truth.near) * world.purchase_probability(truth.held_out, truth.near)
    return {name: expected_aucs(logits_UCT[..., t], bought_UC) for t, name in ((1, "gauc_buy"), (0, "gauc_buy_by_click"))}


def measure_any(truth: WorldTruth, logits_UC: np.ndarray) -> dict[str, UserValues]:
    """hr_at_100 and recall_at_100 of the counted part of `anywhere`; ctr and rpm of the cascade, also with 15% more candidates (`_more`)."""
    counted, rows_UC = truth.counted, truth.anywhere
    probability_UC, bid_UC = truth.probabilities(rows_UC), truth.bids(rows_UC)
    ecpm_UC = probability_UC * bid_UC
    scores_UC = bid_UC / (1 + np.exp(-logits_UC.astype(np.float64)))
    relevant_UC = teachers_choice(ecpm_UC[:, :counted], RELEVANT)
    found = {
        "hr_at_100": hit_rates(scores_UC[:, :counted], relevant_UC, PRE_RANKED),
        "recall_at_100": recalls_at_k(scores_UC[:, :counted], relevant_UC, PRE_RANKED),
    }
    for suffix, most in (("", counted), ("_more", rows_UC.shape[1])):
        ctr_U, rpm_U = run_cascade(scores_UC[:, :most], probability_UC[:, :most], bid_UC[:, :most])
        found |= {f"ctr{suffix}": _equal_weights(ctr_U), f"rpm{suffix}": _equal_weights(1_000 * rpm_U)}
    return found


def run_cascade(scores_UC: np.ndarray, probability_UC: np.ndarray, bid_UC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(clicks, revenue) per shown item of each user: our hundred best, of them the ten best of a ranking stage that knows the truth."""
    ours_UK = best_columns(scores_UC, PRE_RANKED)
    click_UK, ecpm_UK = (np.take_along_axis(of, ours_UK, 1) for of in (probability_UC, probability_UC * bid_UC))
    shown_US = best_columns(ecpm_UK, SHOWN)
    return np.take_along_axis(click_UK, shown_US, 1).mean(1), np.take_along_axis(ecpm_UK, shown_US, 1).mean(1)


def _equal_weights(value_U: np.ndarray) -> UserValues:
    return UserValues(value_U.astype(float), np.ones(len(value_U)))
