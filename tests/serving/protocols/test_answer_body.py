"""The bytes of the JSON routes' answer are those that the models of schemas/requests.py give."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import INT64_MAX, INT64_MIN, Id, encode_wire_id
from schemas.requests import Freshness, RankAnswer, RankedItem, Receipt
from schemas.token import VersionToken
from serving.allocation.decisions import make_receipt, off_receipt
from serving.calls.rank_call import Ranked
from serving.core.choice import Mode
from serving.core.ladder import Rung
from serving.core.price import Price, Source
from serving.core.row_ages import RowAges
from serving.engine.work import RankResult
from serving.protocols.http_api import encode_answer, encode_wire_ids
from tests.serving.fake_engine import FakeState

ints = st.integers(INT64_MIN, INT64_MAX) | st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1])
ids = st.lists(ints, max_size=8) | st.lists(st.text(min_size=1, max_size=6), max_size=8)
numbers = st.floats(width=32) | st.sampled_from([1e-7, 1.0, 0.0, -0.0, 3e38, 1e16])
receipts = st.builds(
    make_receipt,
    st.sampled_from(Mode),
    st.sampled_from(["drop", "full/2000"]),
    st.integers(0, 9),
    st.builds(Price, st.floats(0), st.sampled_from(Source)),
    st.floats(0, 9),
    st.floats(0, 9),
    st.text(max_size=3),
    st.text(max_size=3),
    st.text(max_size=3),
    retry_after_s=st.none() | st.floats(0, 9),
)


@st.composite
def rankings(draw: st.DrawFn) -> Ranked:
    chosen, tasks = draw(ids), draw(st.integers(1, 3))
    count = len(chosen)
    result = RankResult(
        token=VersionToken(draw(st.integers(0, 99)), 1, "0f" * 4),
        ids=list(chosen),
        scores_A=np.array(draw(st.lists(numbers, min_size=count, max_size=count)), np.float32),
        probabilities_AT=np.array(draw(st.lists(numbers, min_size=count * tasks, max_size=count * tasks)), np.float32).reshape(
            count, tasks
        ),
        unknown=list(draw(ids)),
        unknown_count=draw(st.integers(0, 9)),
        candidates=draw(st.integers(0, 99)),
        watermark=draw(st.lists(st.dictionaries(st.sampled_from(["item-features", "new-items"]), st.integers(0, 2**50)), max_size=3)),
        state=FakeState(1, 1, 1, 0, False),
    )
    reasons = draw(st.lists(st.text(max_size=5), max_size=2))
    ages = RowAges(draw(st.lists(st.none() | st.floats(0, 1e6), max_size=3)), draw(st.lists(st.integers(0, 9), max_size=2)))
    return Ranked(draw(st.text(max_size=9)), result, draw(st.sampled_from(Rung)), reasons, draw(receipts), ages)


def as_ranked(ids: list[Id], scores_A: np.ndarray, probabilities_AT: np.ndarray) -> Ranked:
    state = FakeState(1, 1, 1, 0, False)
    return Ranked(
        "r",
        RankResult(VersionToken(1, 1, "0f" * 4), ids, scores_A, probabilities_AT, [], 0, len(ids), [], state),
        Rung.CACHED,
        [],
        off_receipt(3),
    )


def as_model(ranked: Ranked, took_ms: float) -> RankAnswer:
    """The slow form, which is the specification."""
    result = ranked.result
    items = [
        RankedItem.model_construct(item_id=encode_wire_id(one), score=score, probabilities=probabilities)
        for one, score, probabilities in zip(result.ids, result.scores_A.tolist(), result.probabilities_AT.tolist(), strict=True)
    ]
    return RankAnswer.model_construct(
        request_id=ranked.request_id,
        version_token=str(result.token),
        rung=ranked.rung.value,
        degraded=ranked.degraded,
        action=ranked.receipt["action"],
        price=ranked.receipt["lambda"],
        table=ranked.receipt["table"],
        receipt=Receipt.model_validate(ranked.receipt),
        items=items,
        candidates=result.candidates,
        unknown_count=result.unknown_count,
        unknown_items=[encode_wire_id(one) for one in result.unknown],
        freshness=Freshness.model_construct(
            age_s=ranked.ages.worst_s, lagging_shards=ranked.ages.lagging, watermark=[dict(shard) for shard in result.watermark]
        ),
        took_ms=took_ms,
    )


@given(rankings(), st.floats(0, 1e6))
def test_an_answer_has_the_bytes_of_its_model(ranked: Ranked, took_ms: float) -> None:
    raw, model = asyncio.run(encode_answer(ranked, took_ms)), as_model(ranked, took_ms)
    assert raw == model.model_dump_json().encode()
    finite = np.isfinite(ranked.result.scores_A).all() and np.isfinite(ranked.result.probabilities_AT).all()
    if finite:
        assert RankAnswer.model_validate_json(raw) == RankAnswer.model_validate(model.model_dump()), "and a client reads it"


def test_a_long_answer_is_written_in_turns_with_other_requests() -> None:
    count = 10_000
    ranked = as_ranked(list(range(count)), np.ones(count, np.float32), np.ones((count, 1), np.float32))
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def write() -> bytes:
        other = asyncio.ensure_future(others())
        raw = await encode_answer(ranked, 1.0)
        other.cancel()
        return raw

    assert asyncio.run(write()).count(b'"item_id"') == count and len(turns) >= count // 1_000


@given(ids)
def test_ids_travel_as_they_do_one_by_one(chosen: list[Id]) -> None:
    assert list(encode_wire_ids(chosen)) == [encode_wire_id(one) for one in chosen]
