"""The canary: scores of a new version on a fixed sample are compared with those of the live version, and judged. Pure.

A model of another training run may rank differently and be right. So the canary looks for versions that are broken, not for those that are worse, by
three figures:

    bad share      scores or logits that are not finite, of the new version alone
    distance       median over all pairs of |logit of the new version - logit of the live one|, of the task where it is greatest. It sees scores that moved
                   together (as by a bias), saturated, or stand on another scale, whether the live version's scores stand apart or not
    top overlap    share of each user's best tenth that is in the live version's best tenth, mean over users; unrelated rankings have .1. It sees
                   rows, signatures or features that do not belong to the model. It is judged only if the live version ranks: the logits of a user's
                   candidates must stand apart by SPREAD_MIN, which those of an untrained network do not

A version that could not be compared with the live one needs an operator's approval, or the rule `allow_uncompared`. The first version of an index has
no live one to be compared with, so only its bad share is judged.

Arrays: U users, C candidates, T tasks.
"""

from dataclasses import dataclass

import numpy as np

TOP_SHARE = 0.1
SPREAD_MIN = 0.25  # standard deviation of the click logits of a user's candidates


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """What a version may show. With `enabled` false every version passes.

    Measured on the synthetic world (2,000 items, 4,800 impressions, 200 steps; 32 users x 500 items) against one trained version, whose spread is 2.0:

        trained again: another seed, other hash planes        distance .44 to .56   overlap .73 to .76
        a warm start from it, 20 steps                                 .48          .80
        a third of the steps                                           .49          .72
        another loss (clicks alone)                                   1.2           .74      the scale of scores is a choice of the loss
        of a model with ten steps: one with 200                       1.7           .53
        no signatures                                                 1.4           .76
        item half with permuted weights                               1.4           .36
        rows of other items                                           1.8           .16
        vectors of zeros                                              1.9           .45
        rows of another model                                         1.9           .23
        bias of the last layer + 4 or - 4                             4.0          1.0
        untrained                                                     3.1           .12      its own spread is .02
        head of zeros                                                 3.3           .13
        last layer times ten                                           30          1.0

    So the defaults lie between the two groups. They let through a loss of quality that still ranks (no signatures); finding that is the task of an
    evaluation, or of what servers report after the promotion.
    """

    enabled: bool = True
    users: int = 32
    items: int = 512
    bad_share_max: float = 0.0
    distance_max: float = 2.0
    overlap_min: float = 0.5
    allow_uncompared: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """Of every pair of the sample: the score that items are ranked by, and the logits of the model's `tasks`, the click first."""

    scores_UC: np.ndarray
    logits_UCT: np.ndarray
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """The measurements: `pairs` were scored, and compared with version `against`, whose spread is `spread`. Without a live version, and where nothing could be
    compared for the reason `uncompared`, these and `distance` and `overlap` are None."""

    pairs: int
    bad_share: float
    against: int | None = None
    distance: float | None = None
    overlap: float | None = None
    spread: float | None = None
    uncompared: str = ""

    @property
    def ranks(self) -> bool:
        """Whether the live version ranks, so that the overlap with its best tenth says something."""
        return self.spread is not None and self.spread >= SPREAD_MIN

    def describe(self) -> str:
        """In one line, for the control log."""
        seen = f"{self.pairs} pairs, not finite {self.bad_share:.2%}"
        if self.distance is None or self.overlap is None:
            return f"{seen}, compared with nothing: {self.uncompared or 'no version is live'}"
        judged = "" if self.ranks else f" (not judged: the live version's logits spread by {self.spread:.3f} only)"
        return f"{seen}; against {self.against}: distance {self.distance:.3f}, overlap of the best tenth {self.overlap:.3f}{judged}"


def measure_bad_share(scores: Scores) -> float:
    """Share of pairs whose score or logit is not finite; 0 where there are none."""
    fine_UC = np.isfinite(scores.scores_UC) & np.isfinite(scores.logits_UCT).all(axis=-1)
    return float(1.0 - fine_UC.mean()) if fine_UC.size else 0.0


def measure_distance(a_UC: np.ndarray, b_UC: np.ndarray) -> float:
    """Median over all pairs of the absolute difference of their logits; of finite numbers."""
    return float(np.median(np.abs(a_UC.astype(np.float64) - b_UC)))


def measure_overlap(a_UC: np.ndarray, b_UC: np.ndarray) -> float:
    """Mean over users of the share of the best tenth (at least one item) that both rankings have in common; ties are broken by place in both."""
    top = max(1, int(a_UC.shape[1] * TOP_SHARE))
    best_a, best_b = (np.argsort(-x, axis=1, kind="stable")[:, :top] for x in (a_UC, b_UC))
    return float(np.mean([len(np.intersect1d(x, y)) / top for x, y in zip(best_a, best_b, strict=True)]))


def measure_spread(logits_UC: np.ndarray) -> float:
    """How far a user's candidates stand apart: standard deviation of their logits, mean over users."""
    return float(np.mean(logits_UC.std(axis=1)))


def judge_canary(figures: CanaryFigures, rules: CanaryRules) -> list[str]:
    """The reasons why the version must not go live automatically; empty if it may."""
    reasons = []
    if figures.bad_share > rules.bad_share_max:
        reasons.append(f"{figures.bad_share:.2%} of its scores are not finite, allowed are {rules.bad_share_max:.2%}")
    if figures.uncompared and not rules.allow_uncompared:
        reasons.append(f"it was not compared with the live version ({figures.uncompared})")
    if figures.distance is not None and figures.distance > rules.distance_max:
        reasons.append(
            f"its logits are {figures.distance:.3f} away from those of {figures.against} (median), allowed are {rules.distance_max:g}"
        )
    if figures.ranks and figures.overlap is not None and figures.overlap < rules.overlap_min:
        reasons.append(
            f"its best tenth shares {figures.overlap:.3f} with that of {figures.against}, expected at least {rules.overlap_min:g}"
        )
    return reasons
