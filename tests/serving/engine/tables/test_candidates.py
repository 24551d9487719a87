"""Candidates of a request, and the order of an answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.ids import IdKind, encode_index_key
from schemas.index.layout import encode_increment
from schemas.limits import CANDIDATES_MAX
from serving.engine.tables.candidates import count_unsigned, find_candidates, rank_top
from tests.serving.engine.samples import changes_of_pairs, empty_tables, stamp
from tests.serving.engine.tables.test_tables import IDS, LAYOUTS


def tables_with(kind, items):
    layout, tables = LAYOUTS[kind], empty_tables(LAYOUTS[kind], 60, 4000)
    row = np.zeros((), layout.dtype)
    tables.apply(changes_of_pairs(layout, [(encode_index_key(i), encode_increment(stamp(), row)) for i in items]))
    return tables


@pytest.mark.parametrize("kind", list(IdKind))
@given(data=st.data())
def test_duplicates_count_once_and_unknown_ids_are_counted_and_named(kind: IdKind, data: st.DataObject) -> None:
    asked = data.draw(st.lists(IDS[kind], max_size=50))
    known = data.draw(st.lists(st.sampled_from(asked), unique=True)) if asked else []
    found = find_candidates(tables_with(kind, known), asked)
    different = list(dict.fromkeys(asked))
    assert found.different == len(different) and found.unknown == [i for i in different if i not in known][:100]
    assert list(found.ids_K) == [i for i in different if i in known] and found.unknown_count == len(different) - len(known)
    assert [known[row] for row in found.row_K] == list(found.ids_K)


def test_candidates_without_a_signature_are_counted_where_the_model_has_signatures() -> None:
    tables = tables_with(IdKind.INT64, range(6))
    row_K = find_candidates(tables, list(range(8))).row_K
    assert count_unsigned(tables, row_K) == 0
    tables.columns |= {"signature": np.zeros((60, 4), np.uint8), "has_signature": np.zeros(60, np.uint8)}
    tables.columns["has_signature"][row_K[:4]] = 1
    assert count_unsigned(tables, row_K) == 2


def test_an_id_of_the_other_kind_and_too_many_candidates_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(RejectedInput, match="bad_id"):
        find_candidates(tables_with(IdKind.INT64, [1]), ["one"])
    with pytest.raises(RejectedInput, match="bad_id"):
        find_candidates(tables_with(IdKind.TEXT, ["a"]), [1])
    with pytest.raises(RejectedInput, match="too_many_candidates"):
        find_candidates(tables_with(IdKind.INT64, [1]), np.broadcast_to(np.int64(1), CANDIDATES_MAX + 1))


@pytest.mark.parametrize("kind", list(IdKind))
@given(data=st.data())
def test_the_answer_is_sorted_by_score_descending_then_id_ascending_and_a_score_that_is_not_a_number_comes_last(
    kind: IdKind, data: st.DataObject
) -> None:
    items = data.draw(st.lists(IDS[kind], max_size=40, unique=True))
    drawn = st.lists(st.sampled_from([0.5, 0.25, -1.0, 2.0, np.nan]), min_size=len(items), max_size=len(items))
    scores = np.array(data.draw(drawn), np.float32)
    top_k = data.draw(st.integers(1, 45))
    best = rank_top(scores, np.array(items, np.int64) if kind is IdKind.INT64 else items, top_k)
    wanted = sorted(range(len(items)), key=lambda i: (-np.nan_to_num(scores[i], nan=-np.inf), encode_index_key(items[i])))[:top_k]
    assert best.tolist() == wanted
