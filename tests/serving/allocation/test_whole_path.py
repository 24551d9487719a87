"""From decisions of a live server to a table that it decides by: allocator, outcomes, join with impressions, fit, gate, table, mode `value`."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.index.store import open_index_store
from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from schemas.actions import count_second
from schemas.allocation import ASSUMED_AGES, ActionTable, Gate
from schemas.drop_rule import DropRule
from schemas.errors import Unavailable
from schemas.events import AllocationOutcome, Behaviour, BehavioursRecord, ImpressionRecord, encode_record
from schemas.ids import IdKind
from schemas.requests import RankRequest
from schemas.topics import USER_BEHAVIOURS
from serving.allocation.allocator import Allocator
from serving.allocation.outcomes import Outcomes
from serving.allocation.score_cache import ScoreCache
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables, built_in_table
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall, Ranked
from serving.calls.state_pool import StatePool
from serving.calls.user_halves import Users
from serving.core.choice import Slices
from serving.engine.work import RankResult, RankWork, UserWork
from streams.allocation.join import join_outcomes
from streams.allocation.program import actions_of, fit_cached, fit_table, publish_table
from tests.serving.allocation.test_outcomes import FakeProducer
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_view

ITEMS = list(range(2_000))
VERSION = 7
REQUESTS = 3_000
WORTH = (0.02, 1.0)  # of what a shown item of users of two kinds brings


class QuickEngine(FakeEngine):
    """Few items have high scores, so longer lists are worth more. Time is what the engine takes: 0.1 ms, and 1 us a candidate, or 0.5 us in two passes.

    The first pass scores one item in seven far too low, so the second does not see it.
    """

    now_s = 100.0

    def submit_rank(self, work: RankWork) -> "Future[RankResult]":
        item_ids, future = np.asarray(work.item_ids), Future[RankResult]()
        scores = ((item_ids * 397 % len(ITEMS) + 1) / len(ITEMS)).astype(np.float32) ** -0.7
        first = np.where(item_ids % 7 != 1, scores, 1e-3 * scores) if work.passes == 2 else None
        seen = np.arange(len(scores)) if first is None else np.argsort(-first)[: count_second(len(scores), work.top_k)]
        best, state = seen[np.argsort(-scores[seen])][: work.top_k], work.state or self._state(work.user or UserWork())
        result = RankResult(
            self._token(VERSION), item_ids[best].tolist(), scores[best], scores[best, None] / 1_000, [], 0, len(item_ids), [{}], state
        )
        result = replace(result, first_A=None if first is None else first[best])

        def end() -> None:
            self.now_s += 1e-4 + 1e-6 * len(item_ids) / work.passes
            future.set_result(result)

        asyncio.get_running_loop().call_soon(end)
        return future


@dataclass
class Site:
    """A server whose topics are lists. What a shown item brings follows its score and the user's worth, which the request says."""

    allocator: Allocator
    call: RankCall
    producer: FakeProducer = field(default_factory=FakeProducer)
    impressions: list[ImpressionRecord] = field(default_factory=list)

    async def serve(self, count: int) -> None:
        """The load changes from request to request: the plan's price is drawn."""
        rng = np.random.default_rng(0)
        for number in range(count):
            self.allocator.hold(float(rng.choice([0.0, 0.5, 2.0])))
            worth = WORTH[number % 2]
            ranked = await self.ask(f"r{number}", user=number % 900, worth=worth)
            items = [
                {"item_id": item, "position": place, "bid": max(1e-6, worth * float(score)), "clicked": True}
                for place, (item, score) in enumerate(zip(ranked.result.ids, ranked.result.scores_A, strict=True))
            ]
            time_ms = time.time_ns() // 1_000_000 + 1_000
            fields = {"request_id": f"r{number}", "user_id": number % 900, "time_ms": time_ms, "items": items}
            self.impressions.append(ImpressionRecord.model_validate(fields))
            if number % 100 == 0 and self.allocator.outcomes is not None:
                self.allocator.outcomes.send(self.producer)

    async def ask(self, request_id: str, user: int, worth: float) -> Ranked:
        request = RankRequest(user_id=user, item_ids=ITEMS, top_k=10, request_id=request_id, user_value=worth)
        return await self.call.rank(request, Deadline(time.monotonic(), 60_000))

    async def compare(self, price: float) -> list[list[Mapping[str, Any]]]:
        """Receipts of requests of both worths at the same price, in no random slice. Each user asks twice, too seldom for the drop rule."""
        self.allocator.hold(price)
        receipts = [[await self.receipt(f"{worth} {number}", worth, 2_000 + number) for number in range(20)] for worth in WORTH]
        return [[one for one in of if one["arm"] == "policy"] for of in receipts]

    def fold(self, behaviours_of: int) -> None:
        """A new behaviour of a user, from the topic."""
        value = encode_record(BehavioursRecord(updates=[Behaviour(user_id=behaviours_of, item_id=1, time_ms=1)]))
        self.call._users.store.fold_record(SourceRecord(USER_BEHAVIOURS, 0, 0, None, value))

    async def receipt(self, request_id: str, worth: float, user: int = 1) -> Mapping[str, Any]:
        """The receipt of an answer or a drop."""
        try:
            return (await self.ask(request_id, user, worth)).receipt
        except Unavailable as error:
            return error.receipt or {}

    def publish(self, table: ActionTable) -> None:
        """Into the index store, from where the server reads it."""
        tables = self.allocator.tables
        assert tables._store is not None
        publish_table(tables._store, table)
        tables.look()

    def outcomes(self) -> list[AllocationOutcome]:
        assert self.allocator.outcomes is not None
        self.allocator.outcomes.send(self.producer)
        return [AllocationOutcome.model_validate_json(value) for _, value, _ in self.producer.sent]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store, metrics = open_view(tmp_path / "users", IdKind.INT64, 4), Metrics()
    section = AllocationSection(mode="value", probe_share=0.1, random_share=0.1, outcomes=True)
    engine = QuickEngine()
    paced = PacedEngine(engine, metrics, clock=lambda: engine.now_s)  # type: ignore[arg-type]
    tables = Tables(open_index_store(str(tmp_path / "index")), lambda: VERSION)
    allocator = Allocator(section, tables, metrics, paced)
    allocator.outcomes = Outcomes("localhost:1", "", metrics)
    users = Users(store, StatePool(1_000, 1 << 20), IdKind.INT64, metrics)
    yield Site(allocator, RankCall(paced, users, 10_000, metrics, allocator))
    store.close()


def test_a_servers_own_outcomes_make_the_table_that_it_decides_by(site: Site) -> None:
    site.allocator._slices = Slices(0.3, 0.3, 0.01)  # much is tried, so that few requests teach enough
    asyncio.run(site.serve(REQUESTS))
    outcomes = site.outcomes()
    actions = actions_of(outcomes)
    assert len(outcomes) == REQUESTS and {one.table for one in outcomes} == {"built-in"}
    joined = join_outcomes(outcomes, site.impressions, actions)
    table, why = fit_table(joined, actions, VERSION, 1, budget=0.3)
    assert table.gate.serves, table.gate
    costs, shares = table.costs.levels, dict(zip((action.name for action in actions), table.values.shares[-1], strict=True))
    assert (costs["full"].candidate_us, costs["twopass"].candidate_us) == pytest.approx((1.0, 0.5), rel=0.05)
    assert shares["twopass/2000"] == pytest.approx(0.96, abs=0.01), "one item in seven is lost"
    assert "valid requests, expected 1000" in why, "too few users asked again"

    site.publish(table)
    assert site.allocator.tables.find() == (table, False)
    poor, rich = asyncio.run(site.compare(table.queue_price))
    assert {one["table"] for one in (*poor, *rich)} == {table.name}
    assert {one["action"] for one in poor} == {"drop"} and {one["action"] for one in rich} == {"twopass/700"}

    without = [one.model_copy(update={"predicted": None}) for one in outcomes]
    with pytest.raises(Unavailable, match="too_few_probes"):
        fit_table(join_outcomes(without, site.impressions, actions), actions, VERSION, 1, budget=0.3)


def test_after_answers_that_nothing_followed_a_request_is_dropped_and_the_count_starts_again(site: Site) -> None:
    """Under a price, by the table's rule, and never in the random slice that is not dropped."""
    table = replace(built_in_table(), version=VERSION, made_at_ms=1, gate=Gate(0.1, 0.0, 0.2), drop=DropRule(2, 0.5))
    site.publish(table)
    site.allocator._slices = Slices(0.0, 0.0, 0.0)

    def ask(*ids: str, user: int = 1) -> list[str]:
        return [asyncio.run(site.receipt(one, 1.0, user))["action"] for one in ids]

    site.allocator.hold(1e-6)
    assert ask("a", "b", "c", "d", "e", "f") == ["full/2000", "full/2000", "drop"] * 2
    assert "followed by nothing" in site.allocator.explain("c")["receipt"]["reason"] and site.allocator.explain("c")["equal"]
    site.fold(behaviours_of=1)
    assert ask("g", "h") == ["full/2000"] * 2, "the first is valid again"
    site.allocator.hold(0.0)
    assert ask("i", "j", "k", user=2) == ["full/2000"] * 3, "without pressure nothing is dropped"
    site.allocator._slices = Slices(0.0, 0.0, 1.0)
    site.allocator.hold(1e-6)
    assert ask("l", user=2) == ["full/2000"]


def test_under_a_price_a_kept_answer_is_given_again_and_calibrated_by_clicks_of_such_answers(site: Site) -> None:
    """Its outcome has what a fit needs. No other user gets it, nor a request for other candidates, nor one after its time."""
    now_s = [0.0]
    site.allocator.scores = ScoreCache(AllocationSection(cache_ttl_s=60.0), lambda: now_s[0])
    site.allocator._slices = Slices(0.0, 0.0, 0.0)
    first = asyncio.run(site.ask("a", 1, 1.0))
    now_s[0] = 20.0
    site.allocator.hold(0.5)
    again, other = asyncio.run(site.ask("b", 1, 1.0)), asyncio.run(site.ask("c", 2, 1.0))
    assert again.receipt["action"] == "cached" and "cached_answer" in again.degraded and again.result.ids == first.result.ids
    assert site.allocator.explain("b")["equal"] and other.receipt["action"] != "cached"
    outcome = next(one for one in site.outcomes() if one.request_id == "b")
    assert (outcome.state, outcome.cached_s) == ("cached", 20.0) and outcome.items == first.result.ids and len(outcome.logits) == 10

    rng, impressions, outcomes = np.random.default_rng(0), list[ImpressionRecord](), list[AllocationOutcome]()
    for number in range(400):  # clicks come at a third of what the logits say
        outcomes.append(outcome.model_copy(update={"request_id": f"s{number}", "logits": [-1.0] * 10}))
        clicked = rng.random(10) < 1 / (1 + np.exp(1.0)) / 3
        items = [{"item_id": i, "position": place, "bid": 1.0, "clicked": bool(clicked[place])} for place, i in enumerate(outcome.items)]
        fields = {"request_id": f"s{number}", "user_id": 1, "time_ms": outcome.time_ms + 1, "items": items}
        impressions.append(ImpressionRecord.model_validate(fields))
    table = replace(built_in_table(), version=VERSION, made_at_ms=1)
    fitted = fit_cached(table, outcomes, impressions)
    assert [age.age_s for age in fitted.ages] == [20.0, 600.0, 1800.0] and fit_cached(table, outcomes[:9], impressions).ages == ASSUMED_AGES
    site.publish(fitted)
    calibrated, said = (of.result.probabilities_AT[:, 0] for of in (asyncio.run(site.ask("d", 1, 1.0)), first))
    age = fitted.ages[0]
    odds = np.exp(age.intercept) * (said / (1 - said)) ** age.slope
    assert calibrated == pytest.approx(odds / (1 + odds), rel=1e-3)
    assert 3 * (1 + np.e) / (1 + np.exp(age.slope - age.intercept)) == pytest.approx(1.0, abs=0.1), "predicted over true"

    fewer = RankRequest(user_id=1, item_ids=[item for item in ITEMS if item != first.result.ids[0]], top_k=10)
    assert asyncio.run(site.call.rank(fewer, Deadline(time.monotonic(), 60_000))).receipt["action"] != "cached"
    now_s[0] = 61.0
    assert asyncio.run(site.ask("e", 1, 1.0)).receipt["action"] != "cached"
