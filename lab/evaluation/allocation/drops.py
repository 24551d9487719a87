"""Share of requests dropped against value lost: by rule, by a model, at random, and by who knows the truth.

A user's chance of a valid request moves slowly. A model is fitted each round and drops a share of the next one. Its value is the chance times the worth
of a valid request. It learns from answered requests, weighted by one over the chance to be answered.

A dropped request has no label. Taken as invalid, it would confirm the model that dropped it; the evaluation shows what this fault costs.

Arrays: U users, S steps, R requests, F features.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

from schemas.drop_rule import DropRule, Shown, fold_row

USERS, ROUNDS, STEPS = 1_500, 7, 24
UNDROPPED = 0.02
ROWS = (2, 3, 4, 5, 6, 8, 10, 15)
SHARES = (0.1, 0.2, 0.3, 0.5)
_WEIGHT_MAX = 50.0


def draw_users(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True chance of a valid request [S, U], and the worth of one [U]."""
    rng = np.random.default_rng([seed, 9])
    base_U, state_U = rng.normal(-1.2, 0.9, USERS), rng.standard_normal(USERS)
    chance_SU = np.empty((ROUNDS * STEPS, USERS))
    for step in range(len(chance_SU)):
        state_U = 0.98 * state_U + np.sqrt(1 - 0.98**2) * rng.standard_normal(USERS)
        base_U += 0.02 * rng.standard_normal(USERS)
        chance_SU[step] = 1 / (1 + np.exp(-(base_U + 1.2 * state_U + 0.5 * np.sin(2 * np.pi * step / STEPS))))
    return chance_SU, np.exp(rng.normal(0, 0.8, USERS))


def drop_by_rule(seed: int, row: int, *, dropped_as: Shown = Shown.DROPPED) -> tuple[float, float]:
    """(share dropped, share of the value lost) of the rule. `dropped_as`: what a drop counts as; anything but DROPPED is a fault."""
    chance_SU, worth_U = draw_users(seed)
    rng, rule = np.random.default_rng(seed), DropRule(row, 1.0)
    row_U, dropped, lost, total = [0] * USERS, 0, 0.0, 0.0
    for step, chance_U in enumerate(chance_SU):
        drop_U = np.array([rule.is_due(n) for n in row_U])
        valid_U = rng.random(USERS) < chance_U
        if step >= STEPS:
            dropped, lost, total = (
                dropped + int(drop_U.sum()),
                lost + (chance_U * worth_U)[drop_U].sum(),
                total + (chance_U * worth_U).sum(),
            )
        row_U = [
            fold_row(n, dropped_as if drop else Shown.VALID if valid else Shown.INVALID)
            for n, drop, valid in zip(row_U, drop_U, valid_U, strict=True)
        ]
    return dropped / (USERS * (ROUNDS - 1) * STEPS), lost / total


def drop_by_truth(seed: int, share: float) -> float:
    """The share of the value lost by who knows it and drops `share` of the requests."""
    chance_SU, worth_U = draw_users(seed)
    value = chance_SU[STEPS:] * worth_U
    return float(value[value < np.quantile(value, share)].sum() / value.sum())


def drop_by_model(seed: int, share: float, *, drops_are_invalid: bool = False) -> tuple[float, float]:
    """(share dropped, share of the value lost) over the rounds in which the model drops. `drops_are_invalid`: it learns from drops too, which is a fault."""
    chance_SU, worth_U = draw_users(seed)
    rng = np.random.default_rng(seed)
    row_U, rate_U, since_U = np.zeros(USERS), np.full(USERS, 0.25), np.zeros(USERS)
    w_F, least, lost, total, dropped, asked = np.zeros(0), -np.inf, 0.0, 0.0, 0, 0
    for turn in range(ROUNDS):
        seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for step in range(turn * STEPS, (turn + 1) * STEPS):
            x_UF = _features(row_U, rate_U, since_U, worth_U, step)
            wanted_U = worth_U / (1 + np.exp(-x_UF @ w_F)) < least if len(w_F) else np.zeros(USERS, bool)
            slice_U = rng.random(USERS) < UNDROPPED
            drop_U, valid_U = wanted_U & ~slice_U, rng.random(USERS) < chance_SU[step]
            if len(w_F):
                value_U = chance_SU[step] * worth_U
                lost, total, dropped, asked = (
                    lost + value_U[drop_U].sum(),
                    total + value_U.sum(),
                    dropped + int(drop_U.sum()),
                    asked + USERS,
                )
            answered_U = np.ones(USERS) if drops_are_invalid else np.where(wanted_U, UNDROPPED, 1.0)
            use_U = np.ones(USERS, bool) if drops_are_invalid else ~drop_U
            seen.append((x_UF[use_U], (valid_U & ~drop_U)[use_U], answered_U[use_U]))
            row_U = np.where(drop_U, 0, np.where(valid_U, 0, row_U + 1))
            rate_U = np.where(drop_U, rate_U, np.clip(rate_U + 0.15 * (valid_U - rate_U), 0.01, 0.99))
            since_U = np.where(drop_U, since_U + 1, 0)
        w_F = fit_valid(*(np.concatenate(column) for column in zip(*seen, strict=True)))
        value_U = worth_U / (1 + np.exp(-_features(row_U, rate_U, since_U, worth_U, 0) @ w_F))
        least = float(np.quantile(value_U, min(1.0, share / (1 - UNDROPPED))))
    return dropped / asked, lost / total


def fit_valid(x_RF: np.ndarray, valid_R: np.ndarray, answered_R: np.ndarray) -> np.ndarray:
    """Weights [F] of a logistic regression of `valid` on answered requests. `answered_R`: the chance of each to be answered."""
    weight_R = np.minimum(1 / np.maximum(answered_R, 1e-9), _WEIGHT_MAX)
    return np.asarray(LogisticRegression(fit_intercept=False).fit(x_RF, valid_R, weight_R).coef_[0])


def _features(row_U: np.ndarray, rate_U: np.ndarray, since_U: np.ndarray, worth_U: np.ndarray, step: int) -> np.ndarray:
    hour = np.full(len(row_U), np.sin(2 * np.pi * step / STEPS))
    return np.stack(
        [np.ones(len(row_U)), np.minimum(row_U, 10), np.log(rate_U / (1 - rate_U)), np.log1p(since_U), np.log(worth_U), hour], 1
    )
