"""Value at equal cost and cost at equal value, for budgets that are shares of what full work costs.

The rule decides by values that were learnt from outcomes of other users; the true values judge it. Baselines know the true mean value of every action: the
best static mix of all actions (tuned), and of one model with shorter queues (today).

Arrays: R requests, A actions, P prices.
"""

from dataclasses import dataclass, replace

import numpy as np

from lab.evaluation.allocation.cached import GAP_S, REPEATS
from lab.evaluation.allocation.library import ACTIONS, ALL, CACHED, COST_TABLE, QUEUE_ONLY, Library
from schemas.allocation import ActionTable, CachedAge, Gate, stack_costs, stack_values
from schemas.knapsack import best_mix, choose, dual_bound, find_price, take
from streams.allocation.gate import judge_table
from streams.allocation.value_fit import Samples, fit_values

SHARES = (0.15, 0.30, 0.50)
GATE_REQUESTS = 150_000
TRIED = 4  # random actions for each probe
PRICES = 120
OPEN = Gate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class AtBudget:
    """One budget. Shares, not percent."""

    regret_known: float
    over_tuned: float
    over_today: float
    saved_tuned: float
    saved_today: float
    believed_over_true: float


def draw_samples(library: Library, rng: np.random.Generator) -> Samples:
    """What a server logs of these requests: one probe of each, and `TRIED` random actions. An outcome is a Poisson count of the true value."""
    count, rank = len(library.user_R), [place for place in ALL if place != 0]
    action_R = np.concatenate([np.full(count, len(ACTIONS) - 1), rng.choice(rank, TRIED * count)])
    drawn = library.rows(np.tile(np.arange(count), 1 + TRIED))
    outcome_R = rng.poisson(take(drawn.true_RA, action_R)).astype(float)
    predicted_RA = np.full(drawn.true_RA.shape, np.nan)
    predicted_RA[:count] = library.predicted_RA
    arm_R, propensity_R = np.repeat(["probe", "random"], [count, TRIED * count]), np.repeat([1.0, 1 / len(rank)], [count, TRIED * count])
    return Samples(drawn.user_R, drawn.requests, action_R, arm_R, propensity_R, outcome_R, predicted_RA)


def learn_table(library: Library, rng: np.random.Generator) -> ActionTable:
    """The table that a fit makes of these requests' outcomes, with an open gate."""
    values, mean_A = fit_values(draw_samples(library, rng), ACTIONS)
    table = replace(COST_TABLE, values=values, mean_row=tuple(map(float, mean_A)), gate=OPEN)
    value_RA, cost_RA = allowed_values(table, library), stack_costs(table, library.requests)
    full_ms = float(cost_RA[:, -1].mean())
    return replace(table, queue_price=find_price(value_RA[:4000], cost_RA[:4000], 0.25 * full_ms), full_ms=full_ms)


def allowed_values(table: ActionTable, library: Library, *, blind: bool = False) -> np.ndarray:
    """Believed values [R, A]; no library has cached answers."""
    value_RA = stack_values(table, library.requests, blind=blind)
    value_RA[:, CACHED] = -np.inf
    return value_RA


@dataclass(frozen=True)
class Frontier:
    """Mean cost and mean value over a grid of prices, cost rising."""

    cost_P: np.ndarray
    value_P: np.ndarray
    believed_P: np.ndarray

    @classmethod
    def of(cls, believed_RA: np.ndarray, true_RA: np.ndarray, cost_RA: np.ndarray) -> "Frontier":
        """Decided by `believed`, judged by `true`."""
        top = believed_RA[np.isfinite(believed_RA)].max() / 0.05
        rows = []
        for price in [*np.geomspace(top, 1e-7 * top, PRICES - 1), 0.0]:
            action_R = choose(believed_RA, cost_RA, float(price))
            rows.append([take(of, action_R).mean() for of in (cost_RA, true_RA, believed_RA)])
        return cls(*np.array(rows).T)

    @classmethod
    def of_mixes(cls, table: ActionTable, learn: Library, judge: Library) -> "Frontier":
        """Of the static mixes that a fit tunes on `learn` for each budget, judged on other requests."""
        cost_A, value_A = stack_costs(COST_TABLE, judge.requests).mean(0), judge.true_RA.mean(0)
        rows = []
        for share in np.geomspace(0.02, 1.0, PRICES):
            mix = static_mix(table, learn, float(share))
            rows.append([sum(part * float(of_A[place]) for place, part in mix) for of_A in (cost_A, value_A, table.mean_row)])
        return cls(*np.array(rows).T)


def measure_budgets(library: Library, learnt: Frontier) -> dict[float, AtBudget]:
    """The figures by budget of a policy that decides by values which other users' outcomes gave."""
    cost_RA, true_RA = stack_costs(COST_TABLE, library.requests), true_values(library)
    full_ms = float(cost_RA[:, -1].mean())
    found = {}
    rising_P = np.maximum.accumulate(learnt.value_P)
    for share in SHARES:
        budget = share * full_ms
        tuned, today = (static_value(true_RA, cost_RA, budget, allowed) for allowed in (ALL, QUEUE_ONLY))
        exact = take(true_RA, choose(true_RA, cost_RA, find_price(true_RA, cost_RA, budget))).mean()
        got, believed = (float(np.interp(budget, learnt.cost_P, of_P)) for of_P in (learnt.value_P, learnt.believed_P))
        saved = [1 - float(np.interp(value, rising_P, learnt.cost_P)) / budget for value in (tuned, today)]
        regret = 1 - exact / dual_bound(true_RA, cost_RA, budget)
        found[share] = AtBudget(regret, got / tuned - 1, got / today - 1, saved[0], saved[1], believed / got)
    return found


def true_values(library: Library) -> np.ndarray:
    """True values [R, A], without cached answers."""
    true_RA = library.true_RA.copy()
    true_RA[:, CACHED] = -np.inf
    return true_RA


def static_mix(table: ActionTable, library: Library, share: float) -> list[tuple[int, float]]:
    """The static mix that a fit would tune at a budget, from its mean row and the costs of these requests."""
    cost_RA = stack_costs(table, library.requests)
    value_A = np.where(np.arange(len(ACTIONS)) == CACHED, -np.inf, table.mean_row)
    return best_mix(value_A, cost_RA.mean(0), share * float(cost_RA[:, -1].mean()))


def judge_gate(table: ActionTable, learn: Library, others: Library, share: float, rng: np.random.Generator) -> Gate:
    """The gate at a budget, by logged random actions of `others`: users from whom the table did not learn."""
    rank = [place for place in ALL if place != 0]
    row_R, action_R = rng.integers(0, len(others.user_R), GATE_REQUESTS), rng.choice(rank, GATE_REQUESTS)
    drawn = others.rows(row_R)
    outcome_R = rng.poisson(take(drawn.true_RA, action_R)).astype(float)
    arm_R, propensity_R = np.full(GATE_REQUESTS, "random"), np.full(GATE_REQUESTS, 1 / len(rank))
    judged = Samples(drawn.user_R, drawn.requests, action_R, arm_R, propensity_R, outcome_R, np.zeros((GATE_REQUESTS, 0)))
    value_RA, cost_RA = allowed_values(table, learn), stack_costs(table, learn.requests)
    price = find_price(value_RA, cost_RA, share * float(cost_RA[:, -1].mean()))
    mix = tuple(static_mix(table, learn, share))
    return judge_table(allowed_values(table, drawn), stack_costs(table, drawn.requests), price, mix, judged)


def measure_cached(library: Library, believed_RA: np.ndarray, ages: tuple[CachedAge, ...], ttl_s: float, rng: np.random.Generator) -> float:
    """Value over the tuned mix at the smallest budget if cached answers of at most this age are one more action. `ages`: the value that they keep."""
    count = len(library.user_R)
    age_R = np.where(rng.random(count) < REPEATS, rng.exponential(GAP_S, count), np.inf)
    keeps = replace(COST_TABLE, ages=(*ages, CachedAge(ages[-1].age_s + 1, 0.0)))
    kept_R = np.array([keeps.kept_share(age) if age <= ttl_s else -1.0 for age in age_R])
    true_RA, cost_RA, believed_RA = true_values(library), stack_costs(COST_TABLE, library.requests), believed_RA.copy()
    budget = SHARES[0] * float(cost_RA[:, -1].mean())
    tuned = static_value(true_RA, cost_RA, budget, ALL)
    for of_RA in (true_RA, believed_RA):
        of_RA[:, CACHED] = np.where(kept_R >= 0, kept_R * of_RA[:, -1], -np.inf)
    return float(take(true_RA, choose(believed_RA, cost_RA, find_price(believed_RA, cost_RA, budget))).mean() / tuned - 1)


def static_value(true_RA: np.ndarray, cost_RA: np.ndarray, budget: float, allowed: list[int]) -> float:
    """The true mean value of the best mix of two of the allowed actions within the budget."""
    value_A, cost_A = true_RA[:, allowed].mean(0), cost_RA[:, allowed].mean(0)
    return float(sum(share * value_A[place] for place, share in best_mix(value_A, cost_A, budget)))
