"""Statistics of users as of the times of requests (schemas/statistics.py): inputs of training alongside the profile.

    counted   a training over the whole log counts its events before each request, because user-features has only the latest numbers of each user
    served    a follower reads the numbers that `aif statistics` had sent before each request

Arrays: Q requests, X events, S statistics.
"""

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from schemas.events import ImpressionRecord
from schemas.features import FeatureSchema, Scope
from schemas.ids import Id
from schemas.kinds import Layout
from schemas.statistics import CLICK, NEVER, Counter, Log, Statistic, window_begin
from schemas.users import UserHistory

Served = Mapping[Id, Sequence[tuple[int, Mapping[str, Any]]]]  # of each user (time in ms, features), ascending


class UserStatistics(Protocol):
    """Statistics of users as of any time."""

    def raw(self, users: Sequence[Id], time_Q: np.ndarray) -> Mapping[str, Sequence[Any]]:
        """The values of each statistic for some users, each as of a time."""


class ServedStatistics:
    """The latest numbers of each user that were sent before a time."""

    def __init__(self, names: Iterable[str], served: Served) -> None:
        self._names, self._served = tuple(names), served

    def raw(self, users: Sequence[Id], time_Q: np.ndarray) -> Mapping[str, Sequence[Any]]:
        found = [self._of(user, time_ms) for user, time_ms in zip(users, time_Q.tolist(), strict=True)]
        return {name: [features.get(name) for features in found] for name in self._names}

    def _of(self, user: Id, time_ms: int) -> Mapping[str, Any]:
        versions = self._served.get(user, ())
        at = bisect.bisect_right(versions, time_ms, key=itemgetter(0))
        return versions[at - 1][1] if at else {}


class CountedStatistics:
    """Counts of a log's events."""

    def __init__(
        self, statistics: Mapping[str, Statistic], histories: Mapping[Id, UserHistory], impressions: Iterable[ImpressionRecord]
    ) -> None:
        self._statistics = statistics
        self._places: dict[Id, int] = {}
        logs = {Log.BEHAVIOURS: lambda: self._behaviours(histories), Log.IMPRESSIONS: lambda: self._shown(impressions)}
        self._events = {log: _Events(logs[log]()) for log in {s.log for s in statistics.values()}}

    def _behaviours(self, histories: Mapping[Id, UserHistory]) -> Iterable[tuple[int, int, tuple[str, ...]]]:
        for user, history in histories.items():
            place = self._place(user)
            yield from ((place, event.time_ms, (event.kind,)) for event in history.behaviours)

    def _shown(self, impressions: Iterable[ImpressionRecord]) -> Iterable[tuple[int, int, tuple[str, ...]]]:
        for impression in impressions:
            place = self._place(impression.user_id)
            for item in impression.items:
                yield place, impression.time_ms, (CLICK, *item.outcomes) if item.clicked else tuple(item.outcomes)

    def _place(self, user: Id) -> int:
        return self._places.setdefault(user, len(self._places))

    def raw(self, users: Sequence[Id], time_Q: np.ndarray) -> Mapping[str, Sequence[Any]]:
        user_Q = np.array([self._places.get(user, -1) for user in users], np.int64)

        def counts(of_all: bool) -> Callable[[Counter], np.ndarray]:
            return lambda counter: self._events[counter.log].of(counter.kinds).count(counter, None if of_all else user_Q, time_Q)

        found = {name: s.numbers(counts(False), time_Q, totals=counts(True)) for name, s in self._statistics.items()}
        return {name: [None if number == NEVER else number for number in numbers.tolist()] for name, numbers in found.items()}


class _Events:
    """Events (user, time in ms, kinds) of a log."""

    def __init__(self, events: Iterable[tuple[int, int, tuple[str, ...]]]) -> None:
        codes: dict[tuple[str, ...], int] = {}
        rows = [(user, time_ms, codes.setdefault(kinds, len(codes))) for user, time_ms, kinds in events]
        self._user_X, self._time_X, self._code_X = np.array(rows, np.int64).reshape(-1, 3).T
        self._codes, self._sorted = codes, dict[tuple[str, ...], _Sorted]()

    def of(self, kinds: tuple[str, ...]) -> "_Sorted":
        """Those of some kinds; of none: all."""
        if kinds not in self._sorted:
            wanted = [code for names, code in self._codes.items() if not kinds or not set(kinds).isdisjoint(names)]
            chosen = np.isin(self._code_X, wanted)
            self._sorted[kinds] = _Sorted(self._user_X[chosen], self._time_X[chosen])
        return self._sorted[kinds]


class _Sorted:
    """Events by user and time. Times are numbered, so that a user and a time make one whole number that sorts as both do."""

    def __init__(self, user_X: np.ndarray, time_X: np.ndarray) -> None:
        self._time_X = np.sort(time_X)
        self._base = len(time_X) + 1
        self._key_X = np.sort(user_X * self._base + np.searchsorted(self._time_X, time_X))

    def count(self, counter: Counter, user_Q: np.ndarray | None, time_Q: np.ndarray) -> np.ndarray:
        """What the counter has of each user as of each time, int64 [Q]; None: of all users."""
        end_Q = self._before(user_Q, time_Q)
        if counter.edge:
            assert user_Q is not None
            begin_Q = np.searchsorted(self._key_X, user_Q * self._base)
            at_Q = begin_Q if counter.edge == "first" else end_Q - 1
            known_Q = (end_Q > begin_Q) & (user_Q >= 0)
            return np.where(known_Q, self._time_X[self._key_X[np.where(known_Q, at_Q, 0)] % self._base] if len(self._key_X) else -1, -1)
        window = counter.window_ms
        return end_Q - self._before(user_Q, window_begin(time_Q, window) if window is not None else np.zeros_like(time_Q))

    def _before(self, user_Q: np.ndarray | None, time_Q: np.ndarray) -> np.ndarray:
        """How many events sort before a time of a user; their differences count."""
        rank_Q = np.searchsorted(self._time_X, time_Q)
        return rank_Q if user_Q is None else np.searchsorted(self._key_X, user_Q * self._base + rank_Q)


def encode_statistics(schema: FeatureSchema, statistics: UserStatistics, users: Sequence[Id], time_Q: np.ndarray) -> np.ndarray:
    """What a model reads of the statistics of some users, each as of a time: float32 [Q, S], in the order of `user_columns`."""
    raw, names = statistics.raw(users, time_Q), {f.name: f for f in schema.of(Scope.USER)}
    columns = [names[name].encode(raw[name]) for name in schema.user_statistics]
    return np.array(columns, np.float32).reshape(len(columns), len(users)).T


def user_columns(schema: FeatureSchema) -> list[int]:
    """The places of the user statistics among the numbers of a profile."""
    numeric = [f.name for f in schema.of(Scope.USER) if f.layout is Layout.NUMBER]
    return [numeric.index(name) for name in schema.user_statistics]
