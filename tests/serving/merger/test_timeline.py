"""The drawing of a request's time line."""

from hypothesis import given
from hypothesis import strategies as st

from serving.merger.merger import Span
from serving.merger.trace import draw_timeline


def test_spans_stand_under_each_other_on_one_scale() -> None:
    lines = draw_timeline([Span("retrieval", 0, 30, "5 candidates"), Span("call 1", 0, 15), Span("call 2", 30, 40)], width=8)
    assert lines == [
        "retrieval  |######  |      0.0 ..    30.0 ms  5 candidates",
        "call 1     |###     |      0.0 ..    15.0 ms",
        "call 2     |      ##|     30.0 ..    40.0 ms",
    ]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=6), st.integers(1, 80))
def test_every_span_is_seen_and_no_bar_leaves_its_frame(ends: list[tuple[float, float]], width: int) -> None:
    lines = draw_timeline([Span("x", min(pair), max(pair)) for pair in ends], width)
    assert len(lines) == len(ends)
    assert all(len(line.split("|")[1]) == width and "#" in line for line in lines)
