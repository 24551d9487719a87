"""What a model gains over the best score that needs no learning: the one comparison of a checkpoint's card, of `aif eval data` and of `aif demo`.

Here: the best plain score of each measure, the paired gain over it, and the sentences that a user should read first. Not here: the scores
(plain_scores.py, shown_scores.py), measures (measures.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from infra.figures import Interval
from streams.training.bootstrap import Bootstrap
from streams.training.measures import UserValues

MODEL, BEST = "aif", "best_plain"
FEW = 100  # of fewer users an interval says little: it is itself drawn from them


@dataclass(frozen=True)
class Gain:
    """A measure of the model and of the best plain score, `best`, and the paired difference; `counted`: of how many users."""

    measure: str
    best: str
    ours: Interval
    theirs: Interval
    gain: Interval
    counted: int

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval of the gain is above 0."""
        return self.gain.low > 0

    def __str__(self) -> str:
        verdict = "the model beats" if self.is_sure else "THE MODEL DOES NOT BEAT"
        gain = f"{self.gain.value:+.4f} [{self.gain.low:+.4f}, {self.gain.high:+.4f}]"
        return f"{verdict} {self.best} in {self.measure}: {self.ours.value:.4f} against {self.theirs.value:.4f}, a gain of {gain}"


def compare(measured: Mapping[str, Mapping[str, UserValues]]) -> list[Gain]:
    """The gain in each measure; `measured` is every measure by the score's name, `MODEL` among them.

    The best plain score is chosen on the users that are measured, so a gain is never overstated by the choice.
    """
    bootstrap, found = Bootstrap(len(next(iter(measured[MODEL].values())).value_U)), []
    for name, ours in measured[MODEL].items():
        plain = {score: measures[name] for score, measures in measured.items() if score != MODEL and name in measures}
        best = max(plain, key=lambda score: np.nan_to_num(plain[score].mean(), nan=-1.0))
        theirs, gain = bootstrap.interval(plain[best]), bootstrap.difference(ours, plain[best])
        found.append(Gain(name, best, bootstrap.interval(ours), theirs, gain, int((ours.weight_U > 0).sum())))
    return found


def judge(gains: list[Gain]) -> list[str]:
    """What a user should read first: each measure in which the model does not beat the best plain score, and that few are measured. A measure of no
    user, such as that of new items where no user takes any, has no winner."""
    return [str(gain) for gain in gains if gain.counted and not gain.is_sure] + doubt_few(gains)


def doubt_few(gains: list[Gain]) -> list[str]:
    """Says so where few are measured."""
    fewest = min((gain.counted for gain in gains), default=FEW)
    return [f"only {fewest} are measured: the intervals are rough, measure more"] if fewest < FEW else []
