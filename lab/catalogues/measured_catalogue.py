"""Files of others, read as a mapping says, as a catalogue to measure on: with held-out users, and with events after the evaluation time.

Here: who is measured, with which candidates and right answers. Not here: the events of the files (infra/data/mapped_catalogue.py), changed prices and new items
(item_changes.py).
Invariant: held-out users have a history before the evaluation time and a right answer after it; training may use their earlier impressions.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from infra.clock import DAY_MS
from infra.data.interactions import Log
from infra.data.mapped_catalogue import MappedCatalogue
from infra.data.periods import HeldOutPeriod, cut_period
from infra.data.sampled_impressions import KnownUsers, recent_items, taken_items
from lab.catalogues.catalogue import Evaluation, HeldOutUser, title_of
from lab.catalogues.item_changes import copy_items, drift_items
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem
from schemas.ids import Id
from schemas.model.score import bid_exponent
from schemas.train_choices import LIKENESS

_EVALUATION_SEED = 1


class MeasuredCatalogue(MappedCatalogue):
    """A `Catalogue` of files."""

    @property
    def impression_count(self) -> None:
        """Not known before they are sampled."""

    def title(self, features: Mapping[str, Any]) -> str:
        return title_of(self.schema, features)

    def shown_later(self) -> Iterator[ImpressionRecord]:
        """The requests of the period that is measured, where the mapping has impressions: no training may see them."""
        if self.sources.shown is not None and self.mapping.holdout.hold_out:
            yield from self.shown_in(self.sources.now_ms, self.sources.end_ms)

    # --- later events ---

    def price_changes(self, n: int, seed: int) -> Iterator[ItemFeaturesUpdate]:
        by_bid, by_likeness = bid_exponent(self.model["rank_by"]) > 0, self.train.learns == LIKENESS
        yield from drift_items(self.sources, self.schema, by_bid, by_likeness, self.alive, n, seed)

    def arrivals(self, n: int, seed: int) -> Iterator[tuple[ItemFeaturesUpdate, NewItem | None]]:
        yield from copy_items(self.sources, self.alive, n, seed)

    # --- measure ---

    @property
    def log(self) -> Log:
        sources = self.sources
        shown = sources.shown_log if sources.shown is not None else None
        return Log(sources.item_rows.ids, sources.now_ms, sources.positives, sources.history, shown)

    def evaluation(self) -> Evaluation:
        found = self._evaluation(HeldOutPeriod(self.sources.now_ms, self.sources.end_ms), self.mapping.holdout.users_max)
        return self._require(found)

    def _require(self, found: Evaluation | None) -> Evaluation:
        if found is None:
            raise self.sources.reject(
                "[evaluation] from", "leaves no user to measure on: none has a history before it and a positive on a known item after it"
            )
        return found

    @cached_property
    def parts(self) -> list[HeldOutPeriod]:
        """The period that is measured, cut into windows like those that training looks ahead."""
        return cut_period(HeldOutPeriod(self.sources.now_ms, self.sources.end_ms), self.sources.window_ms())

    def evaluations(self) -> Iterator[Evaluation]:
        """The evaluation of each part, as of its beginning. Of one part it is `evaluation()`."""
        if len(self.parts) == 1:
            yield self.evaluation()
            return
        users_max = -(-self.mapping.holdout.users_max // len(self.parts))
        found = (self.until([part.start_ms])._evaluation(part, users_max) for part in self.parts)
        measured = (evaluation for evaluation in found if evaluation is not None)
        yield self._require(next(measured, None))
        yield from measured

    def _evaluation(self, part: HeldOutPeriod, users_max: int) -> Evaluation | None:
        """None if no user can be measured."""
        sources, holdout = self.sources, self.mapping.holdout
        positives, start, end = self.require_positives("measure on"), part.start_ms, part.end_ms
        if not holdout.hold_out:
            raise sources.reject("[evaluation] hold_out", "= false keeps nothing to measure on")
        recent = recent_items(positives, len(sources.item_rows.ids), start, holdout.pool_days)
        pool = self.alive if holdout.candidates == "all" else np.intersect1d(recent, self.alive)
        users = KnownUsers(positives, sources.history).takers(start, end, pool).tolist()
        if not users:
            return None
        rng = np.random.default_rng(_EVALUATION_SEED)
        if len(users) > users_max:
            users = sorted(rng.choice(users, users_max, replace=False).tolist())
        taken = taken_items(positives, users, start, end)
        relevant = {user: np.intersect1d(items, pool) for user, items in taken.items()}
        ids = [positives.user_ids[user] for user in users]
        histories, profiles = self._histories_of(ids), self.profiles_of(ids)
        held_out = tuple(
            self._held_out(rng, user_id, relevant[user], (pool, recent), histories[user_id], profiles.get(user_id, {}))
            for user, user_id in zip(users, ids, strict=True)
        )
        return Evaluation(held_out, self._popularity(start), "recall", start, holdout.k)

    def _held_out(
        self,
        rng: np.random.Generator,
        user: Id,
        relevant: np.ndarray,
        pools: tuple[np.ndarray, np.ndarray],
        history: Sequence[Behaviour],
        profile: Mapping[str, Any],
    ) -> HeldOutUser:
        ids = self.sources.item_rows.ids
        drawn = draw_candidates(rng, *pools, relevant, self.mapping.holdout.candidates_max).tolist()
        candidates = sorted(ids[place] for place in drawn)
        found = frozenset(ids[place] for place in relevant.tolist()) & frozenset(candidates)
        as_array = np.array(candidates, object if isinstance(candidates[0], str) else np.int64)
        return HeldOutUser(user, profile, history, as_array, found)

    def _histories_of(self, users: Sequence[Id]) -> Mapping[Id, Sequence[Behaviour]]:
        found: dict[Id, list[Behaviour]] = {user: [] for user in users}
        wanted_U = np.fromiter((user in found for user in self.sources.history.user_ids), bool)
        for behaviour in self.behaviours_where(wanted_U):
            found[behaviour.user_id].append(behaviour)
        return found

    def _popularity(self, now_ms: int) -> dict[Id, float]:
        """Positives of each item in the last days before a time."""
        ids = self.sources.item_rows.ids
        days = self.mapping.holdout.pool_days
        counts = self.sources.positives.counts(len(ids), now_ms - round(days * DAY_MS), now_ms)
        return {ids[place]: float(counts[place]) for place in np.flatnonzero(counts).tolist()}


def draw_candidates(rng: np.random.Generator, pool: np.ndarray, recent: np.ndarray, relevant: np.ndarray, most: int) -> np.ndarray:
    """At most `most` places of the pool, all of `relevant` (which are in it) among them, then those of `recent`, ascending. Items that
    users no longer take are easy to tell from the others, so a sample of all would flatter every score."""
    if len(pool) <= most:
        return pool
    others = rng.permutation(np.setdiff1d(pool, relevant, assume_unique=True))
    others = np.concatenate([others[np.isin(others, recent)], others[~np.isin(others, recent)]])
    return np.sort(np.concatenate([relevant[:most], others[: max(0, most - len(relevant))]]))
