"""The canary: scores of a new version on a fixed sample are compared with those of the live version, and judged. Pure.

Here: what is compared, and what is too far. Not here: the sample and the scores (streams/builders/canary.py), when it runs and what follows
(streams/versions/promotion.py).

A model of another training run may rank differently and be right. So the canary looks for versions that are broken, not for those that are worse, by
three figures:

    bad share      scores or probabilities that are not finite, of the new version alone
    distance       Kolmogorov-Smirnov distance of the click probabilities of all pairs: 0 = the same distribution, 1 = nothing in common. It sees
                   scores that collapsed to one value, saturated, or stand on another scale
    top overlap    share of each user's best tenth that is in the live version's best tenth, mean over users; unrelated rankings have .1. It sees
                   rows, signatures or features that do not belong to the model

Where there is nothing to compare with, only the first is judged: for a first version, and where the live version is no measure, because it cannot be
read, has none of the sampled items, or gives every item nearly the same probability (as an untrained network does).

Arrays: U users, C candidates.
"""

from dataclasses import dataclass

import numpy as np

TOP_SHARE = 0.1
SPREAD_MIN = 0.1  # of a live version that is a measure; trained ones have 1 and more, untrained ones .02


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """What a version may show. With `enabled` false every version passes.

    Measured on the synthetic world (4,000 items, 8,000 impressions, 200 steps; 32 users x 512 items) against one trained version:

        warm starts from it, 20 steps each        distance .03 to .06   overlap .89 to .90
        trained again: seed, hash planes, half or twice the data   .04 to .05   .74 to .80
        a third of the steps                                  .09   .71
        another loss (clicks alone)                           .41   .75      the scale of scores is a choice of the loss
        of a model with ten steps: one with 200               .52   .59
        rows of another model                                 .46   .44
        item half with permuted weights                       .37   .41
        vectors of zeros                                      .53   .49
        head times ten                                        .51   .19
        rows of other items                                   .01   .20
        head of zeros                                         .87   .09
        untrained                                             .86   .03

    So the defaults lie between the two groups. They let through a loss of quality that still ranks (no signatures: .37, .69); finding that is the
    task of an evaluation, or of what servers report after the promotion.
    """

    enabled: bool = True
    users: int = 32
    items: int = 512
    bad_share_max: float = 0.0
    distance_max: float = 0.6
    overlap_min: float = 0.5


@dataclass(frozen=True, slots=True)
class Scores:
    """Of every pair of the sample: the score that items are ranked by, and the probability of a click."""

    scores_UC: np.ndarray
    probabilities_UC: np.ndarray


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """What was measured: `pairs` were scored, and compared with `against`. It, `distance` and `overlap` are None where nothing was compared.
    `missed` source records are in the new version's files and not in those of `against`: where items changed since, that shows in both, too."""

    version: int
    revision: int
    pairs: int
    bad_share: float
    against: int | None = None
    distance: float | None = None
    overlap: float | None = None
    missed: int = 0

    def describe(self) -> str:
        """In one line, for the control log."""
        seen = f"{self.pairs} pairs, not finite {self.bad_share:.2%}"
        if self.distance is None or self.overlap is None:
            return f"{seen}, nothing to compare with"
        older = f", whose files lack {self.missed} newer records" if self.missed else ""
        return f"{seen}; against {self.against}{older}: distance {self.distance:.3f}, overlap of the best tenth {self.overlap:.3f}"


def measure_bad_share(scores: Scores) -> float:
    """Share of pairs whose score or probability is not finite; 0 where there are none."""
    fine_UC = np.isfinite(scores.scores_UC) & np.isfinite(scores.probabilities_UC)
    return float(1.0 - fine_UC.mean()) if fine_UC.size else 0.0


def measure_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of two samples of any shape, of finite numbers: the greatest difference of their distribution functions."""
    a, b = np.sort(a, axis=None), np.sort(b, axis=None)
    at = np.concatenate([a, b])
    below = [np.searchsorted(one, at, side="right") / len(one) for one in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def measure_overlap(a_UC: np.ndarray, b_UC: np.ndarray) -> float:
    """Mean over users of the share of the best tenth (at least one item) that both rankings have in common; ties are broken by place in both."""
    top = max(1, int(a_UC.shape[1] * TOP_SHARE))
    best_a, best_b = (np.argsort(-x, axis=1, kind="stable")[:, :top] for x in (a_UC, b_UC))
    return float(np.mean([len(np.intersect1d(x, y)) / top for x, y in zip(best_a, best_b, strict=True)]))


def measure_spread(probabilities_UC: np.ndarray) -> float:
    """How far a user's candidates stand apart: standard deviation over mean of the probabilities, mean over users."""
    return float(np.mean(probabilities_UC.std(axis=1) / np.maximum(probabilities_UC.mean(axis=1), np.finfo(np.float32).tiny)))


def judge_canary(figures: CanaryFigures, rules: CanaryRules) -> list[str]:
    """The reasons why the version must not go live by itself; empty if it may."""
    reasons = []
    if figures.bad_share > rules.bad_share_max:
        reasons.append(f"{figures.bad_share:.2%} of its scores are not finite, allowed are {rules.bad_share_max:.2%}")
    if figures.distance is not None and figures.distance > rules.distance_max:
        reasons.append(f"its scores are {figures.distance:.3f} away from those of {figures.against}, allowed are {rules.distance_max:g}")
    if figures.overlap is not None and figures.overlap < rules.overlap_min:
        reasons.append(
            f"its best tenth shares {figures.overlap:.3f} with that of {figures.against}, expected at least {rules.overlap_min:g}"
        )
    return reasons
