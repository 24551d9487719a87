"""A catalogue, as the rest of the system sees it: a schema, events in publish order, and held-out users to measure on.

Here: the `Catalogue` protocol and the result of `evaluation()`. Not here: opening one (open_catalogue.py), how a source becomes events
(world_catalogue.py, measured_catalogue.py), Kafka. Both sources give plain events of schemas/events.py, so publishing, training and
measuring work in the same way for both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from infra.data.interactions import Log
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, UserFeaturesRecord
from schemas.features import FeatureSchema
from schemas.ids import Id
from schemas.train_choices import TrainChoices


@dataclass(frozen=True)
class HeldOutUser:
    """A user to measure on: profile and history at the evaluation time, and the right answer, which is in no impression.

    In the synthetic world such a user is in no impression at all. Mapped data is split by time, and training may use their earlier impressions.

    Behaviours are oldest first. Candidates are an array of ids (int64, or object for text), and relevant ids are among them.
    """

    user_id: Id
    features: Mapping[str, Any]
    behaviours: Sequence[Behaviour]
    candidates: np.ndarray
    relevant: frozenset[Id]


@dataclass(frozen=True)
class Evaluation:
    """Held-out users, a simple score to beat, and the name of the measure.

    popularity  a score per item from the same impressions (clicks times bid); an item that is absent scores 0
    measure     "HR": share of the teacher's top 10 found in our top k; "recall": hits / min(k, relevant)
    """

    users: tuple[HeldOutUser, ...]
    popularity: Mapping[Id, float]
    measure: str
    now_ms: int
    k: int = 100

    def popularity_of(self, candidates: np.ndarray) -> np.ndarray:
        """The popularity of each candidate, [C] float64."""
        return np.array([self.popularity.get(item, 0.0) for item in candidates.tolist()])


class Catalogue(Protocol):
    """A source of events. Each call returns a new iterator, in publish order; the same source always yields the same events.

    `model` holds choices for a ModelSpec that suit this catalogue (for example {"rank_by": "click"}), `train` how one is trained.
    """

    @property
    def model(self) -> Mapping[str, Any]: ...

    @property
    def train(self) -> TrainChoices: ...

    @property
    def schema(self) -> FeatureSchema: ...

    @property
    def item_count(self) -> int: ...

    @property
    def impression_count(self) -> int | None:
        """How many impressions there are; None if that is not known before they are made."""

    def title(self, features: Mapping[str, Any]) -> str:
        """An item as people read it, made from its features."""

    def items(self) -> Iterator[ItemFeaturesUpdate]:
        """Every item. If features depend on time: several versions of an item, oldest first, with the time (ms) as version."""

    def new_items(self) -> Iterator[NewItem]:
        """The multimodal embedding of every item that has one."""

    def users(self) -> Iterator[UserFeaturesRecord]:
        """Profiles, held-out users included."""

    def behaviours(self) -> Iterator[Behaviour]:
        """Histories in order of time, held-out users included, nothing from after the evaluation time."""

    def impressions(self) -> Iterator[ImpressionRecord]:
        """The training data, nothing from after the evaluation time. Raises Misconfigured if there is nothing to learn from."""

    def price_changes(self, n: int, seed: int) -> Iterator[ItemFeaturesUpdate]:
        """n later versions of random items with another price and bid. A larger seed gives later versions."""

    def arrivals(self, n: int, seed: int) -> Iterator[tuple[ItemFeaturesUpdate, NewItem | None]]:
        """n items that are not in `items()`, each with its embedding if the catalogue has one."""

    @property
    def log(self) -> Log:
        """The log that plain scores read."""

    def evaluation(self) -> Evaluation:
        """Held-out users and the score to beat. Raises Misconfigured if there is nothing to measure on."""


def title_of(schema: FeatureSchema, features: Mapping[str, Any]) -> str:
    """An item as people read it: its title or name where it has one, else its category; with its price."""
    named = next((str(features[name]) for name in ("title", "name", "description") if features.get(name)), None)
    category = features.get(schema.sim_category) if schema.sim_category else None
    title = named or ("item" if category is None else f"{schema.sim_category} {category}")
    price = features.get("price")
    return f"{title}, {price:.2f}" if isinstance(price, int | float) else title
