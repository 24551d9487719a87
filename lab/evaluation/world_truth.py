"""The synthetic world as an evaluation set: its training set, the held-out users, and the measures of their rankings.

`join_world` makes the training set from the world's columns, because histories of 10^5 behaviours are too long for an event each. It equals what
`join_events` makes of the world's events (a test compares them).

Measures use the true click probability, so none contains the noise of drawn clicks.

    gauc      expected AUC over candidates that are drawn as those of impressions are (half from the user's interests), weighted by expected clicks
    gauc_new  the same over the candidates that are not in the user's history
    gauc_buy  the same for purchases instead of clicks, ranked by the model's second task; gauc_buy_by_click: ranked by its click
    hr_at_100 share of the ten candidates of highest true eCPM, among 2,000 of the catalogue, that are in the model's hundred best
    ctr, rpm  of a cascade: the model's hundred best, of these the ten of highest true eCPM; their mean click probability, and what they earn per 1,000

Arrays: U users, H behaviours of all users, C candidates, T tasks.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch

from lab.catalogues.world import QUALITY_ATTRIBUTES, SIGNALS, World, WorldSize
from lab.catalogues.world_catalogue import FIRST_ITEM_ID, FIRST_USER_ID, KINDS, NOW_MS, WorldCatalogue
from schemas.features import FeatureSchema, Scope, encode_features
from schemas.ids import Id
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.ranker.spec import encode_items
from schemas.model.spec import ModelSpec
from streams.training.histories import Histories, fold_users
from streams.training.impressions import Events, TrainingSet, join_table
from streams.training.item_table import ItemTable, build_item_table
from streams.training.measures import UserValues, best_columns, expected_aucs, hit_rates, teachers_choice
from streams.training.questions import ask

# The features that a model without asynchronous inference can afford at ranking time: one of the user's six facets, and no style, trait or occasion
# of the item. In the paper, asynchronous inference has up to 7 times the user features and 3 times the item features (section 5.2.1).
CHEAP_FEATURES = frozenset(
    {"facet_0", "price_level", "category", "price", "bid", "picture", *(f"attribute_{n}" for n in range(QUALITY_ATTRIBUTES))}
)
PRE_RANKED, SHOWN, RELEVANT = 100, 10, 10
NEAR_CANDIDATES, ANY_CANDIDATES = 200, 2_000
MORE_CANDIDATES = 0.15
_SPARED_SHARE = 0.4  # of the held-out users, the first ones: no measure uses them, so that choices can
_NEAR, _ANY = 21, 22  # numbers of independent random streams of the world
_CONTEXT = {"hour": f"h{NOW_MS // 3_600_000 % 24}"}


@dataclass(frozen=True)
class WorldTruth:
    """A world, the held-out users who are measured, and their candidates: `near` for GAUC, `anywhere` (with 15% more at its end) for HR and the cascade."""

    catalogue: WorldCatalogue

    @property
    def schema(self) -> FeatureSchema:
        return self.catalogue.schema

    @functools.cached_property
    def events(self) -> Events:
        """The world's events in memory, in the form that a reader of the topics gives to training."""
        c = self.catalogue
        return Events(list(c.items()), list(c.new_items()), list(c.users()), list(c.behaviours()), list(c.impressions()))

    @functools.cached_property
    def held_out(self) -> np.ndarray:
        """User numbers, int64 [U]. Held-out users are in no impression."""
        size = self.catalogue.world.size
        return np.arange(size.users + round(_SPARED_SHARE * size.held_out), size.users + size.held_out)

    @property
    def user_ids(self) -> list[Id]:
        """Their ids, [U]."""
        return (FIRST_USER_ID + self.held_out).tolist()

    @functools.cached_property
    def near(self) -> np.ndarray:
        """Item numbers int64 [U, C], drawn as those of impressions are: every second one from the user's interests."""
        world, rng = self.catalogue.world, self.catalogue.world.rng(_NEAR)
        shape = (len(self.held_out), NEAR_CANDIDATES)
        interests_UQ = world.users.interests_UQ[self.held_out]
        chosen_UC = np.take_along_axis(interests_UQ, rng.integers(0, interests_UQ.shape[1], shape), 1)
        liked_UC, other_UC = world.draw_in_category(rng, chosen_UC), rng.integers(0, world.size.items, shape)
        return np.where(np.arange(shape[1]) % 2 == 0, liked_UC, other_UC)

    @functools.cached_property
    def anywhere(self) -> np.ndarray:
        """Item numbers int64 [U, C] without repetition from the whole catalogue, in random order; the last 15% are those of "+15% candidates"."""
        world, rng = self.catalogue.world, self.catalogue.world.rng(_ANY)
        wanted = min(round(ANY_CANDIDATES * (1 + MORE_CANDIDATES)), world.size.items)
        return np.stack([rng.choice(world.size.items, wanted, replace=False) for _ in self.held_out])

    @property
    def counted(self) -> int:
        """How many columns of `anywhere` a model ranks; the others are only ranked with "+15% candidates"."""
        return min(ANY_CANDIDATES, self.anywhere.shape[1])

    def probabilities(self, rows_UC: np.ndarray) -> np.ndarray:
        """The true click probability of each held-out user's candidates, float64 [U, C]."""
        return self.catalogue.world.click_probability(self.held_out, rows_UC)

    def questions(self, data: TrainingSet, rows_UC: np.ndarray) -> TrainingSet:
        """The held-out users' candidates as questions to a network."""
        return ask(data, self.user_ids, NOW_MS, FIRST_ITEM_ID + rows_UC, _CONTEXT)

    def bids(self, rows_UC: np.ndarray) -> np.ndarray:
        """The bids of candidates, [U, C]."""
        return self.catalogue.world.items.bid_I[rows_UC]

    @functools.cached_property
    def near_is_new(self) -> np.ndarray:
        """Which of `near` are not in the user's history, bool [U, C]."""
        histories = self.catalogue.world.histories
        return ~np.stack([np.isin(near, histories.items_of(user)) for near, user in zip(self.near, self.held_out.tolist(), strict=True)])


@functools.lru_cache(2)
def open_truth(seed: int, size: WorldSize, signals: tuple[tuple[str, float], ...] = ()) -> WorldTruth:
    """The world of a seed and size, with some weights of its signals changed. Cached, because every cell of a process needs it."""
    return WorldTruth(WorldCatalogue(World(seed, size, SIGNALS | dict(signals))))


def measure_near(truth: WorldTruth, logits_UC: np.ndarray) -> dict[str, UserValues]:
    """gauc and gauc_new of logits [U, C] of `near`."""
    probability_UC = truth.probabilities(truth.near)
    return {"gauc": expected_aucs(logits_UC, probability_UC), "gauc_new": expected_aucs(logits_UC, probability_UC, truth.near_is_new)}


def measure_purchases(truth: WorldTruth, logits_UCT: np.ndarray) -> dict[str, UserValues]:
    """gauc_buy and gauc_buy_by_click of logits [U, C, 2] of `near`: purchases ranked by the second task, and by the click."""
    world = truth.catalogue.world
    bought_UC = truth.probabilities(truth.near) * world.purchase_probability(truth.held_out, truth.near)
    return {name: expected_aucs(logits_UCT[..., t], bought_UC) for t, name in ((1, "gauc_buy"), (0, "gauc_buy_by_click"))}


def measure_any(truth: WorldTruth, logits_UC: np.ndarray) -> dict[str, UserValues]:
    """hr_at_100 of click logits [U, C] of `anywhere`, without the 15% more candidates; ctr and rpm of the cascade without and with them (`_more`). All
    models are ranked by click probability times bid, whatever their `rank_by` is."""
    counted, rows_UC = truth.counted, truth.anywhere
    probability_UC, bid_UC = truth.probabilities(rows_UC), truth.bids(rows_UC)
    ecpm_UC = probability_UC * bid_UC
    scores_UC = bid_UC / (1 + np.exp(-logits_UC.astype(np.float64)))
    relevant_UC = teachers_choice(ecpm_UC[:, :counted], RELEVANT)
    found = {"hr_at_100": hit_rates(scores_UC[:, :counted], relevant_UC, PRE_RANKED)}
    for suffix, most in (("", counted), ("_more", rows_UC.shape[1])):
        ctr_U, rpm_U = run_cascade(scores_UC[:, :most], probability_UC[:, :most], bid_UC[:, :most])
        found |= {f"ctr{suffix}": _equal_weights(ctr_U), f"rpm{suffix}": _equal_weights(1_000 * rpm_U)}
    return found


def run_cascade(scores_UC: np.ndarray, probability_UC: np.ndarray, bid_UC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(clicks, revenue) per shown item of each user, [U] each: the ten of highest true eCPM among the hundred of highest score."""
    ours_UK = best_columns(scores_UC, PRE_RANKED)
    click_UK, ecpm_UK = (np.take_along_axis(of, ours_UK, 1) for of in (probability_UC, probability_UC * bid_UC))
    shown_US = best_columns(ecpm_UK, SHOWN)
    return np.take_along_axis(click_UK, shown_US, 1).mean(1), np.take_along_axis(ecpm_UK, shown_US, 1).mean(1)


def _equal_weights(value_U: np.ndarray) -> UserValues:
    return UserValues(value_U.astype(float), np.ones(len(value_U)))


# --- the training set -----------------------------------------------------------------------------------------------------


def join_world(catalogue: WorldCatalogue, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> TrainingSet:
    """All impressions of a world, with every item in the table."""
    items = build_item_table(spec, w_hash_KM, catalogue.items(), catalogue.new_items(), None)
    data = join_table(spec, items, fold_users(catalogue.users(), ()), catalogue.impressions())
    histories = _with_behaviours(data.histories, catalogue, items, spec)
    return dataclasses.replace(data, histories=histories, history_end_Q=histories.ends_as_of(data.user_Q, data.time_Q))


def _with_behaviours(histories: Histories, catalogue: WorldCatalogue, items: ItemTable, spec: ModelSpec) -> Histories:
    columns = catalogue.behaviour_columns
    of_users = np.argsort(columns["user"], kind="stable")
    columns = {name: values[of_users] for name, values in columns.items()}
    end_U = np.cumsum(catalogue.world.histories.length_U)
    item_H, ids = columns["item"], list(range(FIRST_ITEM_ID, FIRST_ITEM_ID + catalogue.item_count))
    dwell_X, place_H = np.unique(columns["dwell_s"], return_inverse=True)
    dwells = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.BEHAVIOUR), [{"dwell_s": d} for d in dwell_X.tolist()]))
    kinds = torch.tensor([encode_kind(spec, kind) for kind in KINDS])
    return dataclasses.replace(
        histories,
        begin_U=end_U - catalogue.world.histories.length_U,
        end_U=end_U,
        time_H=columns["time_ms"],
        item_H=items.items_of(ids)[item_H],
        bucket_H=torch.from_numpy(encode_item_buckets(spec, ids)[item_H]),
        token_H=torch.from_numpy(encode_items(spec.ranker, ids)[item_H]) if spec.ranker else histories.token_H,
        kind_H=kinds[torch.from_numpy(columns["bought"].astype(np.int64))],
        features=map_tensors(dwells, lambda t: t[torch.from_numpy(place_H)]),
    )
