"""Answers from cached scores: what age costs in value, how far predictions of shown items are off, what a calibration by age mends.

A score is what the features say plus the model's error. Ten of ten thousand candidates are shown, by a score of now or of an earlier request. The truth moves
on meanwhile, and some candidates are gone. Calibrations learn from the clicks of one day and are judged by the true chances of another one.

The items of an answer are the highest of thousands of predictions, so their predictions are too high (the winner's curse). The older the scores, the higher:
changes since then are noise that the choice selected. Only clicks of SHOWN cached answers see that, so each age has its own Platt scaling.

Arrays: R shown items, F features.
"""

from dataclasses import dataclass

import numpy as np

from streams.allocation.calibration_fit import fit_platt

AGES_S = (0, 60, 120, 600, 1800, 7200)
TAU_S, GONE_S, CANDIDATES, SHOWN, KEPT = 3000.0, 6000.0, 10_000, 10, 1000
REPEATS, GAP_S = 0.5, 180.0  # share of requests of users who asked before, and the mean time since then
TTLS_S = (30, 60, 120, 300, 600, 1800)
_BINS = 10


@dataclass(frozen=True)
class AtAge:
    """Of one age on one day: shown items, random candidates, true value of an answer, and the share of the ten truly best in its first hundred."""

    logit_R: np.ndarray
    chance_R: np.ndarray
    random_logit_R: np.ndarray
    random_chance_R: np.ndarray
    value: float
    hit_rate_100: float


def draw_day(seed: int, answers: int) -> dict[int, AtAge]:
    """Cached answers of each age."""
    found = {}
    for age in AGES_S:
        rng = np.random.default_rng([seed, 21])  # the same users at every age
        keep, shown_rows, random_rows, values, hits = np.exp(-age / TAU_S), [], [], [], []
        for _ in range(answers):
            base = -4.5 + rng.normal(0, 0.6)
            part, error, moved, rest = (rng.standard_normal(CANDIDATES, np.float32) for _ in range(4))
            said = base + 1.2 * part + 0.35 * error
            chance = 1 / (1 + np.exp(-(base + 1.2 * (keep * part + np.sqrt(1 - keep**2) * moved) + 0.5 * rest)))
            kept = np.argpartition(-said, KEPT)[:KEPT]  # a cache keeps the best thousand
            kept = kept[rng.random(KEPT) < np.exp(-age / GONE_S)]
            order = kept[np.argsort(-said[kept])]
            shown, random = order[:SHOWN], rng.integers(0, CANDIDATES, SHOWN)
            shown_rows.append((said[shown], chance[shown]))
            random_rows.append((said[random], chance[random]))
            values.append(chance[shown].sum())
            hits.append(len(np.intersect1d(np.argpartition(-chance, 10)[:10], order[:100])) / 10)
        logit_R, chance_R = (np.concatenate(column) for column in zip(*shown_rows, strict=True))
        random_logit_R, random_chance_R = (np.concatenate(column) for column in zip(*random_rows, strict=True))
        found[age] = AtAge(logit_R, chance_R, random_logit_R, random_chance_R, float(np.mean(values)), float(np.mean(hits)))
    return found


@dataclass(frozen=True)
class Calibrated:
    """Ratios of predicted to true clicks of shown items: as predicted, with Platt of this age, of random candidates; and the error (ECE)."""

    value: float
    hit_rate_100: float
    raw: float
    platt: float
    of_random: float
    platt_ece: float


def measure_ages(seed: int, answers: int) -> dict[int, Calibrated]:
    """Learnt on one day, judged on another."""
    learn, judge, rng = draw_day(2 * seed, answers), draw_day(2 * seed + 1, answers), np.random.default_rng([seed, 22])
    fresh = learn[0]
    from_random = fit_platt(fresh.random_logit_R, rng.random(len(fresh.random_chance_R)) < fresh.random_chance_R)
    found = {}
    for age, of in judge.items():
        own = fit_platt(learn[age].logit_R, rng.random(len(learn[age].chance_R)) < learn[age].chance_R)
        raw_R, own_R, random_R = (_sigmoid(of.logit_R * w[0] + w[1]) for w in ((1.0, 0.0), own, from_random))
        true = of.chance_R.mean()
        raw, platt, of_random = (float(predicted.mean() / true) for predicted in (raw_R, own_R, random_R))
        error = calibration_error(own_R, of.chance_R)
        found[age] = Calibrated(of.value / judge[0].value, of.hit_rate_100, raw, platt, of_random, error)
    return found


def calibration_error(predicted_R: np.ndarray, chance_R: np.ndarray) -> float:
    """Mean distance of predicted and true chance over bins of equal size, relative to the mean true chance (ECE)."""
    bin_R = np.searchsorted(np.quantile(predicted_R, np.arange(1, _BINS) / _BINS), predicted_R)
    distance = [
        abs(predicted_R[bin_R == b].mean() - chance_R[bin_R == b].mean()) * (bin_R == b).mean() for b in range(_BINS) if (bin_R == b).any()
    ]
    return float(sum(distance) / chance_R.mean())


def hit_share(ttl_s: float) -> float:
    """The share of requests that find an answer of at most this age."""
    return float(REPEATS * (1 - np.exp(-ttl_s / GAP_S)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))
