"""Candidates of a body become ids of the catalogue, all at once where they can, with the same results and refusals as one by one."""

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.ids import INT64_MAX, INT64_MIN, Id, IdKind, decode_id
from serving.calls.request_ids import decode_candidates

NEAR_NUMBERS = st.text("0123456789-,+_ .e[]\ud800\u0663", min_size=1, max_size=22)


@given(st.lists(st.integers(INT64_MIN, INT64_MAX).map(str) | NEAR_NUMBERS, min_size=1, max_size=5))
@example(["1,2", "3"])
@example(["1,", "2"])
@example(["007", "-0"])
@example([str(INT64_MAX), str(INT64_MIN)])
@example([str(INT64_MAX + 1)])
@example(["1", "\u0663"])
def test_numbers_in_text_are_taken_all_at_once_as_they_are_one_by_one(ids: list[str]) -> None:
    assert _outcome(lambda: decode_candidates(ids, IdKind.INT64, len(ids)).tolist()) == _outcome(  # type: ignore[union-attr]
        lambda: [decode_id(one, IdKind.INT64) for one in ids]
    )


@given(st.lists(st.text(max_size=5) | st.sampled_from(["x" * 128, "x" * 129, "\ud800"]), min_size=1, max_size=5))
@example([""])
@example(["a", ""])
def test_text_ids_are_taken_all_at_once_as_they_are_one_by_one(ids: list[str]) -> None:
    assert _outcome(lambda: list(decode_candidates(ids, IdKind.TEXT, len(ids)))) == _outcome(
        lambda: [decode_id(one, IdKind.TEXT) for one in ids]
    )


def _outcome(decode: Callable[[], list[Id]]) -> list[Id] | str:
    try:
        return decode()
    except RejectedInput as error:
        return error.message
