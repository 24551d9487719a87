"""`aif eval allocation`: all studies over several seeds, as figures with intervals, and the picture of the curves.

A figure is the mean over seeds; its interval is Student's of 95%. Each seed has requests, users, days and outcomes of its own. Values are true values; what
decides has learnt from noisy outcomes of other users, and a gate that sees third users' outcomes says at which budgets it may. Behind a closed gate the mean
row decides, as in a server.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from infra.command import say
from infra.figures import Figures, Interval
from lab.evaluation.allocation.budgets import (
    SHARES,
    Frontier,
    allowed_values,
    judge_gate,
    learn_table,
    measure_budgets,
    measure_cached,
    static_value,
    true_values,
)
from lab.evaluation.allocation.cached import GAP_S, TTLS_S, Calibrated, hit_share, measure_ages
from lab.evaluation.allocation.day import POLICIES, Priced, draw_traffic, run_day
from lab.evaluation.allocation.drops import ROWS, drop_by_model, drop_by_rule, drop_by_truth
from lab.evaluation.allocation.drops import SHARES as DROP_SHARES
from lab.evaluation.allocation.library import ALL, COST_TABLE, QUEUE_ONLY, Library, make_library, split_users
from lab.evaluation.pictures import draw_curves
from lab.figures.declared import read_bench
from schemas.allocation import CachedAge, stack_costs
from schemas.knapsack import choose, find_price, take

ALLOCATION = read_bench("eval allocation")
REQUESTS, QUICK_REQUESTS = 24_000, 12_000
ANSWERS, QUICK_ANSWERS = 600, 250

Curves = dict[str, tuple[list[float], list[float]]]


class OfSeeds:
    """Figures as each seed gives them."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        """A figure of the next seed."""
        self._values[name].append(value)

    def means(self) -> dict[str, Interval]:
        """The mean of each figure over the seeds, with its interval; one seed has none."""
        return {name: _interval(np.array(values)) for name, values in self._values.items()}


def _interval(values: np.ndarray) -> Interval:
    mean, seeds = float(values.mean()), len(values)
    half = float(student.ppf(0.975, seeds - 1) * values.std(ddof=1) / seeds**0.5) if seeds > 1 else math.nan
    return Interval(mean, mean - half, mean + half)


def run_allocation(out: Path, quick: bool, seeds: range) -> Figures:
    """All figures; writes `allocation.svg` into `out`."""
    requests, answers = (QUICK_REQUESTS, QUICK_ANSWERS) if quick else (REQUESTS, ANSWERS)
    report = Figures(ALLOCATION, {"requests": requests, "answers": answers, "seeds": len(seeds), "first_seed": seeds[0]})
    figures, curves = OfSeeds(), Curves()
    for number, seed in enumerate(seeds, 1):
        tell = partial(_tell, f"seed {seed}, {number} of {len(seeds)}")
        tell("requests")
        library = make_library(requests, requests // 4, seed)
        _measure(figures, library, seed, answers, tell, curves)
    for name, mean in figures.means().items():
        report.add_interval(name, mean)
    out.mkdir(parents=True, exist_ok=True)
    draw_curves(out / "allocation.svg", curves)
    return report


def _tell(seed: str, step: str) -> None:
    say(f"{seed}: {step}")


def _measure(figures: OfSeeds, library: Library, seed: int, answers: int, tell: Callable[[str], None], curves: Curves) -> None:
    """Adds one seed's figures. The curves are of the first seed."""
    rng = np.random.default_rng([seed, 5])
    learn, others, judge = split_users(library)
    tell("values and budgets")
    table = learn_table(learn, rng)
    believed_RA, true_RA, cost_RA = allowed_values(table, judge), true_values(judge), stack_costs(COST_TABLE, judge.requests)
    frontiers = {
        "values learnt": Frontier.of(believed_RA, true_RA, cost_RA),
        "mean row": Frontier.of(allowed_values(table, judge, blind=True), true_RA, cost_RA),
        "learnt static mix": Frontier.of_mixes(table, learn, judge),
        "values known": Frontier.of(true_RA, true_RA, cost_RA),
    }
    learnt, blind, mixed = (measure_budgets(judge, frontiers[name]) for name in list(frontiers)[:3])
    figures.add("regret_known", max(of.regret_known for of in learnt.values()))
    for share in SHARES:
        gate = judge_gate(table, learn, others, share, rng)
        served, name = (learnt if gate.serves else blind)[share], f"{100 * share:.0f}"
        figures.add(f"value_over_tuned_{name}", served.over_tuned)
        figures.add(f"value_over_today_{name}", served.over_today)
        figures.add(f"cost_saved_tuned_{name}", served.saved_tuned)
        figures.add(f"cost_saved_today_{name}", served.saved_today)
        figures.add(f"gate_open_{name}", float(gate.serves))
        figures.add(f"gate_lift_{name}", gate.lift)
        figures.add(f"ungated_over_tuned_{name}", learnt[share].over_tuned)
        figures.add(f"blind_over_tuned_{name}", blind[share].over_tuned)
        figures.add(f"mix_over_tuned_{name}", mixed[share].over_tuned)
        figures.add(f"believed_over_true_{name}", learnt[share].believed_over_true)
    _judge_by_itself(figures, judge, cost_RA)
    tell("a day")
    priced, traffic = Priced.of(judge, believed_RA, cost_RA), draw_traffic(seed)
    days = {policy: run_day(priced, traffic, policy, seed, table.queue_price) for policy in POLICIES}
    for policy in POLICIES[1:]:
        figures.add(f"day_over_tuned_{policy}", days[policy].value / days["static"].value - 1)
    for policy in ("feedback", "mpc"):
        day = days[policy]
        figures.add(f"utilisation_{policy}", day.utilisation)
        figures.add(f"over_utilisation_{policy}", day.over)
        figures.add(f"spike_over_utilisation_{policy}", day.spike_over)
        figures.add(f"refused_{policy}", day.refused_share)
    tell("cached answers")
    ages = measure_ages(seed, answers)
    for age_s, minutes in ((0, 0), (600, 10), (1800, 30)):
        at = ages[age_s]
        figures.add(f"calibration_{minutes}", at.platt)
        figures.add(f"ece_{minutes}", at.platt_ece)
        figures.add(f"uncalibrated_{minutes}", at.raw)
        figures.add(f"calibrated_on_random_{minutes}", at.of_random)
        figures.add(f"cached_value_{minutes}", at.value)
        figures.add(f"cached_hr_at_100_{minutes}", at.hit_rate_100)
    keeps = tuple(CachedAge(age_s, at.value) for age_s, at in ages.items())
    figures.add("cached_over_tuned_15", measure_cached(judge, believed_RA, keeps, 60.0, rng))
    tell("drops")
    rules = {row: drop_by_rule(seed, row) for row in ROWS}
    models = {share: drop_by_model(seed, share) for share in DROP_SHARES}
    figures.add("rule_dropped_5", rules[5][0])
    figures.add("rule_lost_5", rules[5][1])
    figures.add("model_dropped_30", models[0.3][0])
    figures.add("model_lost_30", models[0.3][1])
    figures.add("truth_lost_30", drop_by_truth(seed, models[0.3][0]))
    figures.add("drops_as_invalid_lost_30", drop_by_model(seed, 0.3, drops_are_invalid=True)[1])
    if not curves:
        full, whole = float(cost_RA[:, -1].mean()), float(true_RA[:, -1].mean())
        for name, frontier in frontiers.items():
            curves[f"value: {name}"] = ((frontier.cost_P / full).tolist(), (frontier.value_P / whole).tolist())
        shares = np.linspace(0.02, 1, 60)
        for name, allowed in (("best static mix", ALL), ("shorter queues", QUEUE_ONLY)):
            values = [static_value(true_RA, cost_RA, share * full, allowed) / whole for share in shares]
            curves[f"value: {name}"] = (shares.tolist(), values)
        curves["drop: rule"] = tuple(list(column) for column in zip(*rules.values(), strict=True))  # type: ignore[assignment]
        curves["drop: model"] = tuple(list(column) for column in zip(*models.values(), strict=True))  # type: ignore[assignment]
        curves["drop: truth known"] = (list(DROP_SHARES), [drop_by_truth(seed, share) for share in DROP_SHARES])
        curves["drop: at random"] = ([0.0, 0.5], [0.0, 0.5])
        curves |= _by_ttl(ages)


def _judge_by_itself(figures: OfSeeds, judge: Library, cost_RA: np.ndarray) -> None:
    """Adds DCAF's offline protocol at the smallest budget: each request's own predictions decide and judge; and the same decisions by the truth."""
    said_RA, true_RA = replace(judge, true_RA=judge.predicted_RA), true_values(judge)
    own_RA, budget = true_values(said_RA), SHARES[0] * float(cost_RA[:, -1].mean())
    action_R = choose(own_RA, cost_RA, find_price(own_RA, cost_RA, budget))
    figures.add("judged_by_itself_15", take(own_RA, action_R).mean() / static_value(own_RA, cost_RA, budget, ALL) - 1)
    figures.add("judged_by_truth_15", take(true_RA, action_R).mean() / static_value(true_RA, cost_RA, budget, ALL) - 1)


def _by_ttl(ages: dict[int, Calibrated]) -> Curves:
    """Means over the answers that a cache with each TTL gives: hit share, HR@100, and predicted over true clicks with and without calibration."""
    at, curves = np.array(list(ages)), Curves()
    columns = {name: np.array([asdict(of)[name] for of in ages.values()]) for name in ("hit_rate_100", "raw", "platt")}
    curves["ttl: requests that find an answer"] = ([float(t) for t in TTLS_S], [hit_share(t) for t in TTLS_S])
    titles = {"hit_rate_100": "HR@100", "raw": "predicted / true, as cached", "platt": "predicted / true, calibrated by age"}
    for name, column in columns.items():
        means = []
        for ttl_s in TTLS_S:
            age_s = np.linspace(0, ttl_s, 200)
            means.append(float(np.average(np.interp(age_s, at, column), weights=np.exp(-age_s / GAP_S))))
        curves[f"ttl: {titles[name]}"] = ([float(t) for t in TTLS_S], means)
    return curves
