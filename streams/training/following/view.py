"""Items and users as the log describes them up to one place, and the join of impressions with them as of the impressions' times.

Here: the fold of the context topics, and the part of it that a round needs. Not here: columns and batches (training/impressions.py), reading
(followed_log.py).
The join is the one of a training over the whole log, but for two differences that bound memory. Of an item's versions at or before `settled_ms` only the last
is kept, and statistics of users are those that `aif statistics` sent. Invariant: the result depends on the folded events and on `settled_ms`, not on when they
arrived. So a view that is rebuilt from the log gives the same join.
In memory: features and embedding of every item, and the newest behaviours of every user (schemas/limits.py).
"""

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem
from schemas.ids import Id
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile
from streams.training.impressions import Events, TrainingSet, join_table
from streams.training.item_table import build_item_table
from streams.training.user_statistics import ServedStatistics

_version, _time_ms = attrgetter("version"), attrgetter("time_ms")


_NO_RECORD: Mapping[str, Any] = {}
_NO_STATISTICS: Mapping[str, Any] = {}


class _Row(NamedTuple):
    """An item as of a version: the latest record and the latest statistics, which hold over it. Rows with the same one share the object."""

    version: int
    record: Mapping[str, Any]
    statistics: Mapping[str, Any]


class View:
    """Items and users for one model. `settled_ms`: no earlier impression is expected; one that still comes may find its items unknown."""

    def __init__(self, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> None:
        self._spec, self._w_hash_KM = spec, w_hash_KM
        self._items: dict[Id, list[_Row]] = {}  # ascending versions
        self._embeddings: dict[Id, NewItem] = {}
        self._users: dict[Id, UserHistory] = {}
        self._user_statistics: dict[Id, list[tuple[int, Mapping[str, Any]]]] = {}  # ascending times
        self._folded = 0  # takes the place of an offset: each record is folded once, those of a user in log order
        self.settled_ms = 0

    def fold(self, events: Events) -> None:
        """Folds a round's items, embeddings, profiles and behaviours. Its impressions change nothing."""
        for update in events.items:
            if update.op != "delete":
                self._fold_item(update)
        for new in events.new_items:
            vector: Any = np.array(new.embedding)  # a third of the list's memory
            self._embeddings[new.item_id] = NewItem.model_construct(item_id=new.item_id, embedding=vector)
        for user in events.users:
            self._folded += 1
            if user.op == "statistics":
                versions = self._user_statistics.setdefault(user.user_id, [])
                bisect.insort(versions, (user.time_ms or 0, user.features), key=itemgetter(0))
                del versions[: max(0, bisect.bisect_right(versions, self.settled_ms, key=itemgetter(0)) - 1)]
            else:
                fold_profile(self._users.setdefault(user.user_id, UserHistory()), self._folded, user.features, user.time_ms)
        for behaviour in events.behaviours:
            self._fold_behaviour(behaviour)

    def _fold_item(self, update: ItemFeaturesUpdate) -> None:
        """Puts a row into its place by version. Later rows that share the replaced record or statistics get the new one too. Records
        and statistics come in any order."""
        rows = self._items.setdefault(update.item_id, [])
        at = bisect.bisect_right(rows, update.version, key=_version)
        before = rows[at - 1] if at else _Row(-1, _NO_RECORD, _NO_STATISTICS)
        if update.op == "upsert":
            changed, row = "record", before._replace(version=update.version, record=update.features)
        elif at:
            changed, row = "statistics", before._replace(version=update.version, statistics={**before.statistics, **update.features})
        else:
            return  # of an item without a record
        begin = at - (before.version == update.version)
        replaced, new = getattr(before, changed), getattr(row, changed)
        for place in range(at, len(rows)):
            if getattr(rows[place], changed) is not replaced:
                break
            rows[place] = rows[place]._replace(**{changed: new})
        rows[begin:at] = [row]
        del rows[: self._settled(rows)]

    def _settled(self, rows: Sequence[_Row]) -> int:
        """How many of the first rows are no longer needed: all before the last one that is not after `settled_ms`."""
        return max(0, bisect.bisect_right(rows, self.settled_ms, key=_version) - 1)

    def _fold_behaviour(self, b: Behaviour) -> None:
        """A late event keeps its place in the log and gets the time of the event before it: times do not decrease within a user."""
        self._folded += 1
        history = self._users.setdefault(b.user_id, UserHistory())
        time_ms = max(b.time_ms, history.behaviours[-1].time_ms) if history.behaviours else b.time_ms
        fold_behaviours(history, self._folded, [BehaviourEvent(b.item_id, b.kind, time_ms, b.features)])

    def join(self, impressions: Sequence[ImpressionRecord]) -> TrainingSet:
        """The training set of a round."""
        users = self._users_of(impressions)
        met = {b.item_id for history in users.values() for b in history.behaviours}
        wanted = met.union(s.item_id for i in impressions for s in i.items)
        updates = [u for item in sorted(wanted, key=str) for u in self._versions_of(item)]
        new_items = [self._embeddings[item] for item in wanted if item in self._embeddings]
        table = build_item_table(self._spec, self._w_hash_KM, updates, new_items, None)
        served = ServedStatistics(self._spec.schema.user_statistics, self._user_statistics)
        return join_table(self._spec, table, users, impressions, statistics=served)

    def _versions_of(self, item: Id) -> Iterable[ItemFeaturesUpdate]:
        rows = self._items.get(item, [])
        for row in rows[self._settled(rows) :]:
            features = {**row.record, **row.statistics}
            yield ItemFeaturesUpdate.model_construct(item_id=item, version=row.version, features=features)

    def _users_of(self, impressions: Iterable[ImpressionRecord]) -> dict[Id, UserHistory]:
        """The users of the impressions, each with only the behaviours that a batch can read."""
        times: dict[Id, list[int]] = {}
        for impression in impressions:
            times.setdefault(impression.user_id, []).append(impression.time_ms)
        return {user: self._seen_between(self._users[user], min(of), max(of)) for user, of in times.items() if user in self._users}

    def _seen_between(self, history: UserHistory, first_ms: int, last_ms: int) -> UserHistory:
        begin, end = (bisect.bisect_left(history.behaviours, at, key=_time_ms) for at in (first_ms, last_ms))
        return dataclasses.replace(history, behaviours=history.behaviours[max(0, begin - self._spec.behaviours_max) : end])
