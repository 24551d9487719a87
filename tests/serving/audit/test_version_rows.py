"""The audit's own row-order rule is the format's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.index.layout import ORDER
from serving.audit.version_rows import order_advances
from tests.schemas.index.order_rule import is_newer

ORDERS = st.tuples(
    st.integers(0, 2), st.integers(-1, 2), st.integers(0, 2), st.integers(-1, 2), st.integers(0, 2), st.just(0), st.integers(0, 1)
)


@given(ORDERS, ORDERS)
def test_a_row_is_replaced_exactly_when_the_format_says_so(incoming: tuple[int, ...], current: tuple[int, ...]) -> None:
    a, b = np.array(incoming, ORDER), np.array(current, ORDER)
    assert order_advances(a.item(), b.item()) == bool(is_newer(a, b))
