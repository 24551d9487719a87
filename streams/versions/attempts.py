"""The actions that one step of reconciling tries, and its report.

Invariants: an error of one thing is reported and never stops the others; the same thing is tried again only after a pause. A failed assertion is no error of
a thing but one of this program, which another try would repeat: the caller gets it.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from infra.clock import Clock
from schemas.errors import AifError
from schemas.events import IndexEvent

_TOLD_FOR_S = 60.0


@dataclass
class StepReport:
    """The actions of a step, counted by kind, and its errors.

    errors         what failed in this step
    news           those of them that were not logged lately: a store that is away fails every attempt again, a few seconds apart
    build_seconds  for each full part taken in: the time from its checkpoint to the part
    """

    done: dict[str, int] = field(default_factory=dict)
    build_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def count(self, kind: str) -> None:
        """One more of `kind`."""
        self.done[kind] = self.done.get(kind, 0) + 1


class Attempts:
    """Does things and keeps the report of the step. What failed is left alone for `retry_s`; `announce` gets an event for all that happened."""

    def __init__(self, clock: Clock, retry_s: float, announce: Callable[[IndexEvent], None]) -> None:
        self._clock, self._retry_s, self._announce = clock, retry_s, announce
        self._retry_at: dict[str, float] = {}
        self._told_until: dict[Hashable, float] = {}
        self.report = StepReport()

    def begin_step(self) -> StepReport:
        """An empty report, which everything until the next step goes into."""
        self.report = StepReport()
        return self.report

    def attempt(self, what: str, act: Callable[[], None]) -> None:
        """Calls `act`, unless `what` failed a moment ago. An error goes into the report, after `what`; AssertionError is raised."""
        if self._clock.monotonic() < self._retry_at.get(what, 0.0):
            return
        try:
            act()
            self._retry_at.pop(what, None)
        except AssertionError:
            raise
        except CancelledError:
            return  # a step that waited while its shard was given away
        except Exception as error:
            if isinstance(error, AifError) and error.code == "shard_closed":
                return  # the shard has another owner by now
            self._retry_at[what] = self._clock.monotonic() + self._retry_s
            code, text = (error.code, str(error)) if isinstance(error, AifError) else (type(error).__name__, repr(error))
            self.complain((what, code), f"{what}: {text}")

    def complain(self, about: Hashable, message: str) -> None:
        """Puts an error into the report. About the same thing it is news once a minute, whatever numbers and names of files its text has."""
        self.report.errors.append(message)
        now_s = self._clock.monotonic()
        if about not in self._told_until or self._told_until[about] <= now_s:
            self._told_until = {known: until for known, until in self._told_until.items() if until > now_s} | {about: now_s + _TOLD_FOR_S}
            self.report.news.append(message)

    def announce(self, kind: str, version: int, revision: int = 0, shard: int | None = None, reason: str = "") -> None:
        """Counts an event of a version, and reports it to people and metrics."""
        self.report.count(kind)
        self._announce(IndexEvent(kind=kind, version=version, revision=revision, shard=shard, reason=reason))
