"""Fits of values, drops and calibration, and the gate, on requests whose true values are known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from schemas.allocation import ActionTable, Costs, Gate, LevelCost, Requests, Values, list_actions, stack_costs, stack_values
from schemas.errors import Unavailable
from schemas.knapsack import best_mix, choose, find_price, take
from streams.allocation.calibration_fit import AGES_S, fit_ages, fit_isotonic, fit_kept, fit_platt
from streams.allocation.drop_fit import fit_rule, fit_valid
from streams.allocation.gate import judge_table
from streams.allocation.value_fit import Samples, fit_values

ACTIONS = list_actions(("vectors", "full"), (1000, 4000))
COSTS = Costs({"vectors": LevelCost(1.0, 0.3), "full": LevelCost(1.0, 0.6, 0.2)})
SHARES = np.array([0.0, 0.3, 0.0, 0.6, 0.75, 0.8, 1.0])
RANKED = [1, 3, 4, 5, 6]


def draw_requests(count: int, seed: int) -> tuple[Requests, np.ndarray, np.ndarray]:
    """Requests, their users, and the true value of each action."""
    rng = np.random.default_rng(seed)
    log_value = rng.normal(0, 1, count)
    behaviours = np.exp(rng.normal(6, 1, count)).astype(int)
    nan = np.full(count, np.nan)
    requests = Requests(np.full(count, 4000), behaviours, np.zeros(count, bool), np.exp(log_value), nan, nan)
    return requests, rng.integers(0, count // 3, count), 2 * np.exp(log_value)[:, None] * SHARES


def draw_samples(count: int, seed: int, arm: str = "random") -> tuple[Samples, np.ndarray]:
    """Half probes, half random actions; or random actions only."""
    requests, user, true = draw_requests(count, seed)
    rng = np.random.default_rng(seed + 1)
    arms = np.where(rng.random(count) < 0.5, "probe", "random") if arm == "probe" else np.full(count, "random")
    action = np.where(arms == "probe", len(ACTIONS) - 1, rng.choice(RANKED, count))
    predicted = np.where((arms == "probe")[:, None], 3 * true**0.9 + 1e-9, np.nan)
    propensity = np.where(arms == "probe", 1.0, 1 / len(RANKED))
    return Samples(user, requests, action, arms, propensity, rng.poisson(take(true, action)).astype(float), predicted), true


def table_of(values: Values, mean: np.ndarray) -> ActionTable:
    return ActionTable(1, 1, ACTIONS, COSTS, values, tuple(mean), 0.3, gate=Gate(0, 0, 0))


@pytest.fixture(scope="module")
def table() -> ActionTable:
    samples, _ = draw_samples(12_000, 0, "probe")
    return table_of(*fit_values(samples, ACTIONS))


def test_values_are_learnt_and_monotone(table: ActionTable) -> None:
    requests, _, true = draw_requests(3_000, 5)
    said = stack_values(table, requests)
    ranked = [3, 4, 5, 6]
    assert np.corrcoef(np.log(said[:, -1]), np.log(true[:, -1]))[0, 1] > 0.97
    assert said[:, ranked].mean(0) == pytest.approx(true[:, ranked].mean(0), rel=0.08)
    shares = np.array(table.values.shares)
    assert (shares[:, 4] > shares[:, 3]).all() and (shares[:, 6] > shares[:, 5]).all(), "longer adds something"
    assert (shares[:, 5:] > shares[:, 3:5]).all() and (shares[:, -1] == 1).all() and (shares[:, 1] <= shares[:, 3]).all()


def test_too_few_probes_are_no_fit() -> None:
    with pytest.raises(Unavailable, match="too_few_probes"):
        fit_values(draw_samples(300, 0, "probe")[0], ACTIONS)


def test_the_logarithm_may_be_the_shape_of_lengths() -> None:
    values, _ = fit_values(draw_samples(4_000, 0, "probe")[0], ACTIONS, form="log")
    assert all(row[6] > row[5] for row in values.shares)


def _gate(
    table: ActionTable, believed: np.ndarray, judged: Samples, share: float
) -> tuple[Gate, np.ndarray, tuple[tuple[int, float], ...], float]:
    cost = stack_costs(table, judged.requests)
    budget = share * cost[:, -1].mean()
    price = find_price(believed, cost, budget)
    mix = tuple(best_mix(np.array(table.mean_row), cost.mean(0), budget))
    return judge_table(believed, cost, price, mix, judged), choose(believed, cost, price), mix, price


def test_the_gate_opens_for_values_that_pay_and_tells_the_truth(table: ActionTable) -> None:
    judged, true = draw_samples(60_000, 9)
    believed = stack_values(table, judged.requests)
    believed[:, 2] = -np.inf
    gate, action, mix, price = _gate(table, believed, judged, 0.5)
    cost = stack_costs(table, judged.requests)
    static = sum(share * true[:, place].mean() for place, share in mix)
    dearer = take(cost, action).mean() - sum(share * cost[:, place].mean() for place, share in mix)
    truth = (take(true, action).mean() - static - price * dearer) / static
    assert gate.serves and gate.low <= truth <= gate.high and truth > 0.02


def test_the_gate_stays_closed_for_values_of_other_requests(table: ActionTable) -> None:
    """Judged by themselves they would pay: that is what a judgement by estimates says. Their outcomes say that they do not."""
    judged, _ = draw_samples(60_000, 10)
    believed = np.random.default_rng(3).permutation(stack_values(table, judged.requests))
    believed[:, 2] = -np.inf
    cost = stack_costs(table, judged.requests)
    gate, action, mix, _ = _gate(table, believed, judged, 0.5)
    by_itself = take(believed, action).mean() / sum(share * believed[:, place].mean() for place, share in mix) - 1
    assert by_itself > 0.02 and not gate.serves
    few = judged.rows(np.arange(len(judged.user_R)) < 500)
    assert judge_table(believed[:500], cost[:500], 0.1, mix, few) == Gate(), "too few to judge by"


def test_the_row_of_the_rule_is_the_shortest_within_both_limits() -> None:
    rng = np.random.default_rng(0)
    valid = [rng.random(60) < chance for chance in rng.uniform(0.02, 0.6, 300)]
    loose, tight = fit_rule(valid, 0.3, 0.2), fit_rule(valid, 0.1, 0.02)
    assert 2 <= loose.row < tight.row and fit_rule(valid, 0.0, 0.0).row == 0


def test_answers_that_were_rarely_given_weigh_more() -> None:
    """A model that drops half of the requests whose x is 0 still learns their chance; taking drops as invalid it would not."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, 40_000)
    valid, answered = rng.random(40_000) < np.where(x, 0.6, 0.3), np.where(x, 1.0, 0.1)
    seen = rng.random(40_000) < answered
    design = np.stack([np.ones(40_000), x], 1)
    by_weight = fit_valid(design[seen], valid[seen], answered[seen])
    as_invalid = fit_valid(design, valid & seen, np.ones(40_000))
    chance = [1 / (1 + np.exp(-(w[0]))) for w in (by_weight, as_invalid)]
    assert chance[0] == pytest.approx(0.3, abs=0.03) and chance[1] < 0.05


def test_calibration_is_of_its_own_age_and_kept_value_never_rises() -> None:
    rng = np.random.default_rng(0)
    age = rng.choice([0.0, 600.0], 30_000)
    logit = rng.normal(-1, 1, 30_000)
    chance = 1 / (1 + np.exp(-np.where(age > 0, 0.5 * logit - 1.0, logit)))
    clicked = rng.random(30_000) < chance
    ages = fit_ages(age, logit, clicked, [1.0, 0.9, 0.95, 0.8, 0.7, 0.9])
    by_age = {a.age_s: a for a in ages}
    assert tuple(by_age) == AGES_S and all(later.kept <= earlier.kept for earlier, later in itertools.pairwise(ages))
    assert (by_age[600.0].slope, by_age[600.0].intercept) == (pytest.approx(0.5, abs=0.1), pytest.approx(-1.0, abs=0.15))
    assert by_age[300.0].slope == by_age[0.0].slope == pytest.approx(1.0, abs=0.1), "an age without clicks keeps the one before"
    knots, probability = fit_isotonic(logit[age == 0], clicked[age == 0])
    assert np.interp(logit[age == 0], knots, probability).mean() == pytest.approx(clicked[age == 0].mean(), rel=1e-6)
    assert fit_kept(np.zeros(200), np.full(200, 0.8), np.ones(200))[0] == pytest.approx(0.8)


def test_a_domain_feature_takes_the_difference_of_two_models() -> None:
    rng = np.random.default_rng(1)
    logit, other = rng.normal(-1, 1, 20_000), rng.integers(0, 2, 20_000)
    clicked = rng.random(20_000) < 1 / (1 + np.exp(-(logit - 0.8 * other)))
    weights = fit_platt(logit, clicked, other[:, None].astype(float))
    assert weights[2] == pytest.approx(-0.8, abs=0.12)
    assert replace(Gate(), low=0.0).serves
