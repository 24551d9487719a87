"""The rows of Table 4: their scores, that each part takes part, and the open loop under them."""

import asyncio
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import typer

from infra.figures import Figures
from lab.cli import bench_table4
from lab.load import OK, REFUSED
from lab.serving.sub_sequences import cut_history, fetch_behaviours, open_redis
from lab.serving.table4 import MEASURES, Request, Table4Plan, _choose_rows, find_rate_max, measure_table4, send_requests, table_rows
from lab.serving.table4_rows import ROWS, RowScorer, RowState, draw_raw_features
from lab.serving.world import CONTEXT, PROFILE, RankWorld, open_rank_world
from schemas.errors import Unavailable
from serving.engine.work import RankWork, UserState, UserWork

SEQUENTIAL = [row for row in ROWS if row.name != "aif"]


@pytest.fixture(scope="module")
def world() -> Iterator[RankWorld]:
    with open_rank_world(2_000) as opened:
        yield opened


def score(world: RankWorld, row: Any, behaviours: int = 40) -> np.ndarray:
    world.rng = np.random.default_rng(1)
    scorer = RowScorer(row, world, draw_raw_features(world), 2)
    history = world.history(behaviours)
    return scorer.score(scorer.user_state(UserWork(PROFILE, history, 2)), np.arange(700), CONTEXT)[0]


@pytest.mark.parametrize("row", SEQUENTIAL, ids=lambda row: row.name)
def test_every_row_scores_every_candidate_and_none_like_another(world: RankWorld, row: Any) -> None:
    scores_C = score(world, row)
    assert np.isfinite(scores_C).all() and len(np.unique(scores_C)) > 600


def test_cutting_a_history_before_or_after_the_candidates_gives_the_same_scores(world: RankWorld) -> None:
    by_name = {row.name: row for row in ROWS}
    assert np.array_equal(score(world, by_name["sim"]), score(world, by_name["sim_cached"]))


@pytest.mark.parametrize("row", [row for row in SEQUENTIAL if row.name != "cold"], ids=lambda row: row.name)
def test_a_part_sees_the_history(world: RankWorld, row: Any) -> None:
    assert not np.allclose(score(world, row, 40), score(world, row, 1))


def test_a_quick_run_has_every_figure_of_every_row_and_prints_the_papers_table() -> None:
    store = Store()
    figures = measure_table4(
        Table4Plan(items=10_000, candidates=600, behaviours=30, users=2, calls=2, rounds=1, steps=1, seconds=0.05), store
    )
    assert None in store.asked and any(store.asked)
    for row in ROWS:
        assert {f"{row.name}.{measure}" for measure in (*MEASURES, "extra_bytes")} <= set(figures.as_dict()["figures"])
    assert figures.value("cold.extra_bytes") == 0 and figures.value("cold.avg_rt_pct") == 0
    assert (figures.value("async.item_bytes"), figures.value("bea.item_bytes"), figures.value("long_lsh.item_bytes")) == (64, 16, 17)
    assert figures.value("aif.state_bytes") and not figures.value("sim.state_bytes")
    assert isinstance(figures, Figures) and [row["method"] for row in table_rows(figures)] == [row.name for row in ROWS]


def test_of_the_rows_only_the_chosen_ones_are_measured_beside_the_base() -> None:
    assert [row.name for row in _choose_rows(("aif",))] == ["cold", "aif"]
    with pytest.raises(typer.BadParameter, match="there is no aiff, expected some of cold, async"):
        bench_table4(rows="cold,aiff")


class Store:
    """Sub-sequences in memory."""

    def __init__(self) -> None:
        self.blocks: dict[int, Mapping[int, bytes]] = {}
        self.asked: list[Sequence[int] | None] = []

    def put(self, user: int, blocks: Mapping[int, bytes]) -> None:
        self.blocks[user] = blocks

    def fetch(self, user: int, categories: Sequence[int] | None) -> list[bytes]:
        self.asked.append(categories)
        return [block for category, block in self.blocks[user].items() if categories is None or category in categories]


def test_fetched_sub_sequences_score_as_those_that_are_cut_from_the_history(world: RankWorld) -> None:
    world.rng = np.random.default_rng(1)
    scorer, store = RowScorer(next(row for row in ROWS if row.name == "sim"), world, draw_raw_features(world), 2), Store()
    history, category = world.history(400), world.tables.columns["category"]
    store.put(0, cut_history(history, category[world.tables.find(np.asarray(history.item_ids))], world.spec.sim_behaviours))
    fetched = fetch_behaviours(store, 0, None)
    assert 0 < len(fetched) <= 400
    work = UserWork(PROFILE, history, 2)
    both = (work, dataclasses.replace(work, base=RowState(2, work, {"fetched": fetched})))
    plain, remote = (scorer.user_state(one).made for one in both)
    assert np.array_equal(plain["categories"], remote["categories"])
    np.testing.assert_allclose(plain["sim"], remote["sim"], rtol=1e-5, atol=1e-6)
    assert len(fetch_behaviours(store, 0, plain["categories"][:1].tolist())) < len(fetched)


@pytest.mark.campaign
def test_a_redis_server_keeps_sub_sequences() -> None:
    with open_redis() as store:
        store.put(7, {1: b"a\r\n", 2: b"", 30: b"c" * 10_000})
        assert sorted(store.fetch(7, None)) == [b"", b"a\r\n", b"c" * 10_000]
        assert store.fetch(7, [2, 5, 30]) == [b"", b"c" * 10_000] and store.fetch(8, None) == []


class NotingEngine:
    """Answers both calls at once and notes their order; the work "refused" is."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def submit_user(self, work: UserWork) -> "Future[Any]":
        self.order.append("user")
        return done(type("Result", (), {"state": "made"}))

    def submit_rank(self, work: Any) -> "Future[Any]":
        self.order.append(f"rank {work}")
        future: Future[Any] = Future()
        if work == "refused":
            future.set_exception(Unavailable("overloaded", "full", 0.1))
            return future
        return done(work)


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_the_open_loop_sends_call_one_before_retrieval_and_call_two_with_its_state() -> None:
    def rank(state: UserState | None, user: UserWork | None) -> RankWork:
        return state or "of a user"  # type: ignore[return-value]

    engine: Any = NotingEngine()
    seen = asyncio.run(send_requests(engine, lambda number: Request(UserWork, rank, True), 1_000, 0.003, 0.05))
    assert engine.order == ["user"] * 3 + ["rank made"] * 3 and seen.count(OK) == 3
    refused: Any = lambda state, user: "refused"  # noqa: E731
    assert asyncio.run(send_requests(engine, lambda number: Request(UserWork, refused, False), 1_000, 0.002, 0.0)).count(REFUSED) == 2


@pytest.mark.parametrize("ahead", [False, True])
def test_a_remote_store_is_read_after_retrieval_or_beside_it(ahead: bool) -> None:
    engine: Any = NotingEngine()

    def fetch() -> UserWork:
        engine.order.append("fetch")
        return UserWork()

    rank: Any = lambda state, user: state or "of a user"  # noqa: E731
    asyncio.run(send_requests(engine, lambda number: Request(fetch, rank, ahead, True), 100, 0.02, 0.1))
    assert engine.order == (["fetch", "user"] * 2 + ["rank made"] * 2 if ahead else ["fetch", "rank of a user"] * 2)


def test_the_highest_rate_is_found_between_two_steps_of_a_bisection_and_is_zero_where_none_holds() -> None:
    def p99_ms_at(rate: float) -> float:
        return 5 * 2 ** (rate / 10)

    assert find_rate_max(p99_ms_at, 40, 10, 100, 2) == pytest.approx(30)
    assert find_rate_max(lambda rate: 5 if rate <= 64 else math.inf, 40, 10, 100, 6) == pytest.approx(64, abs=2)
    assert find_rate_max(lambda rate: math.inf, 40, 10, 100, 6) == 0
    assert find_rate_max(lambda rate: 5, 40, 10, 100, 3) == pytest.approx(100, abs=12)  # a rate that was not tried is not claimed


def test_a_rate_that_failed_beside_a_neighbour_is_tried_once_more() -> None:
    tried: list[float] = []

    def p99_ms_at(rate: float) -> float:
        tried.append(rate)
        return 100 if tried.count(rate) == 1 else 10

    assert find_rate_max(p99_ms_at, 40, 10, 100, 1) == 55 and tried == [10, 10, 55, 55]
