"""The studies of `aif eval allocation` on small libraries: what must hold whatever the numbers are, and planted faults."""

import numpy as np
import pytest

from lab.evaluation.allocation.budgets import Frontier, allowed_values, learn_table, measure_budgets, true_values
from lab.evaluation.allocation.cached import measure_ages
from lab.evaluation.allocation.day import Priced, draw_traffic, run_day
from lab.evaluation.allocation.drops import drop_by_model, drop_by_rule, drop_by_truth, fit_valid
from lab.evaluation.allocation.library import ACTIONS, COST_TABLE, Library, make_library, split_users
from schemas.allocation import stack_costs
from schemas.drop_rule import Shown


@pytest.fixture(scope="module")
def library() -> Library:
    return make_library(1_600, 500, 0)


def test_a_library_is_the_same_for_a_seed_and_more_work_is_worth_more(library: Library) -> None:
    assert np.array_equal(make_library(5, 3, 1).true_RA, make_library(5, 3, 1).true_RA)
    mean = library.true_RA.mean(0)
    full = [i for i, action in enumerate(ACTIONS) if action.level == "full"]
    assert (np.diff(mean[full]) > 0).all() and mean[full[-1]] == mean.max() and mean[0] == 0 < mean[1] < mean[3]
    users = [set(part.user_R) for part in split_users(library)]
    assert not (users[0] & users[1] or users[0] & users[2] or users[1] & users[2])


def test_nothing_beats_the_bound_and_estimates_that_judge_themselves_are_too_good(library: Library) -> None:
    learn, _, judge = split_users(library)
    cost, true = stack_costs(COST_TABLE, judge.requests), true_values(judge)
    table = learn_table(learn, np.random.default_rng(0))
    believed = allowed_values(table, judge)
    known, learnt = (measure_budgets(judge, Frontier.of(of, true, cost)) for of in (true, believed))
    noisy = judge.true_RA * np.random.default_rng(1).lognormal(0, 0.5, judge.true_RA.shape)
    noisy[:, 2] = -np.inf
    by_itself, by_truth = (measure_budgets(judge, Frontier.of(noisy, by, cost)) for by in (noisy, true))
    for share, at in known.items():
        assert 0 <= at.regret_known < 0.005
        assert learnt[share].over_tuned < at.over_tuned + 1e-6
        assert by_itself[share].over_tuned > by_truth[share].over_tuned + 0.05


def test_the_plan_holds_the_load_in_a_day_with_spikes(library: Library) -> None:
    _, _, judge = split_users(library)
    cost = stack_costs(COST_TABLE, judge.requests)
    day = run_day(Priced.of(judge, true_values(judge), cost), draw_traffic(0), "mpc", 0, 0.5)
    assert 0.8 < day.utilisation < 0.97 and day.over < 0.01 and day.spike_over < 0.1, (
        "two passes of all leave time where the load is just too high"
    )


def test_a_drop_that_counts_as_invalid_drops_nearly_all() -> None:
    dropped, lost = drop_by_rule(0, 5)
    stuck, _ = drop_by_rule(0, 5, dropped_as=Shown.INVALID)
    assert 0.05 < dropped < 0.1 and lost < dropped and stuck > 0.8
    share, by_model = drop_by_model(0, 0.3)
    assert drop_by_truth(0, share) < by_model < share


def test_selection_overestimates_and_calibration_by_age_mends_it() -> None:
    ages = measure_ages(0, 150)
    assert 1.1 < ages[0].raw < ages[600].raw < ages[1800].raw
    assert 0.85 < ages[600].platt < 1.15 and ages[600].of_random > 1.3


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
