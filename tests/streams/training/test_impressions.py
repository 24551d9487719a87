"""The join of impressions, histories and items: as of the impression's time, and never later."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate
from schemas.ids import IdKind
from schemas.model.lsh import encode_signatures, make_w_hash
from streams.training.event_decoder import EventDecoder
from streams.training.impressions import Events, TrainingSet, join_events
from streams.training.item_table import NOT_AN_ITEM
from tests.schemas.catalogue import small_spec
from tests.streams.training.shop import item, shop, shown


@pytest.fixture(params=list(IdKind), ids=str)
def joined(request: pytest.FixtureRequest) -> TrainingSet:
    spec, events = shop(request.param)
    return join_events(spec, make_w_hash(1, spec.hash_bits, spec.schema.mm_width), events)


def bid_column(data: TrainingSet, rows: np.ndarray) -> list[float]:
    return data.items.bid_R[torch.from_numpy(rows)].tolist()


def test_an_item_is_read_as_of_the_impression(joined: TrainingSet) -> None:
    assert bid_column(joined, joined.row_QC[0, :1]) == [20.0]  # at 150: the price of 100, not that of 200
    assert bid_column(joined, joined.row_QC[1, 1:2]) == [30.0]


def test_a_history_ends_strictly_before_the_impression(joined: TrainingSet) -> None:
    lengths = joined.history_end_Q - joined.histories.begin_U[joined.user_Q]
    assert lengths.tolist() == [2, 4, 0]  # the behaviour of time 150 is not known to the impression of time 150


def test_an_unknown_item_is_masked_and_counted_and_a_request_of_only_such_is_left_out(joined: TrainingSet) -> None:
    assert len(joined) == 3 and joined.skipped_items == 2
    assert joined.row_QC[1, 2] == NOT_AN_ITEM and not joined.batch(np.array([1])).mask_BC[0, 2]


def bounded(data: TrainingSet, behaviours_max: int) -> TrainingSet:
    return dataclasses.replace(data, spec=dataclasses.replace(data.spec, behaviours_max=behaviours_max))


def test_a_batch_holds_the_latest_behaviours_right_aligned(joined: TrainingSet) -> None:
    batch = bounded(joined, 3).batch(np.array([0, 1, 2]))
    behaviours = batch.users.behaviours
    assert behaviours.mask_BL.tolist() == [[False, True, True], [True, True, True], [False, False, False]]
    assert behaviours.has_signature_BL.tolist() == [[False, True, True], [True, True, False], [False, False, False]]
    assert (behaviours.category_BL[~behaviours.mask_BL] == 0).all()


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_no_future_in_any_join(seed: int) -> None:
    """Random logs against plain loops over the events: the last version not after the impression, the behaviours before it."""
    chance = np.random.default_rng(seed)
    spec, _ = shop()
    versions = [(int(chance.integers(4)), int(at)) for at in chance.permutation(40)[:12]] + [(n, 50) for n in range(4)]
    updates = [ItemFeaturesUpdate(item_id=n, version=at, features={"price": float(1 + at)}) for n, at in versions]
    actions = [(int(chance.integers(3)), int(chance.integers(4)), int(at)) for at in np.sort(chance.integers(0, 60, 15))]
    behaviours = [Behaviour(user_id=u, item_id=n, time_ms=at) for u, n, at in actions]
    requests = [(int(chance.integers(3)), int(chance.integers(4)), int(chance.integers(0, 60))) for _ in range(8)]
    impressions = [
        ImpressionRecord(request_id=f"r{k}", user_id=u, time_ms=at, items=shown(IdKind.INT64, (n, True)))
        for k, (u, n, at) in enumerate(requests)
    ]
    data = join_events(spec, None, Events(updates, [], [], behaviours, impressions))

    def price_at(number: int, time_ms: int) -> float | None:
        """None of an item that no record had named by then."""
        return max([1.0 + at for n, at in versions if n == number and at <= time_ms], default=None)

    def prices(rows: torch.Tensor) -> list[float | None]:
        return [None if row == NOT_AN_ITEM else float(data.items.bid_R[row]) for row in rows.tolist()]

    batch = data.batch(np.arange(len(requests)))
    for q, (user, number, time_ms) in enumerate(requests):
        assert prices(torch.from_numpy(data.row_QC[q])) == [price_at(number, time_ms)]
        expected = [price_at(n, time_ms) for u, n, at in actions if u == user and at < time_ms]  # as serving joins them: of now
        mask = batch.users.behaviours.mask_BL[q]
        assert prices(batch.rows_BL[q][mask]) == expected


def test_signatures_of_the_table_are_those_of_the_index(joined: TrainingSet) -> None:
    spec = joined.spec
    kind = spec.schema.id_kind
    rows = joined.items.rows_as_of(joined.items.items_of([item(2, kind)]), np.array([0]))
    mm = np.array([[float(k == 2) + 0.1 for k in range(16)]])
    expected = encode_signatures(mm, make_w_hash(1, spec.hash_bits, spec.schema.mm_width))
    assert (joined.items.signatures_RW[torch.from_numpy(rows)].numpy() == expected).all()


def test_a_request_that_is_told_twice_counts_once_and_another_one_of_the_same_id_counts() -> None:
    spec, events = shop()
    first, second, *rest = events.impressions
    others = [
        first.model_copy(update=fields) for fields in ({"time_ms": 151}, {"user_id": 2}, {"items": first.items[:1]}, {"request_id": "z"})
    ]
    sent_again = first.model_copy(update={"items": [s.model_copy() for s in first.items]})

    def joined_with(*more: ImpressionRecord) -> TrainingSet:
        return join_events(spec, None, dataclasses.replace(events, impressions=[first, second, *rest, *more]))

    assert joined_with(sent_again, second).digest == joined_with().digest
    assert joined_with(sent_again, second).skipped_items == joined_with().skipped_items
    assert len(joined_with(*others)) == len(joined_with()) + len(others)


def test_outcomes_stand_by_the_models_tasks_and_padded_places_have_none() -> None:
    spec, events = shop()
    first, second, *rest = events.impressions
    items = [first.items[0].model_copy(update={"outcomes": ["buy", "rated"]}), first.items[1]]
    told = dataclasses.replace(events, impressions=[first.model_copy(update={"items": items}), second, *rest])
    data = join_events(dataclasses.replace(spec, tasks=("click", "love", "buy")), make_w_hash(1, spec.hash_bits, 16), told)
    assert data.outcomes_QCT.shape == (*data.row_QC.shape, 2) and data.outcomes_QCT.sum() == 1 == data.outcomes_QCT[0, 0, 1]
    assert data.batch(np.array([0])).outcomes_BCT.tolist()[0][0] == [0.0, 1.0]
    one = join_events(spec, make_w_hash(1, spec.hash_bits, 16), told)
    assert one.outcomes_QCT.shape[-1] == 0


def test_negatives_are_items_of_the_time_beside_shown_places_and_only_the_task_shown_counts_them() -> None:
    spec, events = shop()
    spec = dataclasses.replace(spec, tasks=("click", "shown"))
    late = ItemFeaturesUpdate(item_id=77, version=200, features={})
    data = join_events(spec, make_w_hash(1, spec.hash_bits, 16), dataclasses.replace(events, items=[*events.items, late]), every_item=True)
    requests = np.arange(len(data))
    plain = data.batch(requests)
    batch = data.with_negatives(plain, requests, np.random.default_rng(0), 5)
    shown = plain.rows_BC.shape[1]
    assert batch.rows_BC.shape[1] == 6 * shown and (batch.rows_BC[:, :shown] == plain.rows_BC).all()
    assert (batch.shown_mask[:, :shown] == plain.mask_BC).all() and not batch.shown_mask[:, shown:].any()
    assert (batch.outcomes_BCT[..., 0][batch.mask_BC] == batch.shown_mask[batch.mask_BC].float()).all()  # type: ignore[index]
    assert not batch.mask_BC[:, shown:][~plain.mask_BC.repeat_interleave(5, dim=1)].any(), "none beside padding"
    drawn, time = batch.rows_BC[:, shown:][batch.mask_BC[:, shown:]], torch.from_numpy(data.time_Q)[:, None].expand_as(batch.rows_BC)
    assert len(drawn) > 5 and (torch.from_numpy(data.items.version_R)[drawn] <= time[:, shown:][batch.mask_BC[:, shown:]]).all()


def test_the_largest_accepted_numbers_reach_no_batch_as_a_warning_or_an_infinity() -> None:
    """A decoder that took an embedding of 1e300 gave training infinities that the index never had."""
    far, late = 1e300, (1 << 63) - 1
    odd = {"category": 1, "price": far, "stock": -far, "age": late, "tags": [far, late], "hour": far}
    updates = [{"item_id": n, "version": late, "features": odd} for n in (1, 2)]
    embeddings = [{"item_id": 1, "embedding": [far] * 16}, {"item_id": 2, "embedding": [3.4e38] * 16}]
    behaviours = [{"user_id": 1, "item_id": n, "time_ms": late - 1, "features": odd} for n in (1, 2)]
    items = [{"item_id": n, "position": n, "bid": far, "teacher_ecpm": far, "clicked": True} for n in (1, 2)]
    impression = {"request_id": "r", "user_id": 1, "time_ms": late, "context": odd, "items": items}
    values = {
        "item-features": {"updates": updates},
        "new-items": {"updates": embeddings},
        "user-features": {"user_id": 1, "features": odd},
        "user-behaviours": {"updates": behaviours},
        "impressions": impression,
    }
    decoder, spec = EventDecoder(1, 1, IdKind.INT64), small_spec()
    records = {topic: [SourceRecord(topic, 0, 0, b"1", json.dumps(value).encode())] for topic, value in values.items()}
    joined = join_events(spec, make_w_hash(1, spec.hash_bits, spec.schema.mm_width), decoder.decode_all(records))
    assert +decoder.skipped == {"new-items": 1} and len(joined) == 1  # + leaves out zeros
    batch = joined.batch(np.array([0]))
    for numbers in (joined.items.realtime_RQ, joined.items.bid_R, joined.items.inputs.numeric, batch.bid_BC, batch.context.numeric):
        assert torch.isfinite(numbers).all()
    assert np.isfinite(joined.items.multimodal_RM).all() and batch.users.behaviours.has_signature_BL.tolist() == [[False, True]]
