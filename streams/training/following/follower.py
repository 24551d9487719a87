"""The loop of `aif train --follow`: plan a round, write the state that it starts from, learn it, publish when an interval is over, report.

Here: the order of the work, and the state between two rounds. Not here: its parts (see the table in __init__.py).
Invariant: before a round is learnt, one file holds the weights, the optimiser's moments, the generator, and the offsets of the round's begin and end. So a
trainer that is killed at any moment learns the same rounds from the same weights again. It ends with the same weights as one that was not killed, bit for bit
on one machine. (The one exception: a profile that Kafka's compaction removed between the two readings.)
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infra.clock import Clock
from schemas.errors import Unavailable
from schemas.events import ImpressionRecord
from schemas.topics import IMPRESSIONS
from streams.training.event_decoder import EventDecoder, Offsets
from streams.training.following.followed_log import FollowedLog
from streams.training.following.health import WINDOW_ROUNDS, RoundCounts, find_faults
from streams.training.following.learner import OnlineLearner, ProgressiveValidation
from streams.training.following.publications import Publications
from streams.training.following.status import StatusTeller
from streams.training.following.view import View
from streams.training.settings import TrainSection
from streams.training.topic_events import DataRange, find_span
from streams.training.trainer_state import StateFile

# Impressions up to this much older than those of the newest rounds are still joined with items as of their time.
SETTLED_AFTER_MS = 3_600_000

_DISK_POLL_S = 1.0


@dataclass(frozen=True)
class Place:
    """How far a follower is: everything before `ends` is learnt, in `number` rounds, and `next` is the end of the round that was planned.

    `requests` counts those learnt; `from_ms` and `until_ms` are the span of their times (training/topic_events.py). Of each of the newest rounds, `oldest_ms`
    has the time before which a tenth of its impressions lie. It is not the oldest time itself, because one client whose clock stands at 1970 would then keep
    every version of every item in memory.
    """

    number: int
    ends: Offsets
    requests: int = 0
    oldest_ms: tuple[int, ...] = ()
    from_ms: int | None = None
    until_ms: int | None = None
    next: Offsets | None = None

    @property
    def settled_ms(self) -> int:
        """No impression older than this is expected any more. It depends on the learnt impressions and not on the clock, so that a restart repeats it."""
        return max(0, min(self.oldest_ms, default=0) - SETTLED_AFTER_MS)

    def after(self, ends: Offsets, impressions: Sequence[ImpressionRecord]) -> "Place":
        """The place after a round up to `ends`, which brought these impressions."""
        times = [i.time_ms for i in impressions]
        spans = [find_span(times), (self.from_ms, self.until_ms)]
        return Place(
            number=self.number + 1,
            ends=ends,
            requests=self.requests + len(times),
            oldest_ms=(*self.oldest_ms, sorted(times)[len(times) // 10])[-WINDOW_ROUNDS:] if times else self.oldest_ms,
            from_ms=min((first for first, _ in spans if first is not None), default=None),
            until_ms=max((last for _, last in spans if last is not None), default=None),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        told = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return told | {"oldest_ms": list(self.oldest_ms), "next": None if self.next is None else {"ends": self.next}}


def decode_place(raw: Mapping[str, Any]) -> Place:
    """The inverse of `to_dict`."""
    planned = None if raw["next"] is None else raw["next"]["ends"]
    return Place(**{**raw, "oldest_ms": tuple(raw["oldest_ms"]), "next": planned})


class Follower:
    """The loop and its parts. `run` returns when it is asked to stop; whoever opened the parts closes them (follower_program.py)."""

    def __init__(
        self,
        log: FollowedLog,
        decoder: EventDecoder,
        view: View,
        learner: OnlineLearner,
        states: StateFile,
        place: Place,
        publications: Publications,
        bounds: TrainSection,
        clock: Clock,
        tell: StatusTeller,
    ) -> None:
        self._log, self._decoder, self._view, self.learner = log, decoder, view, learner
        self._states, self.place, self._publications = states, place, publications
        self._bounds, self._clock, self._tell = bounds, clock, tell
        self._validation = ProgressiveValidation()
        self._counts: deque[RoundCounts] = deque(maxlen=WINDOW_ROUNDS)
        self._event_ms: float | None = None
        self._not_kept: tuple[str, ...] = ()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Follows until `stopping()`, which is asked between two rounds, so that the state written at the end is complete."""
        while not stopping():
            planned = self.place.next or self._log.plan(self.learner.chosen.batch_requests, stopping)
            if planned is not None and self._is_kept(planned):
                self._learn(planned)
            faults = self._faults()
            self._publications.step(self.learner.network, self.learner.steps, faults, self.card)
            newest = self._counts[-1] if self._counts else RoundCounts()
            self._tell.tell(self._status(faults), self._validation.figures, newest)
        self._keep(self.place.next)

    def _is_kept(self, planned: Offsets) -> bool:
        """Writes the state that this round starts from; False if the disk did not take it. Nothing is learnt then, and it is tried again."""
        try:
            self._keep(planned)
        except Unavailable as error:
            self._not_kept = (f"not kept: {error.message}",)
            time.sleep(_DISK_POLL_S)
            return False
        self._not_kept = ()
        return True

    def _keep(self, planned: Offsets | None) -> None:
        """Writes weights, moments, generator, offsets and the next round as one file, whole or not at all. Raises Unavailable."""
        self.place = dataclasses.replace(self.place, next=planned)
        about = {**self._states.about, "train": self.learner.chosen.to_dict(), "place": self.place.to_dict()}
        self._states.write(self.learner.state(self.learner.steps, about))

    def _learn(self, planned: Offsets) -> None:
        records, unreadable = self._decoder.read[IMPRESSIONS], self._decoder.skipped[IMPRESSIONS]
        events = self._log.read(planned)
        if events is None:  # asked to stop: the kept state names this round, and the next process learns it
            return
        self._view.settled_ms = self.place.settled_ms
        self._view.fold(events)
        data = self._view.join(events.impressions)
        applied = 0
        scored = 0
        for batch in self.learner.learn(data):
            self._validation.add(batch)
            applied, scored = applied + batch.applied, scored + 1
        self._counts.append(
            RoundCounts(
                records=self._decoder.read[IMPRESSIONS] - records,
                unreadable=self._decoder.skipped[IMPRESSIONS] - unreadable,
                shown=sum(len(i.items) for i in events.impressions),
                unknown=data.skipped_items,
                steps=applied,
                refused=scored - applied,
            )
        )
        if events.impressions:
            self._event_ms = float(np.median([i.time_ms for i in events.impressions]))
        self.place = self.place.after(planned, events.impressions)

    def _event_age_s(self) -> float | None:
        return None if self._event_ms is None else (self._clock.now_ms() - self._event_ms) / 1_000

    def _faults(self) -> tuple[str, ...]:
        return self._not_kept + find_faults(self._counts, self._event_age_s(), self._bounds)

    def card(self) -> dict[str, Any]:
        """The card of a checkpoint of the current weights."""
        place = self.place
        return {
            **self._states.about,
            "round": place.number,
            "requests": place.requests,
            "steps": self.learner.steps,
            "train": self.learner.chosen.to_dict(),
            "data": DataRange(place.ends, place.from_ms, place.until_ms).to_dict(),
            "progressive": self._validation.figures(),
        }

    def _status(self, faults: tuple[str, ...]) -> dict[str, Any]:
        """The status line."""
        published = self._publications.newest
        return {
            "round": self.place.number,
            "steps": self.learner.steps,
            "requests": self.place.requests,
            "lag_records": self._log.lag_records,
            "event_age_s": self._event_age_s(),
            "progressive": None,
            "publishing": not faults,
            "faults": list(faults),
            "published": published and published.to_dict(),
        }
