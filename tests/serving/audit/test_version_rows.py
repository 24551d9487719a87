"""The audit's own row-stamp rule is the format's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.index.layout import STAMP
from serving.audit.version_rows import stamp_advances
from tests.schemas.index.stamp_rule import is_newer

STAMPS = st.tuples(
    st.integers(0, 2), st.integers(-1, 2), st.integers(0, 2), st.integers(-1, 2), st.integers(0, 2), st.just(0), st.integers(0, 1)
)


@given(STAMPS, STAMPS)
def test_a_row_is_replaced_exactly_when_the_format_says_so(incoming: tuple[int, ...], current: tuple[int, ...]) -> None:
    a, b = np.array(incoming, STAMP), np.array(current, STAMP)
    assert stamp_advances(a.item(), b.item()) == bool(is_newer(a, b))
