"""Fits of values and drops, and the gate, on requests whose true values are known."""

from dataclasses import replace

import numpy as np
import pytest

from schemas.actions import list_actions
from schemas.allocation import ASSUMED_AGES, ActionTable, Costs, Gate, LevelCost, Requests, Values, stack_costs, stack_values
from schemas.errors import Unavailable
from schemas.events import AllocationOutcome, ImpressionRecord
from schemas.knapsack import best_mix, choose, find_price, take
from streams.allocation.calibration_fit import ShownAgain, fit_ages, join_clicks
from streams.allocation.drop_fit import fit_drops, fit_rule, valid_by_user
from streams.allocation.gate import judge_table
from streams.allocation.value_fit import Samples, fit_values

ACTIONS = list_actions(("twopass", "full"), (1000, 4000))
COSTS = Costs({"twopass": LevelCost(1.0, 0.3), "full": LevelCost(1.0, 0.6, 0.2)})
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


@pytest.mark.parametrize("scores", [0.0, 1e-300])
def test_probes_without_scores_are_no_fit(scores: float) -> None:
    samples, _ = draw_samples(2_000, 1, "probe")
    with pytest.raises(Unavailable, match="too_few_probes"):
        fit_values(replace(samples, predicted_RA=scores * samples.predicted_RA), ACTIONS)


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


def test_a_rule_must_be_safe_on_other_users_too() -> None:
    """Regulars always buy and the others never do, so long rows lose nothing. Where all users are alike, each row loses as much as it drops."""
    users = np.repeat(np.arange(600), 40)
    drawn, *_ = draw_requests(len(users), 0)
    rng = np.random.default_rng(0)
    ones = np.ones(len(users))

    def of(chance: np.ndarray) -> Samples:
        """A valid request is one after which the history has grown, whatever was paid for it."""
        valid = rng.random(len(users)) < chance
        requests = replace(drawn, behaviours_R=np.cumsum(valid) - valid)
        outcome = np.zeros(len(users))
        outcome[::7] = np.nan  # dropped, or never shown
        return Samples(users, requests, np.full(len(users), 6), np.full(len(users), "policy"), ones, outcome, np.zeros((len(users), 0)))

    regular, alike = of(np.where(users % 40 < 36, 0.99, 0.0)), of(np.full(len(users), 0.1))
    rule, why = fit_drops(regular, regular)
    assert rule.row > 0 and why.startswith(f"row {rule.row} drops")
    for learn, judged, said in (
        (regular, alike, "of other users"),
        (alike, alike, "each row"),
        (regular, of(np.zeros(len(users))), "0 valid"),
    ):
        rule, why = fit_drops(learn, judged)
        assert rule.row == 0 and why.startswith("no rule") and said in why
    clicked = replace(regular, outcome_R=regular.outcome_R + 1)
    assert all(one.all() for one in valid_by_user(clicked)), "a long history does not grow in the records"
    assert [len(one) for one in valid_by_user(regular)] == [39 - sum((40 * user + n) % 7 == 0 for n in range(39)) for user in range(600)]


def test_what_a_request_has_not_cannot_be_chosen() -> None:
    judged, true = draw_samples(3_000, 9)
    costs, mix = np.tile([0.01, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (len(true), 1)), ((3, 1.0),)
    unavailable = np.where(np.arange(7) == 0, -np.inf, true)
    priceless = np.where(np.arange(7) == 0, -1e6, true)
    assert judge_table(unavailable, costs, 50.0, mix, judged).lift == judge_table(priceless, costs, 50.0, mix, judged).lift


def again(age_s: float, turned: bool = False) -> list[ShownAgain]:
    """300 answers of two items, of which the likelier is clicked."""
    logits = np.array([-1.0, 1.0]) * (-1 if turned else 1)
    return [ShownAgain(age_s, logits, np.array([float(n % 4 == 0), float(n % 4 > 0)]), 1.0, 2.0) for n in range(300)]


def test_a_fitted_age_replaces_its_neighbours_only_and_turns_no_order_around() -> None:
    ages = fit_ages(again(20.0), ASSUMED_AGES)
    assert [age.age_s for age in ages] == [20.0, 600.0, 1800.0], "older answers are still given, and so measured"
    assert [age.kept for age in ages] == [0.5, 0.5, 0.35] and len({age.slope for age in ages}) == 1 and ages[0].slope != 1.0
    assert [age.age_s for age in fit_ages(again(1_000.0), ASSUMED_AGES)] == [0.0, 600.0, 1_000.0, 1_800.0]
    assert fit_ages(again(20.0, turned=True), ASSUMED_AGES) == ASSUMED_AGES


def test_a_cached_answer_that_was_shown_in_two_parts_is_one_answer() -> None:
    work = {"cost_ms": 0.1, "value": 1.0, "candidates": 9, "behaviours": 1, "cached_s": 20.0, "items": [1, 2], "logits": [0.5, -0.5]}
    fields = {"request_id": "a", "user_id": 1, "time_ms": 1_000, "version": 7, "table": "v7-1", "propensity": 0.9, "price": 0.1}
    names = {"action": "cached", "state": "cached", "arm": "policy", "source": "queue"}
    outcome = AllocationOutcome.model_validate(work | fields | names)
    parts = [
        ImpressionRecord.model_validate(
            {
                "request_id": "a",
                "user_id": 1,
                "time_ms": 2_000,
                "items": [{"item_id": item, "position": item, "bid": 2.0, "clicked": True}],
            }
        )
        for item in (1, 2)
    ]
    [one] = join_clicks([outcome], [*parts, *parts], {"a": 3.0})
    assert (one.value, one.whole, len(one.logit_R)) == (4.0, 3.0, 2)
