"""From records of two topics to a table: the join, the costs, and the whole fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from infra.index.store import open_index_store
from schemas.actions import Kind
from schemas.allocation import NUMBER_MAX, Costs, LevelCost, Requests, decode_table, encode_table
from schemas.errors import Unavailable
from schemas.events import AllocationOutcome, ImpressionRecord
from streams.allocation.cost_fit import fit_costs
from streams.allocation.join import JOIN_MS, Joined, has_plausible_bids, is_plausible, join_outcomes, keep_needed, sample_users, user_number
from streams.allocation.program import actions_of, fit_table, newest_table, publish_table, replay_table
from tests.infra.aif_command import run_aif
from tests.infra.index_fixture import publish_version
from tests.streams.allocation.test_fits import ACTIONS, draw_samples


def _outcome(request_id: str, *, action: str = "full/4000", state: str = "ranked", arm: str = "policy", user: int = 1) -> AllocationOutcome:
    fields = {"user_id": user, "time_ms": 1_000, "version": 7, "table": "v7-1", "propensity": 0.9, "price": 0.1, "source": "queue"}
    work = {"cost_ms": 2.0, "value": 1.0, "candidates": 4000, "behaviours": 100, "took_ms": 2.5 if state == "ranked" else None}
    return AllocationOutcome.model_validate({"request_id": request_id, "action": action, "state": state, "arm": arm, **fields, **work})


def _impression(request_id: str, *clicks: bool, at_ms: int = 2_000) -> ImpressionRecord:
    items = [{"item_id": place, "position": place, "bid": 2.0, "clicked": click} for place, click in enumerate(clicks)]
    return ImpressionRecord.model_validate({"request_id": request_id, "user_id": 1, "time_ms": at_ms, "items": items})


def test_what_was_not_ranked_or_not_shown_has_no_outcome() -> None:
    """Not ranked is a third state. Taken as invalid it would teach that dropped users are worth nothing."""
    states = {"a": "ranked", "b": "ranked", "c": "dropped", "d": "refused", "e": "ranked", "f": "ranked"}
    outcomes = [_outcome(name, state=state, action="drop" if state == "dropped" else "full/4000") for name, state in states.items()]
    shown = [_impression("a", True, False, True), _impression("b", False), _impression("c", True), _impression("d", True)]
    late = [_impression("e", True, at_ms=1_001 + JOIN_MS)]
    joined = join_outcomes([*outcomes, _outcome("a", state="failed"), _outcome("x", action="full/9")], [*shown, *shown, *late], ACTIONS)
    value = dict(zip(states, joined.samples.outcome_R.tolist(), strict=True))
    assert value["a"] == 4.0, "an impression that was published twice counts once"
    assert value["b"] == 0.0 and all(np.isnan(value[name]) for name in "cdef")
    assert np.isnan(joined.took_R).tolist() == [False, False, True, True, False, False]


def test_of_more_outcomes_than_fit_into_memory_all_of_some_users_are_kept() -> None:
    """A server of 1,000 requests a second leaves 600 million outcomes in a week. A sample of requests would break a user's rows of invalid ones."""
    outcomes = [_outcome(f"{turn}-{user}", user=user) for turn in range(4) for user in range(3_000)]
    kept, share = sample_users(iter(outcomes), 1_000)
    users = {one.user_id for one in kept}
    assert 400 < len(kept) <= 1_000 and share == 2**-4 and len(users) == pytest.approx(3_000 * share, rel=0.3)
    assert kept == [one for one in outcomes if one.user_id in users]
    judges = [user for user in users if user_number(user) % 10 < 4]
    assert len(judges) == pytest.approx(0.4 * len(users), rel=0.3), "the sample does not decide who judges"
    assert sample_users(outcomes, len(outcomes)) == (outcomes, 1.0)


def test_of_an_impression_the_clicked_items_and_those_of_a_cached_answer_are_kept() -> None:
    """Of 48 shown items most are neither. All of 300,000 impressions would take 18 GB."""
    shown = _impression("a", True, False, False, True)
    kept = keep_needed(shown, {"2"})
    assert [item.item_id for item in kept.items] == [0, 2, 3] and len(shown.items) == 4
    values = [join_outcomes([_outcome("a")], [one], ACTIONS).samples.outcome_R.tolist() for one in (shown, kept)]
    assert values == [[4.0], [4.0]]
    unclicked = keep_needed(_impression("a", False, False), ())
    assert not unclicked.items and join_outcomes([_outcome("a")], [unclicked], ACTIONS).samples.outcome_R.tolist() == [0.0]


@pytest.mark.parametrize("at_ms", [0, 999, 1_000 + JOIN_MS])
def test_an_impression_may_have_the_time_of_its_request_or_of_a_clock_that_is_behind(at_ms: int) -> None:
    joined = join_outcomes([_outcome("a")], [_impression("a", True, at_ms=at_ms)], ACTIONS)
    assert joined.samples.outcome_R.tolist() == [2.0]


def test_sums_are_found_by_name_and_a_list_that_ends_early_is_full_work() -> None:
    """The server's actions are others than the fit's. Sums that lack one of the fit's are no probe."""
    names = [action.name for action in ACTIONS if action.kind is Kind.RANK]
    extra = _outcome("a", arm="probe").model_copy(
        update={"actions": ["full/7", *names], "predicted": [9.0, *map(float, range(len(names)))]}
    )
    lacking = _outcome("b", arm="probe").model_copy(update={"actions": names[1:], "predicted": [1.0] * (len(names) - 1)})
    short = [_outcome(f"c{n}", action="full/1000").model_copy(update={"candidates": n}) for n in (1_000, 1_001)]
    short += [one.model_copy(update={"request_id": f"d{n}", "action": "twopass/1000"}) for n, one in enumerate(short)]
    samples = join_outcomes([extra, lacking, *short], [], ACTIONS).samples
    assert samples.predicted_RA[0, -len(names) :].tolist() == list(range(len(names))) and np.isnan(samples.predicted_RA[1:]).all()
    assert samples.action_R.tolist()[2:] == [len(ACTIONS) - 1, len(ACTIONS) - 2, len(ACTIONS) - 3, len(ACTIONS) - 4]


def test_costs_are_found_again_in_measured_times() -> None:
    rng = np.random.default_rng(0)
    count = 4_000
    nan = np.full(count, np.nan)
    requests = Requests(np.full(count, 4000), rng.integers(0, 5_000, count), rng.random(count) < 0.5, nan, nan, nan)
    action = rng.choice([5, 6], count)
    n = np.where(action == 5, 1000, 4000)
    true = 1.0 + n * (0.6e-3 + 0.2e-6 * requests.behaviours_R) + requests.needs_user_R * (0.1 + 0.5e-3 * requests.behaviours_R)
    took = np.where(rng.random(count) < 0.003, 100.0, true * rng.normal(1, 0.02, count))
    costs = fit_costs(ACTIONS, requests, action, took, Costs({"twopass": LevelCost(9.0, 9.0), "full": LevelCost(9.0, 9.0)}))
    full = costs.levels["full"]
    assert costs.levels["twopass"].fixed_ms == 9.0, "not measured: as before"
    assert (full.candidate_us, full.pair_ns, full.user_behaviour_us) == pytest.approx((0.6, 0.2, 0.5), rel=0.1)


def test_a_table_is_fitted_published_and_found(tmp_path: object) -> None:
    samples, _ = draw_samples(12_000, 0, "probe")
    table, why = fit_table(Joined(samples, np.full(12_000, np.nan)), ACTIONS, 7, 123, 0.5)
    shorter = np.where(np.arange(12_000) < 4_000, 1, samples.requests.candidates_R)
    changed = replace(samples, requests=replace(samples.requests, candidates_R=shorter))
    assert fit_table(Joined(changed, np.full(12_000, np.nan)), ACTIONS, 7, 123, 0.5)[0].full_ms == table.full_ms, (
        "the newest requests price"
    )
    assert table.full_ms > 0 and table.queue_price > 0 and table.requests["probe"] > 5_000 and why
    store = open_index_store(str(tmp_path))
    with pytest.raises(Unavailable, match="no_table"):
        newest_table(store, 7)
    publish_table(store, table)
    assert newest_table(store, 7) == table
    rows = replay_table(table, samples.requests.rows(np.arange(500)))
    assert [row["cost_share"] <= row["budget"] + 1e-6 for row in rows] == [True] * 4 and rows[-1]["price"] == 0


def test_actions_are_those_that_most_probes_name() -> None:
    """Records are bytes of a topic: a forged name, and a probe with one more action, change nothing."""
    names = ["twopass/2000", "full/500", "full/9000"]
    probes = [_outcome(f"p{n}", arm="probe").model_copy(update={"actions": names, "predicted": [1.0, 1.0, 2.0]}) for n in range(3)]
    forged = probes[0].model_copy(update={"request_id": "f", "actions": ["abc/5", "full/7"], "predicted": [1.0, 1.0]})
    outcomes = [*probes, forged, _outcome("b", action="abc/5"), _outcome("c", action="full/8")]
    assert [action.name for action in actions_of(outcomes)] == ["drop", *names]
    for none in ([], [forged], [_outcome("d", action="drop", state="dropped")]):
        with pytest.raises(Unavailable, match="no_outcomes"):
            actions_of(none)


@pytest.mark.parametrize(
    "forged",
    [
        {"candidates": 2**63 - 1},
        {"behaviours": 2**63 - 1},
        {"user_value": 1e308},
        {"retrieval_top": -1e308},
        {"took_ms": 1e10},
        {"cached_s": 1e300},
        {"logits": [1.0, -1e308]},
        {"predicted": [1.0, 1.0, 1e308]},
        {"predicted": [1.0, 1.0, -1.0]},
        {"predicted": [1e9, 1.0, 1e-9]},
    ],
)
def test_an_outcome_with_a_number_that_no_request_has_is_left_out(forged: dict[str, object]) -> None:
    one = _outcome("a", arm="probe").model_copy(update={"actions": ["full/1", "full/2", "full/4000"], "predicted": [0.5, 0.0, 0.6]})
    assert is_plausible(one) and is_plausible(_outcome("b"))
    assert not is_plausible(AllocationOutcome.model_validate({**one.model_dump(by_alias=True), **forged}))


def test_an_impression_whose_bids_are_beyond_a_table_is_left_out() -> None:
    one = _impression("a", True, False)
    assert has_plausible_bids(one)
    assert not has_plausible_bids(one.model_copy(update={"items": [one.items[0].model_copy(update={"bid": 1e308})]}))


@pytest.mark.filterwarnings("error")
def test_the_largest_plausible_numbers_make_a_table_without_overflow() -> None:
    samples, _ = draw_samples(4_000, 0, "probe")
    most = samples.requests
    for place in np.flatnonzero(samples.arm_R == "probe")[:40].tolist():
        samples.outcome_R[place] = samples.predicted_RA[place] = NUMBER_MAX
        most.user_value_R[place] = most.candidates_R[place] = NUMBER_MAX
    took_R = np.where(np.arange(4_000) % 100 == 0, NUMBER_MAX, 2.5)
    table, _ = fit_table(Joined(samples, took_R), ACTIONS, 7, 123, 0.15)
    assert decode_table(encode_table(table), 7) == table and np.isfinite(table.mean_row).all()


def test_show_without_a_version_shows_the_served_ones_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path))
    store = open_index_store(str(tmp_path))
    version = publish_version(store).version
    table, _ = fit_table(Joined(draw_samples(2_000, 0, "probe")[0], np.full(2_000, np.nan)), ACTIONS, version, 5, 0.5)
    for one in (table, replace(table, version=version + 1, made_at_ms=6)):
        publish_table(store, one)
    assert run_aif("allocate", "show")["table"] == f"v{version}-5"


def test_a_published_table_has_the_stores_time_because_servers_follow_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path))
    samples, _ = draw_samples(2_000, 0, "probe")
    for name, found in (("say_removed", None), ("read_outcomes", ([], 1.0)), ("actions_of", ACTIONS), ("read_impressions", [])):
        monkeypatch.setattr(f"streams.allocation.program.{name}", lambda *_, found=found: found)
    monkeypatch.setattr("streams.allocation.join.join_outcomes", lambda *_: Joined(samples, np.full(2_000, np.nan)))
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000)
    published = run_aif("allocate", "fit", "--version", "7", "--publish")
    table = newest_table(open_index_store(str(tmp_path)), 7)
    assert published["table"] == table.name and table.made_at_ms > 1e12
