"""`aif eval allocation`: all studies over several seeds, as figures with intervals, and the picture of the curves.

A figure is the mean over seeds; its interval is Student's of 95%. Each seed has requests, users, days and outcomes of its own. Values are true values; what
decides has learnt from noisy outcomes of other users, and a gate that sees third users' outcomes says at which budgets it may. Behind a closed gate the mean
row decides, as in a server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

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
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # 97.5%, by number of seeds

Curves = dict[str, tuple[list[float], list[float]]]


def run_allocation(out: Path, quick: bool, seeds: range) -> Figures:
    """All figures; writes `allocation.svg` into `out`."""
    requests, answers = (QUICK_REQUESTS, QUICK_ANSWERS) if quick else (REQUESTS, ANSWERS)
    figures = Figures(ALLOCATION, {"requests": requests, "answers": answers, "seeds": len(seeds), "first_seed": seeds[0]})
    found, curves = list[dict[str, float]](), Curves()
    for seed in seeds:
        tell = partial(_tell, f"seed {seed}, {len(found) + 1} of {len(seeds)}")
        tell("requests")
        library = make_library(requests, requests // 4, seed)
        found.append(_measure(library, seed, answers, tell, curves))
    add_allocation_figures(figures, found)
    out.mkdir(parents=True, exist_ok=True)
    draw_curves(out / "allocation.svg", curves)
    return figures


def add_allocation_figures(figures: Figures, found: Sequence[Mapping[str, float]]) -> None:
    """The figures of all seeds, each with its interval."""

    def over_seeds(name: str) -> Interval:
        return _interval([of[name] for of in found])

    figures.add_interval("regret_known", over_seeds("regret_known"))
    for budget in (f"{share * 100:.0f}" for share in SHARES):
        figures.add_interval(f"value_over_tuned_{budget}", over_seeds(f"value_over_tuned_{budget}"))
        figures.add_interval(f"value_over_today_{budget}", over_seeds(f"value_over_today_{budget}"))
        figures.add_interval(f"cost_saved_tuned_{budget}", over_seeds(f"cost_saved_tuned_{budget}"))
        figures.add_interval(f"cost_saved_today_{budget}", over_seeds(f"cost_saved_today_{budget}"))
        figures.add_interval(f"gate_open_{budget}", over_seeds(f"gate_open_{budget}"))
        figures.add_interval(f"gate_lift_{budget}", over_seeds(f"gate_lift_{budget}"))
        figures.add_interval(f"ungated_over_tuned_{budget}", over_seeds(f"ungated_over_tuned_{budget}"))
        figures.add_interval(f"blind_over_tuned_{budget}", over_seeds(f"blind_over_tuned_{budget}"))
        figures.add_interval(f"mix_over_tuned_{budget}", over_seeds(f"mix_over_tuned_{budget}"))
        figures.add_interval(f"believed_over_true_{budget}", over_seeds(f"believed_over_true_{budget}"))
    figures.add_interval("judged_by_itself_15", over_seeds("judged_by_itself_15"))
    figures.add_interval("judged_by_truth_15", over_seeds("judged_by_truth_15"))
    for policy in POLICIES[1:]:
        figures.add_interval(f"day_over_tuned_{policy}", over_seeds(f"day_over_tuned_{policy}"))
    for policy in ("feedback", "mpc"):
        figures.add_interval(f"utilisation_{policy}", over_seeds(f"utilisation_{policy}"))
        figures.add_interval(f"over_utilisation_{policy}", over_seeds(f"over_utilisation_{policy}"))
        figures.add_interval(f"spike_over_utilisation_{policy}", over_seeds(f"spike_over_utilisation_{policy}"))
        figures.add_interval(f"refused_{policy}", over_seeds(f"refused_{policy}"))
    for minutes in (0, 10, 30):
        figures.add_interval(f"calibration_{minutes}", over_seeds(f"calibration_{minutes}"))
        figures.add_interval(f"ece_{minutes}", over_seeds(f"ece_{minutes}"))
        figures.add_interval(f"uncalibrated_{minutes}", over_seeds(f"uncalibrated_{minutes}"))
        figures.add_interval(f"calibrated_on_random_{minutes}", over_seeds(f"calibrated_on_random_{minutes}"))
        figures.add_interval(f"cached_value_{minutes}", over_seeds(f"cached_value_{minutes}"))
        figures.add_interval(f"cached_hr_at_100_{minutes}", over_seeds(f"cached_hr_at_100_{minutes}"))
    figures.add_interval("cached_over_tuned_15", over_seeds("cached_over_tuned_15"))
    figures.add_interval("rule_dropped_5", over_seeds("rule_dropped_5"))
    figures.add_interval("rule_lost_5", over_seeds("rule_lost_5"))
    figures.add_interval("model_dropped_30", over_seeds("model_dropped_30"))
    figures.add_interval("model_lost_30", over_seeds("model_lost_30"))
    figures.add_interval("truth_lost_30", over_seeds("truth_lost_30"))
    figures.add_interval("drops_as_invalid_lost_30", over_seeds("drops_as_invalid_lost_30"))


def _tell(seed: str, step: str) -> None:
    say(f"{seed}: {step}")


def _interval(values: list[float]) -> Interval:
    mean, half = float(np.mean(values)), float("nan")
    if len(values) > 1:
        half = _STUDENT.get(len(values), 2.0) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)


def _measure(library: Library, seed: int, answers: int, tell: Callable[[str], None], curves: Curves) -> dict[str, float]:
    """One seed's figures. The curves are of the first seed."""
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
    of_seed = {"regret_known": max(of.regret_known for of in learnt.values())}
    for share in SHARES:
        gate = judge_gate(table, learn, others, share, rng)
        served, name = (learnt if gate.serves else blind)[share], f"{share:.0%}".rstrip("%")
        of_seed |= {
            f"value_over_tuned_{name}": served.over_tuned,
            f"value_over_today_{name}": served.over_today,
            f"cost_saved_tuned_{name}": served.saved_tuned,
            f"cost_saved_today_{name}": served.saved_today,
            f"gate_open_{name}": float(gate.serves),
            f"gate_lift_{name}": gate.lift,
            f"ungated_over_tuned_{name}": learnt[share].over_tuned,
            f"blind_over_tuned_{name}": blind[share].over_tuned,
            f"mix_over_tuned_{name}": mixed[share].over_tuned,
            f"believed_over_true_{name}": learnt[share].believed_over_true,
        }
    of_seed |= _judged_by_itself(judge, cost_RA)
    tell("a day")
    priced, traffic = Priced.of(judge, believed_RA, cost_RA), draw_traffic(seed)
    days = {policy: run_day(priced, traffic, policy, seed, table.queue_price) for policy in POLICIES}
    of_seed |= {f"day_over_tuned_{policy}": days[policy].value / days["static"].value - 1 for policy in POLICIES[1:]}
    for policy in ("feedback", "mpc"):
        day = days[policy]
        of_seed |= {
            f"utilisation_{policy}": day.utilisation,
            f"over_utilisation_{policy}": day.over,
            f"spike_over_utilisation_{policy}": day.spike_over,
        }
        of_seed[f"refused_{policy}"] = day.refused_share
    tell("cached answers")
    ages = measure_ages(seed, answers)
    for age_s, minutes in ((0, 0), (600, 10), (1800, 30)):
        at = ages[age_s]
        of_seed |= {f"calibration_{minutes}": at.platt, f"ece_{minutes}": at.platt_ece, f"uncalibrated_{minutes}": at.raw}
        of_seed |= {
            f"calibrated_on_random_{minutes}": at.of_random,
            f"cached_value_{minutes}": at.value,
            f"cached_hr_at_100_{minutes}": at.hit_rate_100,
        }
    keeps = tuple(CachedAge(age_s, at.value) for age_s, at in ages.items())
    of_seed["cached_over_tuned_15"] = measure_cached(judge, believed_RA, keeps, 60.0, rng)
    tell("drops")
    rules = {row: drop_by_rule(seed, row) for row in ROWS}
    models = {share: drop_by_model(seed, share) for share in DROP_SHARES}
    of_seed |= {
        "rule_dropped_5": rules[5][0],
        "rule_lost_5": rules[5][1],
        "model_dropped_30": models[0.3][0],
        "model_lost_30": models[0.3][1],
    }
    of_seed["truth_lost_30"] = drop_by_truth(seed, models[0.3][0])
    of_seed["drops_as_invalid_lost_30"] = drop_by_model(seed, 0.3, "invalid")[1]
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
    return of_seed


def _judged_by_itself(judge: Library, cost_RA: np.ndarray) -> dict[str, float]:
    """DCAF's offline protocol at the smallest budget: each request's own predictions decide and judge; and the same decisions by the truth."""
    said_RA, true_RA = replace(judge, true_RA=judge.predicted_RA), true_values(judge)
    own_RA, budget = true_values(said_RA), SHARES[0] * float(cost_RA[:, -1].mean())
    action_R = choose(own_RA, cost_RA, find_price(own_RA, cost_RA, budget))
    return {
        "judged_by_itself_15": take(own_RA, action_R).mean() / static_value(own_RA, cost_RA, budget, ALL) - 1,
        "judged_by_truth_15": take(true_RA, action_R).mean() / static_value(true_RA, cost_RA, budget, ALL) - 1,
    }


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
