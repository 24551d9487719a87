"""The join of a round is the join of a batch run over the whole log, in whatever pieces the log came."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import ItemFeaturesUpdate
from schemas.model.inputs import map_tensors
from schemas.model.spec import ModelSpec
from streams.training.following.view import View
from streams.training.impressions import Batch, Events, TrainingSet, join_events
from tests.streams.training.following.stream import TasteStream, joined
from tests.streams.training.shop import shop

BEHAVIOURS = 4


def tensors_of(batch: Batch, data: TrainingSet) -> list[torch.Tensor]:
    """What a step sees of a batch: rows as their content, not as their numbers; masked places as zeros."""
    found: list[torch.Tensor] = []

    def masked(t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return t * mask.reshape(*mask.shape, *[1] * (t.ndim - mask.ndim)) if t.numel() else t

    b = batch.users.behaviours
    users = dataclasses.replace(batch.users, behaviours=map_tensors(b, lambda t: masked(t, b.mask_BL)))
    users.behaviours.signatures_BLW.mul_(b.has_signature_BL[..., None])
    rows = (batch.rows_BC, batch.rows_BL)
    content = [map_tensors(data.items.inputs, lambda t, r=r: masked(t[r.clamp(min=0)], r >= 0)) for r in rows]
    candidates = data.candidate_rows(batch, torch.zeros(0), torch.zeros(0))
    for part in (users, *content, candidates, batch.teacher_BC.nan_to_num(-1), batch.clicked_BC, batch.mask_BC):
        map_tensors(part, lambda t: (found.append(t), t)[1])
    return found


def bounded(stream: TasteStream) -> ModelSpec:
    return dataclasses.replace(stream.spec, behaviours_max=BEHAVIOURS)


def view_of(stream: TasteStream) -> View:
    return View(bounded(stream), stream.network().w_hash_KM)


@pytest.mark.parametrize("piece", [1, 7, 40])
def test_rounds_are_joined_as_the_whole_log_is(piece: int) -> None:
    stream = TasteStream()
    view, parts = view_of(stream), [stream.catalogue()]
    view.fold(parts[0])
    rounds = []
    for _ in range(0, 40, piece):
        parts.append(stream.events(piece))
        view.fold(parts[-1])
        rounds.append(view.join(parts[-1].impressions))
    whole = join_events(bounded(stream), stream.network().w_hash_KM, joined(parts))
    at = 0
    for data in rounds:
        ours = tensors_of(data.batch(np.arange(len(data))), data)
        theirs = tensors_of(whole.batch(np.arange(at, at + len(data))), whole)
        assert len(data) == piece and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        at += piece


def test_a_backlog_that_is_folded_at_once_leaks_nothing_from_after_an_impression() -> None:
    stream = TasteStream()
    first, later = stream.events(10), stream.events(30)
    at_once, in_time = view_of(stream), view_of(stream)
    at_once.fold(joined([stream.catalogue(), first, later]))
    in_time.fold(joined([stream.catalogue(), first]))
    ours, theirs = at_once.join(first.impressions), in_time.join(first.impressions)
    batches = [tensors_of(data.batch(np.arange(10)), data) for data in (ours, theirs)]
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_what_is_forgotten_is_a_function_of_the_place_and_not_of_when_it_was_folded() -> None:
    def version(at: int) -> ItemFeaturesUpdate:
        return ItemFeaturesUpdate(item_id=3, version=at, features={"category": 1, "price": 1.0, "stock": at})

    stream = TasteStream()
    now = stream.events(1).impressions
    asked = [dataclasses.replace(stream.catalogue(), items=[version(at)]) for at in (10, 20, 30)]
    early, late = view_of(stream), view_of(stream)
    for part in asked:
        early.fold(part)
    late.settled_ms = 25
    for part in asked:
        late.fold(part)
    early.settled_ms = 25
    item = now[0].items[0].model_copy(update={"item_id": 3})
    joined_of = [view.join([now[0].model_copy(update={"items": [item]})]) for view in (early, late)]
    assert [data.items.version_R.tolist() for data in joined_of] == [[20, 30], [20, 30]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 99)), max_size=12))
def test_records_and_statistics_hold_as_of_their_times_in_whatever_order_they_come(log: list[tuple[bool, int, int]]) -> None:
    """A record may have waited in a queue while statistics were counted as of a later time, and a training over the whole log reads both by time."""
    spec, events = shop()
    items = [ItemFeaturesUpdate(item_id=1, version=0, features={"price": 1.0, "stock": 0})]
    for is_record, version, number in log:
        told = {"price": number, "stock": -1} if is_record else {"stock": number}
        items.append(ItemFeaturesUpdate(op="upsert" if is_record else "statistics", item_id=1, version=version, features=told))
    view, told = View(spec, None), Events(items, [], [], [], [])
    view.fold(told)
    asked = [events.impressions[0].model_copy(update={"time_ms": at, "request_id": str(at)}) for at in range(11)]
    seen = []
    for data in (view.join(asked), join_events(spec, None, dataclasses.replace(told, impressions=asked))):
        row_Q = data.row_QC[:, 0]
        seen.append((data.items.bid_R[row_Q].tolist(), data.items.realtime_RQ[row_Q].tolist()))
    assert seen[0] == seen[1]
