"""One fit of an allocation table: topics to outcomes, outcomes to costs and values, the gate, and the table's file.

Users are split by hash: the values learn from one part, the gate judges by the other. A table whose gate is closed is published too: its costs and its mean
row still serve (schemas/allocation.py `values_of`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from infra.index.store import IndexStore
from infra.kafka.reader import read_topic
from infra.kafka.removed_records import find_removed
from infra.settings import InfraSettings
from schemas.actions import LEVELS, Action, Kind
from schemas.allocation import (
    ASSUMED_AGES,
    ASSUMED_COSTS,
    ActionTable,
    Costs,
    Facts,
    Gate,
    Requests,
    decode_table,
    encode_table,
    stack_costs,
    stack_values,
    table_path,
    table_prefix,
)
from schemas.decoding import decode_record
from schemas.errors import RejectedInput, Unavailable
from schemas.events import AllocationOutcome, ImpressionRecord
from schemas.knapsack import best_mix, choose, find_price, take
from schemas.topics import ALLOCATION_OUTCOMES, IMPRESSIONS
from streams.allocation.calibration_fit import fit_ages, join_clicks
from streams.allocation.cost_fit import fit_costs
from streams.allocation.drop_fit import fit_drops
from streams.allocation.gate import judge_table
from streams.allocation.join import Joined, has_plausible_bids, is_plausible, keep_needed, sample_users
from streams.allocation.value_fit import fit_values

R = TypeVar("R", AllocationOutcome, ImpressionRecord)
_GATE_SHARE, _GATE_PARTS = 4, 10  # users of so many parts of ten judge
OUTCOMES_MAX = 300_000  # with their impressions about 2 GB
_NEWEST = 4_000  # requests from which prices and the mix are found: those of now


def read_outcomes(settings: InfraSettings, version: int) -> tuple[list[AllocationOutcome], float]:
    """(the retained outcomes of a version, of what share of the users); records that cannot be read, or not be true, are left out."""
    found = _records(settings, ALLOCATION_OUTCOMES, AllocationOutcome)
    return sample_users((one for one in found if one.version == version and is_plausible(one)), OUTCOMES_MAX)


def read_impressions(settings: InfraSettings, outcomes: Iterable[AllocationOutcome]) -> list[ImpressionRecord]:
    """The retained impressions of the requests of these outcomes, with the needed items, without those that cannot be read, or not be true."""
    answered: dict[str, set[str]] = {}
    for outcome in outcomes:
        answered.setdefault(outcome.request_id, set()).update(map(str, outcome.items))
    found = _records(settings, IMPRESSIONS, ImpressionRecord)
    return [keep_needed(one, answered[one.request_id]) for one in found if one.request_id in answered and has_plausible_bids(one)]


def say_removed(settings: InfraSettings, say: Callable[[str], None]) -> None:
    """Says what retention has removed from the two topics that a fit reads."""
    for one in find_removed(settings.connection(), (ALLOCATION_OUTCOMES, IMPRESSIONS), prefix=settings.kafka.topic_prefix):
        say(f"warning: {one}")


def _records(settings: InfraSettings, topic: str, kind: type[R]) -> Iterator[R]:
    for record in read_topic(settings.connection(), topic, prefix=settings.kafka.topic_prefix):
        if record.value is not None:
            try:
                yield decode_record(kind, record.value)
            except RejectedInput:
                continue


def actions_of(outcomes: list[AllocationOutcome]) -> tuple[Action, ...]:
    """Drop, and the levels and lengths that most probes name, full work last. So a forged or damaged record adds none. Raises Unavailable (`no_outcomes`)."""
    named = Counter(tuple(one.actions) for one in outcomes if one.predicted)
    try:
        ranked = {Action.parse(name) for name in max(named, key=named.__getitem__, default=())}
    except ValueError:
        ranked = set()
    if not ranked or any(action.kind is not Kind.RANK for action in ranked):
        raise Unavailable(
            "no_outcomes",
            "allocation-outcomes has no probes of this version; serve it with AIF_ALLOCATION__MODE=value and AIF_ALLOCATION__OUTCOMES=true",
            600.0,
        )
    cached = [Action(Kind.CACHED)] if any(one.cached_s is not None for one in outcomes) else []
    return (Action(Kind.DROP), *cached, *sorted(ranked, key=lambda action: (LEVELS.index(action.level), action.candidates)))


def fit_table(joined: Joined, actions: tuple[Action, ...], version: int, made_at_ms: int, budget: float) -> tuple[ActionTable, str]:
    """(the table that these outcomes give, why its drop rule is so). The gate is at a budget, a share of full work's cost.

    Raises Unavailable (`too_few_probes`).
    """
    samples = joined.samples
    judging_R = samples.user_R % _GATE_PARTS < _GATE_SHARE
    # A drop is worth nothing for certain; another request without an outcome says nothing, so it does not judge.
    judges_R = np.isfinite(samples.outcome_R) | np.array([action.kind is Kind.DROP for action in actions])[samples.action_R]
    learn, judged = samples.rows(~judging_R), samples.rows(judging_R & judges_R)
    costs = fit_costs(actions, samples.requests, samples.action_R, joined.took_R, Costs(ASSUMED_COSTS))
    values, mean_A = fit_values(learn, actions)
    arms = {arm: int((samples.arm_R == arm).sum()) for arm in sorted(set(samples.arm_R.tolist()))}
    open_table = ActionTable(
        version, made_at_ms, actions, costs, values, tuple(map(float, mean_A)), 1.0, gate=Gate(0.0, 0.0, 0.0), requests=arms
    )
    newest = learn.requests.rows(np.arange(len(learn.user_R))[-_NEWEST:])
    value_RA, cost_RA = (of(open_table, newest) for of in (stack_values, stack_costs))
    full_ms = float(cost_RA[:, -1].mean())
    mix = tuple(best_mix(mean_A, cost_RA.mean(0), budget * full_ms))
    price = find_price(value_RA, cost_RA, budget * full_ms)
    gate = judge_table(stack_values(open_table, judged.requests), stack_costs(open_table, judged.requests), price, mix, judged)
    unit = find_price(value_RA, cost_RA, full_ms / 4)
    drop, why = fit_drops(learn, samples.rows(judging_R))
    return replace(open_table, queue_price=max(unit, 1e-12), full_ms=full_ms, mix=mix, drop=drop, gate=gate), why


def fit_cached(table: ActionTable, outcomes: Sequence[AllocationOutcome], impressions: Iterable[ImpressionRecord]) -> ActionTable:
    """The table with what cached answers keep and their calibration by age, from clicks of those that were shown."""
    cached = [one for one in outcomes if one.state == "cached"]
    facts = {one.request_id: Facts(one.candidates, one.behaviours, one.needs_user, one.user_value, one.retrieval_top) for one in cached}
    whole = {request_id: table.values.whole(of) for request_id, of in facts.items()}
    return replace(table, ages=fit_ages(join_clicks(cached, impressions, whole), ASSUMED_AGES))


def publish_table(store: IndexStore, table: ActionTable) -> str:
    """The path of the published table; servers of its version find it within seconds."""
    path = table_path(table.version, table.made_at_ms)
    store.put_bytes(path, encode_table(table))
    return path


def newest_table(store: IndexStore, version: int) -> ActionTable:
    """The newest table of a version. Raises Unavailable (`no_table`), Corrupted (`bad_table`)."""
    paths = store.list(table_prefix(version))
    if not paths:
        raise Unavailable("no_table", f"version {version} has no allocation table; make one: `aif allocate fit`", 60.0)
    return decode_table(store.get(paths[-1]), version)


def mean_shares(table: ActionTable) -> list[float]:
    """Share of full work's value by action, mean over bins."""
    return [float(x) for x in np.mean(table.values.shares, axis=0)]


def replay_table(table: ActionTable, requests: Requests) -> list[dict[str, float]]:
    """Price, mean cost over full work's, and believed value over full work's, by budget."""
    if not len(requests):
        return []
    value_RA, cost_RA = stack_values(table, requests), stack_costs(table, requests)
    full_ms, whole, rows = float(cost_RA[:, -1].mean()), float(value_RA[:, -1].mean()), []
    for budget in (0.15, 0.3, 0.5, 1.0):
        price = find_price(value_RA, cost_RA, budget * full_ms)
        action_R = choose(value_RA, cost_RA, price)
        cost, value = (float(take(of_RA, action_R).mean()) for of_RA in (cost_RA, value_RA))
        rows.append({"budget": budget, "price": price, "cost_share": cost / full_ms, "believed_share": value / whole})
    return rows
