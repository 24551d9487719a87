"""Values of actions, learnt from outcomes of random slices.

A probe does full work and logs the sum of the ten best predicted values that each action would have passed on. Its outcome is an unbiased, noisy label of
full work alone. Other actions get it times the ratio of the predicted sums, times a factor that corrects the ratio, from the outcomes of random actions. One
factor for each action would be worse: the highest of many noisy factors wins.

Value of full work: Poisson regression on curves of the features with a penalty on their bends and sizes. Share of an action: by bin of the history, shrunk to
the mean share, monotone in length (isotonic) and in level. A richer level must be believed to add something, because at a
price near 0 it must be chosen.

Arrays: R requests, A actions, B bins, K knots, F columns of a regression.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import isotonic_regression

from schemas.actions import FULL, TWO_PASS, Action, Kind
from schemas.allocation import Curve, Requests, Values, stack_whole
from schemas.errors import Unavailable

FEATURES = ("user_value", "behaviours", "retrieval_top")
PROBES_MIN = 300
_SUM_MIN = 1e-12  # of the best scores of a probe: below it there is nothing that a ratio could be taken of
KNOTS, BINS = 6, 6
GAIN_MIN = 0.005  # what a richer level adds at least, and
LONGER_MIN = 0.001  # the next length: otherwise all requests would leave it at the same price, and the cost would jump
SHRINK = 20.0  # so many mean requests count for the mean share
DEVIATION = 0.03  # of a level's factor from the power of its ratio, as believed beforehand
BEND, SIZE = 20.0, 2.0  # penalties, in mean outcomes


@dataclass(frozen=True)
class Samples:
    """Requests with outcomes. `action_R`: place of the action; `outcome_R`: realised value, nan if none was joined.

    `predicted_RA`: sums of predicted values of each action that ranks, of probes; nan elsewhere.
    """

    user_R: np.ndarray
    requests: Requests
    action_R: np.ndarray
    arm_R: np.ndarray
    propensity_R: np.ndarray
    outcome_R: np.ndarray
    predicted_RA: np.ndarray

    def rows(self, place_R: np.ndarray) -> "Samples":
        """The samples at these places, or of this mask."""
        columns = (self.action_R, self.arm_R, self.propensity_R, self.outcome_R, self.predicted_RA)
        return Samples(self.user_R[place_R], self.requests.rows(place_R), *(column[place_R] for column in columns))


def fit_values(samples: Samples, actions: Sequence[Action]) -> tuple[Values, np.ndarray]:
    """The model of values and the mean row [A]. Raises Unavailable (`too_few_probes`)."""
    known_R = np.isfinite(samples.outcome_R)
    probes = samples.rows(known_R & (samples.arm_R == "probe") & np.isfinite(samples.predicted_RA[:, -1]))
    tried = samples.rows(known_R & (samples.arm_R == "random"))
    scored_R = probes.predicted_RA[:, -1] >= _SUM_MIN
    if scored_R.sum() < PROBES_MIN or not probes.outcome_R[scored_R].any():
        raise Unavailable(
            "too_few_probes", f"{scored_R.sum()} probes have scores and outcomes, a fit needs {PROBES_MIN}; wait for more", 3600.0
        )
    ratio_RA = np.nan_to_num(probes.predicted_RA / np.maximum(probes.predicted_RA[:, -1:], _SUM_MIN))
    intercept, curves = _fit_whole(probes.requests, probes.outcome_R)
    history_R = np.log1p(probes.requests.behaviours_R)
    edges = np.unique(np.quantile(history_R, np.arange(1, BINS) / BINS))
    whole = Values(intercept, curves, (), ((1.0,) * len(actions),))
    ratio_BA = _mean_by_bin(ratio_RA, np.searchsorted(edges, history_R), len(edges) + 1)
    bin_R = np.searchsorted(edges, np.log1p(tried.requests.behaviours_R))
    said_R = stack_whole(whole, tried.requests) * ratio_BA[bin_R, tried.action_R]
    factor_A = fit_factors(actions, np.maximum(ratio_RA.mean(0), 1e-9), tried.action_R, tried.outcome_R, said_R)
    label_RA = probes.outcome_R[:, None] * ratio_RA * factor_A
    shares_BA = _shares(label_RA, np.searchsorted(edges, history_R), len(edges) + 1, actions)
    mean_A = _shares(label_RA, np.zeros(len(label_RA), int), 1, actions)[0] * probes.outcome_R.mean()
    return Values(intercept, curves, tuple(map(float, edges)), tuple(tuple(map(float, row)) for row in shares_BA)), mean_A


def _mean_by_bin(ratio_RA: np.ndarray, bin_R: np.ndarray, bins: int) -> np.ndarray:
    """Mean ratios by bin of the history: [B, A], shrunk to the mean of all."""
    total_BA = np.stack([np.bincount(bin_R, column, bins) for column in ratio_RA.T], 1)
    return np.asarray((total_BA + SHRINK * ratio_RA.mean(0)) / (np.bincount(bin_R, minlength=bins)[:, None] + SHRINK))


def fit_factors(actions: Sequence[Action], ratio_A: np.ndarray, action_R: np.ndarray, seen_R: np.ndarray, said_R: np.ndarray) -> np.ndarray:
    """What predicted sums are multiplied by, relative to full work: [A], 0 for actions that show nothing. Poisson regression of outcomes on predictions.

    `ratio_A`: mean predicted ratio to full work. Predictions overstate what more work adds, by selection, and more between levels than between lengths. So the
    factor is a power of the ratio within a level, a power of the ratio of levels, and a deviation of each level that is believed only with much data.
    """
    ranks = [place for place, action in enumerate(actions) if action.kind is Kind.RANK]
    levels = sorted({actions[place].level for place in ranks})
    longest = {actions[place].level: place for place in ranks}  # the last of a level
    design_AF = np.zeros((len(actions), 4 + len(levels)))
    for place, action in enumerate(actions):
        if action.kind in (Kind.RANK, Kind.PASS):
            top = longest.get(action.level, place)
            design_AF[place, :4] = 1, np.log(ratio_A[top]), np.log(ratio_A[place] / ratio_A[top]), action.kind is Kind.PASS
        if action.kind is Kind.RANK and action.level != actions[-1].level:
            design_AF[place, 4 + levels.index(action.level)] = 1
    used_R = said_R > 0
    prior = np.diag([0.0, 1.0, 1.0, 1.0] + [DEVIATION**-2] * len(levels))
    weight_F = _poisson(design_AF[action_R[used_R]], seen_R[used_R], np.log(said_R[used_R]), prior)
    factor_A = np.exp(design_AF @ weight_F)
    factor_A[[not row.any() for row in design_AF]] = 0.0
    return np.asarray(factor_A / factor_A[-1])


def _fit_whole(requests: Requests, outcome_R: np.ndarray) -> tuple[float, dict[str, Curve]]:
    """Intercept and curves of log(expected outcome of full work)."""
    blocks, knots, penalties = [np.ones((len(outcome_R), 1))], {}, [np.zeros((1, 1))]
    for name in FEATURES:
        x_R = requests.feature(name)
        known_R = np.isfinite(x_R)
        low, high = np.quantile(x_R[known_R], (0.01, 0.99)) if known_R.any() else (0.0, 0.0)
        if high - low < 1e-9:
            continue
        knots[name] = np.linspace(low, high, KNOTS)
        hats_RK = np.stack([np.interp(x_R, knots[name], row) for row in np.eye(KNOTS)], 1)
        blocks.append(np.where(known_R[:, None], np.nan_to_num(hats_RK), 0.0))
        bends = np.diff(np.eye(KNOTS), 2, axis=0)
        penalties.append(outcome_R.mean() * (BEND * bends.T @ bends + SIZE * np.eye(KNOTS)))
    penalty = np.zeros((sum(map(len, penalties)),) * 2)
    at = 0
    for block in penalties:
        penalty[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    weight_F = _poisson(np.concatenate(blocks, 1), outcome_R, np.zeros(len(outcome_R)), penalty)
    curves, intercept, at = {}, weight_F[0], 1
    for block, (name, at_K) in zip(blocks[1:], knots.items(), strict=True):
        effect_K = weight_F[at : at + KNOTS]
        centre = float((block @ effect_K).sum() / max(1.0, block.sum()))  # so that an unknown feature counts as a mean one
        curves[name], intercept, at = Curve(tuple(map(float, at_K)), tuple(map(float, effect_K - centre))), intercept + centre, at + KNOTS
    return float(intercept), curves


def _poisson(x_RF: np.ndarray, y_R: np.ndarray, offset_R: np.ndarray, penalty_FF: np.ndarray) -> np.ndarray:
    """Weights of log(mean) = offset + x w, by Newton's method."""
    weight_F = np.zeros(x_RF.shape[1])
    if len(y_R):
        weight_F[0] = 0.0 if offset_R.any() else np.log(max(float(y_R.mean()), 1e-12))
    for _ in range(30):
        mean_R = np.exp(np.clip(offset_R + x_RF @ weight_F, -20, 20))
        curvature = (x_RF * mean_R[:, None]).T @ x_RF + penalty_FF + 1e-9 * np.eye(len(weight_F))
        weight_F += np.clip(np.linalg.solve(curvature, x_RF.T @ (y_R - mean_R) - penalty_FF @ weight_F), -1, 1)
    return weight_F


def _shares(label_RA: np.ndarray, bin_R: np.ndarray, bins: int, actions: Sequence[Action]) -> np.ndarray:
    """Share of full work's value by bin and action: [B, A], monotone, the last column 1."""
    total_BA = np.stack([np.bincount(bin_R, column, bins) for column in label_RA.T], 1)
    share_BA = (total_BA + SHRINK * label_RA.mean(0)) / (total_BA[:, -1:] + SHRINK * label_RA[:, -1].mean())
    of_level: dict[str, list[int]] = {}
    for place, action in enumerate(actions):
        if action.kind is Kind.RANK:
            of_level.setdefault(action.level, []).append(place)
    for share_A in share_BA:
        for places in of_level.values():
            share_A[places] = isotonic_regression(share_A[places])
            for shorter, longer in itertools.pairwise(places):
                share_A[longer] = max(share_A[longer], (1 + LONGER_MIN) * share_A[shorter])
        below = {actions[place].candidates: place for place in of_level.get(TWO_PASS, ())}
        for place in of_level.get(FULL, ()):
            least = below.get(actions[place].candidates)
            share_A[place] = share_A[place] if least is None else max(share_A[place], (1 + GAIN_MIN) * share_A[least])
        first = min(share_A[places[0]] for places in of_level.values())
        for place, action in enumerate(actions):
            if action.kind is Kind.PASS:
                share_A[place] = min(share_A[place], first)
    return np.asarray(share_BA / share_BA[:, -1:])
