"""The timeline of one request, drawn as text.

retrieval   |##################------|   0.0 ..  31.2 ms
call 1      |####                    |   0.1 ..   7.9 ms  inline, 5 behaviours
"""

from collections.abc import Sequence
from dataclasses import dataclass

_BAR = 48


@dataclass(frozen=True, slots=True)
class Span:
    """A step that lasted from `start_ms` to `end_ms`, counted from the arrival of the request."""

    name: str
    start_ms: float
    end_ms: float
    detail: str = ""

    @property
    def took_ms(self) -> float:
        """Its duration in ms."""
        return self.end_ms - self.start_ms


def draw_timeline(spans: Sequence[Span], width: int = _BAR) -> list[str]:
    """One line per span, all on the same scale; a span is at least one mark wide."""
    if not spans:
        return []
    end_ms = max(1e-9, *(span.end_ms for span in spans))
    names = max(len(span.name) for span in spans)
    return [_draw(span, names, end_ms, width) for span in spans]


def _draw(span: Span, names: int, end_ms: float, width: int) -> str:
    start = min(width - 1, int(width * span.start_ms / end_ms))
    marks = max(1, min(width - start, round(width * span.took_ms / end_ms)))
    bar = " " * start + "#" * marks
    return f"{span.name:<{names}}  |{bar:<{width}}|  {span.start_ms:7.1f} .. {span.end_ms:7.1f} ms  {span.detail}".rstrip()
