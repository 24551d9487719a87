"""Items, or users, with their counters and with the numbers that their topic says of them: what a tally holds of each in memory.

Here: which numbers are to be sent. Not here: arithmetic (counts.py), storage and records (tally.py).
Invariants:
- The numbers sent are those that the topic says. So a process that takes over has those of its predecessor, also if that one was only frozen and sends more.
  Such numbers are of an earlier time than those read before them, and are corrected.
- Numbers differ if any bit of one differs from the topic's. Where more items differ than may be sent at once, the hottest come first. A turn of waiting counts
  as a small part of an event. When the share of all items moves, the rates of all move a little, and these must not delay a number that an event changed.

Arrays: I items or users, S statistics.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from schemas.statistics import Statistic
from streams.statistics.counts import Change, Counts
from streams.statistics.events import Ways, events_per_key

ITEMS_SIDE, USERS_SIDE = range(2)
_HEAT_OF_EVENT = 60  # turns of waiting that weigh as much


class Side:
    """All items (`ITEMS_SIDE`) or all users (`USERS_SIDE`). `sent_at_max`: the latest time as of which any numbers were counted."""

    def __init__(self, number: int, statistics: Mapping[str, Statistic]) -> None:
        self.number, self.counts = number, Counts(statistics, exist=number == USERS_SIDE)
        self.ways = Ways(self.counts.counters, number)
        self.sent_at_max = -1
        self._sent_SI = np.zeros((len(self.counts.statistics), 0))
        self._sent_at_I = np.zeros(0, np.int64)  # as of when they were counted; -1: the record of the item tells them
        self._read_at_I = np.zeros(0, np.int64)  # the same of the last record that was read
        self._heat_I = np.zeros(0, np.int64)

    def grow(self) -> None:
        """Makes room for whom the counters met since."""
        more = len(self.counts.keys) - len(self._heat_I)
        if more > 0:
            room = max(more, len(self._heat_I))
            self._sent_SI = np.hstack([self._sent_SI, np.repeat(self.counts.told_by({})[:, None], room, axis=1)])
            self._sent_at_I, self._read_at_I = (np.append(at_I, np.full(room, -1)) for at_I in (self._sent_at_I, self._read_at_I))
            self._heat_I = np.append(self._heat_I, np.zeros(room, np.int64))

    def place(self, key: bytes, exists: bool, values: Mapping[str, Any], at_ms: int, at_ms_max: int) -> bool:
        """Takes what the topic says of an item or user; `at_ms`: as of when that was counted, -1 without statistics. Numbers sent after that stay.
        False: it is what this process sent last."""
        place = self.counts.set_item(key, exists, values)
        self.grow()
        if not exists:
            self._sent_at_I[place] = at_ms = -1
        is_known = 0 <= at_ms == self._sent_at_I[place]
        if at_ms >= self._sent_at_I[place] or at_ms < self._read_at_I[place]:
            self._sent_SI[:, place], self._sent_at_I[place] = self.counts.told_by(values), at_ms
            if at_ms <= at_ms_max:
                self.sent_at_max = max(self.sent_at_max, at_ms)
        self._read_at_I[place] = at_ms
        return not is_known

    def add(self, changes: Mapping[Change, int], counted: Mapping[Change, int]) -> None:
        """Counts changes. `counted`: those of them that are events."""
        self.counts.add(changes)
        self.grow()
        for key, happened in events_per_key(counted).items():
            self._heat_I[self.counts.place_of(key)] += _HEAT_OF_EVENT * happened

    def choose(self, number_SI: np.ndarray, updates_max: int) -> tuple[np.ndarray, bool]:
        """(places of those to send now, the hottest first; whether others wait). Those that wait become hotter."""
        sent_SI, exists_I = self._sent_SI[:, : number_SI.shape[1]], self.counts.exist
        places = np.flatnonzero((number_SI != sent_SI).any(axis=0) & exists_I)
        if len(places) <= updates_max:
            return places, False
        by_heat = places[np.argsort(-self._heat_I[places], kind="stable")]
        self._heat_I[by_heat[updates_max:]] += 1
        return by_heat[:updates_max], True

    def note_sent(self, places: np.ndarray, number_SI: np.ndarray) -> None:
        """The outbox has these numbers."""
        self._sent_SI[:, places], self._sent_at_I[places], self._heat_I[places] = number_SI[:, places], self.counts.clock_ms, 0
