"""A catalogue from CSV, JSON-lines or Parquet files that a mapping file describes, as the events that any other publisher would send.

Here: events of schemas/events.py in publish order. Not here: reading the files (mapped_sources.py), which items a sampled request shows
(sampled_impressions.py), requests from a file (shown_impressions.py), the users who are held out (lab/catalogues).
Invariants: nothing from the evaluation time on is in items, behaviours or impressions. The same files and mapping give the same events.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from infra.clock import DAY_MS
from infra.data.interactions import Interactions
from infra.data.mapped_sources import MappedSources
from infra.data.mapping import DataMapping
from infra.data.periods import cut_of, spell_time
from infra.data.sampled_impressions import (
    REQUESTS_LEAST,
    ROUNDS_OF_FEW,
    SampledRequest,
    have_few_requests,
    plan_cuts,
    sample_moments,
    sample_requests,
)
from infra.data.spool import SpoolBounds, chunks
from infra.data.tables import Rejections, Tell
from schemas.decoding import describe_errors
from schemas.errors import Misconfigured
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.features import FeatureSchema, Scope
from schemas.ids import Id
from schemas.limits import TASKS_MAX
from schemas.model.score import BID, SHOWN, bid_exponent
from schemas.train_choices import FOR_MAPPED_DATA, FOR_SHOWN, LIKENESS, TrainChoices

_SHOWN_ROWS = 200  # of a batch, with four negatives for each
_HASH_BITS = 256  # the loss against the exact form is 57 / bits points of GAUC (docs/RESULTS.md)


class MappedCatalogue:
    """The events of the files under `directory`, of at most `limit` rows of each section. `tell` hears how many rows are read.

    `rejections` fills while events are read.
    """

    def __init__(
        self, mapping: DataMapping, directory: Path, limit: int | None = None, bounds: SpoolBounds | None = None, tell: Tell | None = None
    ) -> None:
        self.name, self.mapping = mapping.name, mapping
        self.sources = MappedSources(mapping, directory, limit, bounds or SpoolBounds(), tell)
        self._later: tuple[int, ...] = ()

    def until(self, later: Sequence[int]) -> Self:
        """The same files with the items and behaviours of `later` times, after the evaluation time, too: for questions at these times, not for training."""
        found = copy.copy(self)
        found._later = tuple(later)
        return found

    @property
    def told_until_ms(self) -> int:
        """The time up to which items and behaviours become events."""
        return max((self.sources.now_ms, *self._later))

    @property
    def rejections(self) -> Rejections:
        """Rows that became no event."""
        return self.sources.rejections

    @cached_property
    def schema(self) -> FeatureSchema:
        return self.sources.schema

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """Choices that suit the data, and the mapping's own. A model has a task for each outcome of the impressions. With impressions it also has a
        task that distinguishes shown items from the rest of the catalogue, which is then ranked by both."""
        impressions = self.mapping.impressions
        outcomes = tuple(impressions.outcomes) if impressions is not None else ()
        tasks = ("click", *outcomes, *((SHOWN,) if impressions is not None and len(outcomes) + 2 <= TASKS_MAX else ()))
        tasks = tuple(self.mapping.model.get("tasks", tasks))
        has_bid = bool(self.sources.roles["bid"])
        rank_by = " * ".join(("click", SHOWN, BID)[: 2 + has_bid]) if SHOWN in tasks else "ecpm" if has_bid else "click"
        chosen = {"rank_by": rank_by, "hash_bits": _HASH_BITS, **({"tasks": tasks} if len(tasks) > 1 else {}), **self.mapping.model}
        if untold := set(chosen.get("tasks", ())[1:]) - {*outcomes, SHOWN}:
            raise self.sources.reject("[model] tasks", f"names {min(untold)!r}, which no column of [impressions.outcomes] has")
        return chosen

    @property
    def train(self) -> TrainChoices:
        """Choices that suit the data, and the mapping's own. Where a bid is multiplied with them, scores have to be probabilities."""
        shown = self.mapping.impressions
        if shown is None:
            has_bid = bid_exponent(self.model["rank_by"]) > 0
            suited: dict[str, Any] = {**({"click": 1.0} if has_bid else {}), **({"learns": LIKENESS} if self.learns_likeness else {})}
            return FOR_MAPPED_DATA.replaced(suited).replaced(self.mapping.train)
        requests = max(1, round(_SHOWN_ROWS / self._items_per_request))
        with_teacher = {"copr": TrainChoices().copr} if shown.teacher_ecpm is not None else {}
        return FOR_SHOWN.replaced({"batch_requests": requests, **with_teacher}).replaced(self.mapping.train)

    @cached_property
    def learns_likeness(self) -> bool:
        """Whether a training should learn by likeness alone, because requests are few. That needs items that start as vectors of `taken_together`."""
        sources, start = self.sources, self.mapping.train.get("start", FOR_MAPPED_DATA.start)
        has_vectors = any(feature.taken_together is not None for feature in sources.item_features.values())
        if sources.shown is not None or not has_vectors or start != FOR_MAPPED_DATA.start:
            return False
        return have_few_requests(sources.positives, sources.history, self._cuts, sources.window_ms())

    @cached_property
    def _cuts(self) -> list[int]:
        """The times of sampled impressions, oldest first."""
        window = self.sources.window_ms()
        return plan_cuts(self.sources.usual_times[0], self.sources.now_ms, window, cut_of(self.mapping, window))

    @cached_property
    def _items_per_request(self) -> float:
        """The mean number of shown items of a request, in the first block of the log."""
        block = next(self.sources.shown_log.blocks(), None)
        if block is None:
            return 1.0
        return len(block) / len(np.unique(np.stack([block.user_X, block.time_X]), axis=1)[0])

    @property
    def item_count(self) -> int:
        return len(self.alive)

    @property
    def alive(self) -> np.ndarray:
        """Places of the items that exist when the events end, ascending."""
        return np.flatnonzero(self.sources.item_rows.created_I <= self.told_until_ms)

    # --- items ---

    def items(self) -> Iterator[ItemFeaturesUpdate]:
        if self.sources.states.changes_with_time:
            yield from self._items_over_time()
        elif "time" in self.mapping.items.roles:
            yield from self._items_of_rows()
        else:
            for places in chunks(self.alive):
                created = np.maximum(self.sources.item_rows.created_I[places], 0)
                features = self.sources.states.features_of(places, {})
                yield from self._updates(places, created.tolist(), features, self.sources.states.latest_rows(places))

    def _updates(
        self, places: np.ndarray, versions: Sequence[int], features: Sequence[dict[str, Any]], rows: np.ndarray
    ) -> Iterator[ItemFeaturesUpdate]:
        """Some items as events. One that no event can hold is noted as rejected: `rows` are the numbers of the rows of the items' file that it came from."""
        items = self.sources.item_rows
        for number, (place, version, raw) in enumerate(zip(places.tolist(), versions, features, strict=True)):
            try:
                yield ItemFeaturesUpdate(item_id=items.ids[place], version=version, features=raw)
            except ValidationError as error:
                items.rows_at(rows[number : number + 1]).reject(0, describe_errors(error))

    def _items_over_time(self) -> Iterator[ItemFeaturesUpdate]:
        """Every item at the first time of the grid after its creation, and again when a feature that depends on time has changed."""
        states, created_I = self.sources.states, self.sources.item_rows.created_I
        before: dict[str, np.ndarray] | None = None
        told_I = np.zeros(len(created_I), bool)
        for time_ms in (*self.sources.sample_times, *self._later):
            state = states.state_at(time_ms)
            changed_I = ~told_I
            for name, state_I in state.items():
                changed_I |= (state_I != before[name]).reshape(len(told_I), -1).any(axis=1) if before is not None else True
            changed_I &= created_I <= time_ms
            for places in chunks(np.flatnonzero(changed_I)):
                yield from self._updates(places, [time_ms] * len(places), states.features_of(places, state), states.latest_rows(places))
            told_I |= changed_I
            before = state

    def _items_of_rows(self) -> Iterator[ItemFeaturesUpdate]:
        """A file with several versions of an item: each row up to the evaluation time is one."""
        items = self.sources.item_rows
        for first, item_R, time_R in items.blocks():
            for part in chunks(np.flatnonzero(time_R <= self.told_until_ms)):
                features = self.sources.states.features_of_rows(items.rows_at(first + part), item_R[part])
                yield from self._updates(item_R[part], time_R[part].tolist(), features, first + part)

    def new_items(self) -> Iterator[NewItem]:
        embeddings = self.sources.embeddings
        ids = self.sources.item_rows.ids
        alive, known = {ids[place] for place in self.alive.tolist()}, frozenset(ids)
        places = np.array([p for item, p in embeddings.place.items() if item in alive or item not in known], np.int64)
        for chunk in chunks(places):
            for place, vector in zip(chunk.tolist(), embeddings.vectors(chunk), strict=True):
                if vector is not None:
                    yield NewItem(item_id=embeddings.ids[place], embedding=vector)

    # --- users ---

    def profiles_of(self, users: Sequence[Id]) -> dict[Id, dict[str, Any]]:
        """The features of some users: of their rows, and their statistics. Without those of whom nothing is known."""
        row_of = self.sources.profiles
        found: dict[Id, dict[str, Any]] = {}
        if known := [user for user in users if user in row_of]:
            rows = self.sources.user_rows.rows_at(np.array([row_of[user] for user in known]))
            found = dict(zip(known, rows.features(self.schema.of(Scope.USER)), strict=True))
        for user in users:
            if counted := self._numbers_by_user.get(user):
                found.setdefault(user, {}).update(counted)
        return found

    @cached_property
    def _numbers_by_user(self) -> Mapping[Id, dict[str, float]]:
        """The statistics of the users of whom the log tells anything before the evaluation."""
        found: dict[Id, dict[str, float]] = {}
        for name, (ids, numbers) in self.sources.user_numbers.items():
            for place in np.flatnonzero(numbers != self.schema.user_statistics[name].nothing).tolist():
                found.setdefault(ids[place], {})[name] = float(numbers[place])
        return found

    def users(self) -> Iterator[UserFeaturesRecord]:
        row_of = self.sources.profiles
        timed = self.mapping.users is not None and self.mapping.users.time is not None
        ids = list(dict.fromkeys([*row_of, *self._numbers_by_user]))
        for chunk in chunks(np.arange(len(ids))):
            for user, features in self.profiles_of([ids[number] for number in chunk.tolist()]).items():
                since_ms = int(self.sources.user_rows.time_R[row_of[user]]) if timed and user in row_of else None
                yield UserFeaturesRecord(user_id=user, features=features, time_ms=since_ms)

    def behaviours(self) -> Iterator[Behaviour]:
        yield from self.behaviours_where(None)

    def behaviours_where(self, wanted_U: np.ndarray | None) -> Iterator[Behaviour]:
        """The history as events, in order of time: of all users, or of some."""
        history = self.sources.history
        end, first = history.before(self.told_until_ms), 0
        for block in history.blocks(0, end):
            places = np.arange(len(block)) if wanted_U is None else np.flatnonzero(wanted_U[block.user_X])
            for part in chunks(places):
                yield from self._behaviours_of(block.take(part), first + part)
            first += len(block)

    def _behaviours_of(self, part: Interactions, rows: np.ndarray) -> Iterator[Behaviour]:
        """Some interactions of the history, which are its rows `rows`, as events."""
        features: list[dict[str, Any]] = [{}] * len(part)
        source, spool = self.mapping.behaviours, self.sources.history.rows
        if source is not None and source.features and spool is not None:
            told = self.sources.table(source).rows(spool.take(rows))
            features = told.features(self.schema.of(Scope.BEHAVIOUR))
        columns = (part.user_X, part.item_X, part.kind_X, part.time_X)
        for user, item, kind, time_ms, raw in zip(*(c.tolist() for c in columns), features, strict=True):
            yield Behaviour(user_id=part.user_ids[user], item_id=part.item_ids[item], kind=part.kinds[kind], time_ms=time_ms, features=raw)

    # --- impressions ---

    def impressions(self) -> Iterator[ImpressionRecord]:
        self.require_positives("learn from")
        if self.sources.shown is not None:
            yield from self.shown_in(0, self.sources.now_ms)
            return
        bids_at: dict[int, list[float]] = {}
        times = self.sources.sample_times  # features change at no other time
        for number, request in enumerate(self._sampled_requests()):
            told_ms = times[max(0, bisect_right(times, request.time_ms) - 1)]
            if told_ms not in bids_at:
                bids_at = {told_ms: self._bids_at(told_ms)}
            yield self._impression(number, request, bids_at[told_ms])

    def shown_in(self, first_ms: int, last_ms: int) -> Iterator[ImpressionRecord]:
        """The requests of a period with the bids of the evaluation time."""
        bids = dict(zip(self.sources.item_rows.ids, self._bids_at(self.sources.now_ms), strict=True))
        yield from self.sources.shown_requests.records((first_ms, last_ms), bids, self.schema.of(Scope.CONTEXT))

    def _sampled_requests(self) -> Iterator[SampledRequest]:
        sources, sampling = self.sources, self.mapping.sampling
        window = sources.window_ms()
        first, last = sources.usual_times
        cuts = self._cuts
        if not cuts and first == last:
            raise sources.reject(
                "[behaviours] time",
                f"gives every positive one time, {spell_time(first)}; a model learns which behaviours come after others: name a column of different times",
            )
        if not cuts:
            raise sources.reject(
                "[impressions] window_days",
                f"= {window / DAY_MS:g} days leaves no time to learn from before the evaluation at {spell_time(sources.now_ms)}: the positives are from "
                f"{spell_time(first)} to {spell_time(last)}; give a smaller one, or, if times are wrong, `where` in [behaviours] leaves rows out and "
                '20240301 is a date by time_format = "%Y%m%d"',
            )
        of_log, count = (sources.positives, sources.history, len(sources.item_rows.ids)), 0
        rounds = ROUNDS_OF_FEW if self.train.learns == LIKENESS else 1
        for request in sample_requests(*of_log, cuts, window, sampling, rounds):
            count += 1
            yield request
        more = max(0, REQUESTS_LEAST - count // rounds) if sampling.moments is None else sampling.moments
        yield from sample_moments(*of_log, sources.now_ms, window, sampling, more)

    def _impression(self, number: int, request: SampledRequest, bids: Sequence[float]) -> ImpressionRecord:
        ids = self.sources.item_rows.ids
        shown = [
            ShownItem(item_id=ids[item], position=position, bid=bids[item], clicked=clicked)
            for position, (item, clicked) in enumerate(zip(request.items.tolist(), request.clicked.tolist(), strict=True))
        ]
        user = self.sources.positives.user_ids[request.user]
        return ImpressionRecord(request_id=f"sampled-{number}", user_id=user, time_ms=request.time_ms, items=shown)

    def _bids_at(self, time_ms: int) -> list[float]:
        """The bid of every item as of a time; the default where it is missing or not positive, 1 without a bid."""
        bid = self.schema.bid
        if bid is None:
            return [1.0] * len(self.sources.item_rows.ids)
        numbers = self.sources.states.numbers_at(bid, time_ms)
        usable = np.isfinite(numbers) & (numbers > 0)
        return np.where(usable, numbers, self.schema.item(bid).default).tolist()

    def require_positives(self, purpose: str) -> Interactions:
        if not len(self.sources.positives):
            raise Misconfigured(
                "nothing_to_learn_from",
                f"{self.mapping.path.name}: there is nothing to {purpose}: give a section [impressions] with a file of shown and clicked "
                "items, or a section [behaviours] (user, item, time) to sample impressions from; docs/IMPORT.md shows both",
            )
        return self.sources.positives
