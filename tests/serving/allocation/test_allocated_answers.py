"""Allocation over the real ports: fewer candidates under load, receipts in answers and refusals, modes switched at run time, no more in work than the limit."""

import asyncio
import json
import math
from contextlib import suppress
from dataclasses import replace

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from schemas.allocation import Costs, Gate, decode_table, encode_table
from schemas.errors import Corrupted, Unavailable
from schemas.requests import ErrorAnswer, RankAnswer, UserAnswer
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import built_in_table, servable
from serving.client import Client
from serving.core.ladder import take_first
from serving.merger.merger import Merger
from serving.protocols.front import Intake
from tests.serving.calls.test_refusal import open_overloaded
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

ITEMS = list(range(2_000))


def press(front: Front) -> None:
    """The price of a queue that is full by the allocator's measure, and empty by admission's."""
    front.allocator.hold(1e6)


def test_under_load_the_first_candidates_or_the_best_of_retrieval_are_ranked_and_the_answer_says_so() -> None:
    with open_front(FakeEngine(rows=3_000), allocation=AllocationSection(mode="queue")) as front, Client(front.url) as client:
        whole = client.rank(1, ITEMS, top_k=100)
        press(front)
        first = client.rank(1, ITEMS, top_k=100, request_id="first")
        scores = [float(place >= 1_500) for place in range(2_000)]
        best = client.rank(1, ITEMS, top_k=100, retrieval_scores=scores)
    assert whole.receipt is not None and whole.candidates == 2_000 and whole.price == 0 and whole.degraded == ["cold_user"]
    assert (
        first.candidates == 500 and {int(item.item_id) for item in first.items} <= set(range(500)) and "fewer_candidates" in first.degraded
    )
    assert first.receipt is not None and first.receipt.candidates == 500 and first.action == first.receipt.action == "full/500"
    assert (
        first.price == 1e6 and first.receipt.lambda_source == "plan" and first.table == "built-in" and first.receipt.runner_up == "full/700"
    )
    assert {int(item.item_id) for item in best.items} <= set(range(1_500, 2_000))


def test_the_best_scores_of_retrieval_may_be_as_large_as_a_number_can_be() -> None:
    with open_front(FakeEngine(rows=3_000), allocation=AllocationSection(mode="value")) as front, Client(front.url) as client:
        client.rank(1, ITEMS, retrieval_scores=[1e308] * len(ITEMS), request_id="large")
        facts = client.explain_allocation("large")["inputs"]["facts"]
    assert math.isfinite(facts["retrieval_top"])


def test_inferences_carry_the_receipt_as_parameters() -> None:
    with open_front(FakeEngine(rows=3_000), allocation=AllocationSection(mode="queue")) as front:
        press(front)
        inputs = [
            {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [1]},
            {"name": "item_ids", "datatype": "INT64", "shape": [2_000], "data": ITEMS},
            {"name": "retrieval_scores", "datatype": "FP32", "shape": [2_000], "data": ITEMS},
        ]
        body = {"inputs": inputs, "parameters": {"user_value": 2.0, "request_class": "feed"}}
        answer = httpx.post(f"{front.url}/v2/models/prerank/infer", json=body).raise_for_status().json()
        bad = httpx.post(f"{front.url}/v1/rank", json={"user_id": 1, "item_ids": ITEMS, "retrieval_scores": [1.0]})
        inputs[2] |= {"datatype": "FP64", "parameters": {"binary_data_size": 16_000}}
        del inputs[2]["data"]
        head = json.dumps(body).encode()
        length = {"inference-header-content-length": str(len(head))}
        raw = head + np.full(2_000, np.nan).tobytes()
        infinite = httpx.post(f"{front.url}/v2/models/prerank/infer", content=raw, headers=length)
    said = answer["parameters"]
    assert (said["action"], said["lambda"], said["table"], said["candidates"]) == ("full/500", 1e6, "built-in", 500)
    assert json.loads(said["receipt"])["mode"] == "queue" and min(answer["outputs"][0]["data"]) >= 1_500
    assert bad.status_code == 422 and bad.json()["code"] == "bad_retrieval_scores"
    assert infinite.status_code == 400 and "bad_tensor: retrieval_scores" in infinite.json()["error"]


def test_wrong_tables_cost_neither_answers_nor_errors() -> None:
    """Each through its file, as a server reads it: cheap by 40%, twice as dear, free, falling, of one action, and one that is refused."""
    table = replace(built_in_table(), version=7, made_at_ms=1, gate=Gate(0.1, 0.0, 0.2), full_ms=4.0)
    full = table.costs.levels["full"]
    falling = (0.0, *(10.0 / place for place in range(1, len(table.actions))))
    wrong = [
        *(
            replace(table, costs=Costs({**table.costs.levels, "full": replace(full, candidate_us=factor * full.candidate_us)}))
            for factor in (0.6, 2.0, 0.0)
        ),
        replace(table, mean_row=falling, values=replace(table.values, shares=(falling,))),
        replace(table, actions=table.actions[-2:], mean_row=(1.0, 1.0), values=replace(table.values, shares=((1.0, 1.0),))),
        replace(table, queue_price=math.nan),
    ]
    with open_front(FakeEngine(rows=3_000), allocation=AllocationSection(mode="value")) as front, Client(front.url) as client:
        for number, one in enumerate(wrong):
            with suppress(Corrupted, ValueError):  # a server keeps the table before; json has no nan
                front.allocator.tables.known = {7: servable(decode_table(encode_table(one), 7))}
            for plan in (0.0, 1e-6, 0.1):
                front.allocator.hold(plan)
                for again in range(4):
                    answer = client.rank(1, ITEMS, top_k=100, request_id=f"{number} {plan} {again}")
                    assert answer.receipt is not None and len(answer.items) == 100 and answer.table == "v7-1"
                    assert plan > 0 or answer.candidates == 2_000, "without a price, full work"


def test_modes_are_switched_and_decisions_explained_at_run_time() -> None:
    with open_front(FakeEngine(rows=3_000)) as front, Client(front.url) as client:
        press(front)
        assert client.rank(1, ITEMS).candidates == 2_000 and client.allocation()["mode"] == "off"
        for mode, candidates in (("shadow", 2_000), ("queue", 500), ("value", 500), ("off", 2_000)):
            assert client.switch_allocation(mode)["mode"] == mode
            press(front)
            assert client.rank(1, ITEMS, request_id=mode).candidates == candidates
        explained = client.explain_allocation("queue")
        assert explained["equal"] and explained["receipt"]["action"] == "full/500"
        shown = CliRunner().invoke(build_app(), ["allocate", "explain", "queue", "--url", front.url, "--json"])
        assert shown.exit_code == 0 and json.loads(shown.output)["replayed_action"] == "full/500"
        text = CliRunner().invoke(build_app(), ["allocate", "explain", "queue", "--url", front.url]).output
        assert "full/700" in text and "lambda" in text
        switched = CliRunner().invoke(build_app(), ["allocate", "mode", "shadow", "--url", front.url, "--json"])
        assert json.loads(switched.output)["mode"] == front.allocator.mode == "shadow"
        assert client.allocation()["actions"]["shadow"] == {"full/500": 1}, "what it would have done"
        assert httpx.get(f"{front.url}/v1/allocation/requests/nothing").status_code == 404
        assert httpx.post(f"{front.url}/v1/allocation/mode", json={"mode": "fast"}).status_code == 422


def test_call_one_says_how_many_candidates_are_worth_sending_and_the_merger_sends_no_more() -> None:
    async def ask(url: str) -> int:
        async def retrieve(_: object) -> list[int]:
            await asyncio.gather(*merger._calls)  # until call 1 has its answer
            return ITEMS

        async with Merger([url], retrieve) as merger:
            return (await merger.recommend(1, top_k=10, deadline_ms=20_000)).answer.candidates

    with open_front(FakeEngine(rows=3_000), allocation=AllocationSection(mode="queue")) as front:
        calm = UserAnswer.model_validate(httpx.post(f"{front.url}/v1/user", json={"user_id": 1}).json())
        press(front)
        pressed = UserAnswer.model_validate(httpx.post(f"{front.url}/v1/user", json={"user_id": 1}).json())
        assert asyncio.run(ask(front.url)) == 500
        assert front.allocator._made[-1].ask.facts.candidates == 700, "one length more than would be ranked"
    assert calm.candidates_max is None and pressed.candidates_max == 700


def test_a_refusal_has_a_receipt_on_every_port() -> None:
    with open_overloaded() as front:
        refused = httpx.post(f"{front.url}/v1/rank", json={"user_id": 1, "item_ids": [1]})
        answer = ErrorAnswer.model_validate(refused.json())
        inferred = httpx.post(f"{front.url}/v2/models/prerank/infer", content=b"{}").json()
    assert refused.status_code == 429 and answer.receipt is not None and answer.receipt.action == "drop"
    assert answer.receipt.retry_after_s == answer.retry_after_s and answer.receipt.reason.startswith("admission: ")
    assert inferred["receipt"]["action"] == "drop"


def test_never_more_are_in_work_than_the_limit() -> None:
    """Two hundred requests at once, whose bodies come at random moments, and a limit of ten."""
    rng = np.random.default_rng(0)
    intake, working, most = Intake(10), 0, 0

    async def one(pauses_s: list[float]) -> bool:
        nonlocal working, most
        with intake.enter():
            try:
                intake.check()
                with intake.reading() as take:
                    await asyncio.sleep(pauses_s[0])
                    take(1)
                intake.check_number()
            except Unavailable:
                return False
            working += 1
            most = max(most, working)
            await asyncio.sleep(pauses_s[1])
            working -= 1
            return True

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(one(rng.uniform(0, 0.02, 2).tolist()) for _ in range(200)))

    answered = asyncio.run(all_of_them())
    assert 0 < sum(answered) < 200 and most <= 10 and intake.in_work == 0


@pytest.mark.parametrize("as_array", [True, False])
def test_the_best_by_retrieval_keep_the_callers_order(as_array: bool) -> None:
    ids = np.arange(6) if as_array else ["a", "b", "c", "d", "e", "f"]
    assert list(take_first(ids, 3, [0.0, 5.0, 1.0, 4.0, 2.0, 0.0])) == [ids[1], ids[3], ids[4]]  # type: ignore[index]
    assert list(take_first(ids, 2)) == list(ids[:2]) and len(take_first(ids, None)) == len(take_first(ids, 9)) == 6  # type: ignore[index]


def test_an_answer_of_an_older_server_has_no_receipt() -> None:
    fields = {"request_id": "r", "version_token": "t", "rung": "cached", "degraded": [], "items": [], "candidates": 0, "unknown_count": 0}
    old = RankAnswer.model_validate({**fields, "unknown_items": [], "freshness": {"age_s": None, "watermark": []}, "took_ms": 1.0})
    assert old.receipt is None and old.price == 0
