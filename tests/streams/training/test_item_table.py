"""Items as columns: which version, which embedding, which items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.features import encode_features
from schemas.ids import Id, IdKind
from schemas.model.checkpoint import encode_checkpoint, read_checkpoint
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from streams.encoder import RowEncoder
from streams.training.item_table import NOT_AN_ITEM, build_item_table
from tests.schemas.catalogue import small_spec
from tests.streams.training.shop import item


def upsert(item_id: Id, version: int, price: float) -> ItemFeaturesUpdate:
    return ItemFeaturesUpdate(item_id=item_id, version=version, features={"price": price, "category": 3})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=25), st.integers(0, 3), st.integers(-1, 10))
def test_the_row_as_of_a_time_is_the_last_version_not_after_it(log: list[tuple[int, int]], number: int, time_ms: int) -> None:
    """None where all are later: a later row may know the outcome. Of equal versions the one last in the log."""
    table = build_item_table(small_spec(), None, [upsert(n, at, float(1 + place)) for place, (n, at) in enumerate(log)], [], None)
    (row,) = table.rows_as_of(table.items_of([number]), np.array([time_ms]))
    mine = [(at, float(1 + place)) for place, (n, at) in enumerate(log) if n == number]
    known = [v for v in mine if v[0] <= time_ms]
    if not known:
        assert row == NOT_AN_ITEM
        return
    expected = max(known)
    assert (table.version_R[row], float(table.bid_R[row])) == expected


@pytest.mark.parametrize(("version", "is_known"), [(7, True), (1_700_000_000_000, False), (1_700_000_000_000_000, True)])
def test_only_a_version_that_can_be_a_time_in_milliseconds_is_taken_for_one(version: int, is_known: bool) -> None:
    table = build_item_table(small_spec(), None, [upsert(1, version, 2.0)], [], None)
    (row,) = table.rows_as_of(table.items_of([1]), np.array([1_600_000_000_000]))
    assert (row != NOT_AN_ITEM) == is_known


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_the_last_embedding_counts_as_it_does_in_the_rows_of_an_index(kind: IdKind) -> None:
    """Of another width it is none, a feature of its name never stands in for it, and it is rounded to float32 before it is hashed."""
    spec, w_hash = small_spec(kind), make_w_hash(3, 16, 16)
    w_hash[0, :2] = 1.0, -1.0
    w_hash[0, 2:] = 0.0
    ids = [item(n, kind) for n in range(4)]
    chance = np.random.default_rng(0)
    first, second = chance.standard_normal((2, 16))
    near = np.array([600_000.5 + 1e-6, 600_000.0, *np.zeros(14)]) / 2**20  # the first number rounds to another step of the grid as float32
    sent = [(ids[0], first), (ids[0], second), (ids[1], first), (ids[1], second[:5]), (ids[3], near)]
    features = {"price": 2.0, "category": 3, "image": [1.0] * 16}
    updates = [ItemFeaturesUpdate(item_id=i, version=1, features=features) for i in ids]
    table = build_item_table(spec, w_hash, updates, [NewItem(item_id=i, embedding=e.tolist()) for i, e in sent], None)
    encoder = RowEncoder(1, read_checkpoint(encode_checkpoint(AifNetwork(spec, w_hash), "model", {})))
    last = {i: e.astype(np.float32).tobytes() for i, e in sent}
    rows = encoder.encode([features] * 4, [last.get(i) for i in ids])
    assert table.has_signature_R.tolist() == rows["has_signature"].astype(bool).tolist() == [True, False, False, True]
    assert np.array_equal(table.signatures_RW.numpy(), rows["signature"].reshape(4, -1))
    raw = [{"price": 2.0, "category": 3, **({"image": e.tolist()} if e is not None else {})} for e in (second, None, None, near)]
    assert np.array_equal(table.inputs.embeddings.numpy(), encode_features(spec.schema.item_half_inputs, raw).embeddings_RE)


def test_only_wanted_items_are_kept_and_a_deleted_one_still_teaches() -> None:
    log = [upsert(1, 1, 2.0), upsert(2, 1, 3.0), ItemFeaturesUpdate(op="delete", item_id=1, version=5)]
    table = build_item_table(small_spec(), None, log, [], {1})
    assert table.items_of([1, 2]).tolist() == [0, NOT_AN_ITEM] and table.version_R.tolist() == [1]
