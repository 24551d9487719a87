"""The second stage over the real ports: the signal's answer, the final order and what it says of itself, and hostile bodies."""

import threading
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.model.parameters import Parameters, parameters_of
from schemas.requests import PrefixAnswer, RankAnswer
from serving.core.final_order import final_order, logits_of
from tests.schemas.model.samples import SPECS, make_network
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

PARAMETERS = parameters_of(make_network(SPECS["ranker"]))


class EngineWithRanker(FakeEngine):
    def find_parameters(self, version: int) -> Parameters | None:
        return PARAMETERS if self.find_token(version) is not None else None


@pytest.fixture
def front() -> Iterator[Front]:
    with open_front(EngineWithRanker()) as opened:
        opened.relay.follow([7])
        for offset in range(30):
            opened.tell(1, offset, item=offset % 5)
        while opened.relay.spec(7) is None:
            pass
        yield opened


def post(front: Front, path: str, status: int, **body: object) -> dict[str, object]:
    answer = httpx.post(f"{front.url}{path}", json={"user_id": 1, **body}, timeout=60)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def rank(front: Front, **body: object) -> RankAnswer:
    return RankAnswer.model_validate(post(front, "/v1/rank", 200, item_ids=list(range(50)), **body))


def test_a_signal_is_accepted_and_its_ranking_finds_the_prefix(front: Front) -> None:
    signal = PrefixAnswer.model_validate(post(front, "/v1/prefix", 202, request_id="r"))
    assert (signal.decision, signal.request_id) == ("admitted", "r")
    final = rank(front, request_id="r", top_k=20, final={"top_k": 5}).final
    assert final is not None
    assert final.rung in ("resident", "waited")
    assert (final.history_start, final.history_read, final.behaviours_offset) == (0, 30, 29)


def test_the_final_order_is_of_the_items_that_aif_ranked_first(front: Front) -> None:
    first, final = rank(front, top_k=20), rank(front, top_k=20, final={"top_k": 5})
    assert first.final is None
    assert {item.item_id for item in final.items} < {item.item_id for item in first.items}
    assert [item.score for item in final.items] == sorted((item.score for item in final.items), reverse=True)
    assert [item.item_id for item in final.items] != [item.item_id for item in first.items[:5]]  # these weights are random


def test_the_second_stage_alone_gives_the_same(front: Front) -> None:
    both = rank(front, top_k=20, final={"top_k": 5})
    ids = [item.item_id for item in rank(front, top_k=20).items]
    alone = RankAnswer.model_validate(post(front, "/v1/rank_final", 200, item_ids=ids, top_k=5))
    assert alone.items == both.items


def test_prerank_and_the_inference_protocol_give_the_same(front: Front) -> None:
    both = rank(front, top_k=20, final={"top_k": 5})
    one_hop = RankAnswer.model_validate(post(front, "/v1/prerank", 200, item_ids=list(range(50)), top_k=20, final={"top_k": 5}))
    tensors = [
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "item_ids", "datatype": "INT64", "shape": [50], "data": list(range(50))},
        {"name": "top_k", "datatype": "INT64", "shape": [1], "data": [20]},
    ]
    body = {"inputs": tensors, "parameters": {"final_top_k": 5}}
    answer = httpx.post(f"{front.url}/v2/models/prerank/infer", json=body, timeout=60).json()
    assert one_hop.items == both.items
    assert next(output["data"] for output in answer["outputs"] if output["name"] == "item_ids") == [item.item_id for item in both.items]
    assert '"rung":"inline"' in answer["parameters"]["final"]


def test_without_a_ranker_the_order_of_aif_is_the_answer_and_says_so(front: Front) -> None:
    front.relay.follow([])
    first, final = rank(front, top_k=5), rank(front, top_k=20, final={"top_k": 5})
    assert final.final is not None
    assert (final.final.rung, final.degraded) == ("aif_order", [*first.degraded, "final_aif_order"])
    assert final.items == first.items
    assert post(front, "/v1/prefix", 202)["decision"] == "no_ranker"


def test_a_ranker_that_is_late_against_its_prediction_leaves_the_order_of_aif(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(front.relay._backends[7], "score", lambda *_: done.wait(30))
    try:
        first, final = rank(front, top_k=5), rank(front, top_k=20, final={"top_k": 5}, deadline_ms=500)
    finally:
        done.set()
    assert final.final is not None
    assert (final.final.rung, final.items) == ("aif_order", first.items)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/prefix", {"candidates": 0}),
        ("/v1/prefix", {"candidates": 1_001}),
        ("/v1/prefix", {"item_ids": [1]}),
        ("/v1/rank_final", {"item_ids": []}),
        ("/v1/rank_final", {"item_ids": list(range(1_001))}),
        ("/v1/rank_final", {"item_ids": [1], "top_k": 0}),
        ("/v1/rank", {"item_ids": [1], "top_k": 1_001, "final": {"top_k": 5}}),
        ("/v1/rank", {"item_ids": [1], "final": {"top_k": 1_001}}),
        ("/v1/rank", {"item_ids": [1], "final": {"k": 1}}),
    ],
)
def test_a_wrong_body_is_refused_with_the_field(front: Front, path: str, wrong: dict[str, object]) -> None:
    answer = post(front, path, 422, **wrong)
    assert answer["code"] in ("bad_request", "too_many_candidates")


probabilities = st.floats(1e-6, 1 - 1e-6)


@given(st.lists(st.tuples(probabilities, st.floats(0.01, 100)), min_size=1, max_size=20))
def test_an_order_that_the_ranker_does_not_change_stays(rows: list[tuple[float, float]]) -> None:
    click = np.array([[p] for p, _ in rows], np.float32)
    scores = np.array([p * bid for p, bid in rows], np.float32)
    logits = logits_of(click)
    places, final, _ = final_order((("click", 1.0), ("bid", 1.0)), ("click",), list(range(len(rows))), scores, logits, logits)
    assert np.allclose(final, scores)
    assert places == sorted(range(len(rows)), key=lambda place: (-final[place], place))


def test_a_certain_or_impossible_click_has_finite_log_odds() -> None:
    assert logits_of(np.array([[0.0], [1.0], [0.5]], np.float32)).tolist() == [[-20.0], [20.0], [0.0]]
