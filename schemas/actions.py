"""The actions of computation allocation: what a request may get.

    drop       a refusal                       pass       the caller's own order
    cached     scores of an earlier answer     LEVEL/N    the first N candidates, ranked at LEVEL

Level `full` ranks all N with the whole model. Level `twopass` ranks them without the long history first, and then the best tenth of them with the whole
model. Its answer is the best of the second pass, so its scores are those of `full`. Actions are sorted: the last one is full work.

Here: names and counts. Not here: costs and values (schemas/allocation.py), the two passes (serving/engine/loop/resident.py).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

FULL, TWO_PASS = "full", "twopass"
LEVELS, LENGTHS = (TWO_PASS, FULL), (500, 1000, 2000, 4000, 7000, 10_000)
SECOND_PASS = 10  # one candidate in so many gets to the second pass: HR@100 loses 0.2 points at most (docs/EXPERIMENTS.md)


class Kind(enum.StrEnum):
    """What an action does."""

    DROP = "drop"
    PASS = "pass"  # noqa: S105 an action, no password
    CACHED = "cached"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Action:
    """One choice for one request. `level` and `candidates` are set for RANK only."""

    kind: Kind
    level: str = ""
    candidates: int = 0

    @property
    def name(self) -> str:
        """`drop`, `pass`, `cached`, or level and candidates: `full/2000`."""
        return f"{self.level}/{self.candidates}" if self.kind is Kind.RANK else self.kind.value

    @classmethod
    def parse(cls, name: str) -> "Action":
        """The action of a name. ValueError for anything else."""
        level, slash, candidates = name.partition("/")
        if not slash and Kind(name) is not Kind.RANK:
            return cls(Kind(name))
        if level not in LEVELS or int(candidates) < 1:
            raise ValueError(f"action {name!r}: expected one of {', '.join(LEVELS)}, a slash and a number of candidates")
        return cls(Kind.RANK, level, int(candidates))


def count_second(known: int, top_k: int) -> int:
    """How many of the known candidates the second pass of `twopass` ranks."""
    return max(top_k, known // SECOND_PASS)


def list_actions(levels: Sequence[str] = LEVELS, lengths: Sequence[int] = LENGTHS) -> tuple[Action, ...]:
    """Drop, pass, cached, then level by length: the last action is full work."""
    return (*(Action(kind) for kind in (Kind.DROP, Kind.PASS, Kind.CACHED)), *(Action(Kind.RANK, lv, n) for lv in levels for n in lengths))
