"""The ladder of the final ranking: where the keys and values of a user's history come from, as a table. Pure.

    rung          keys and values                                                what the order lacks
    resident      computed for this request while retrieval ran                  nothing
    waited        being computed; the rest is computed here                      nothing
    extended      kept from an earlier request; newer behaviours added here      nothing
    reloaded      the same, from the host tier                                   nothing
    inline        computed here as a whole                                       nothing, but it is the slowest
    older_prefix  kept, and it begins before the window that is due now          nothing: it reads more behaviours than asked
    truncated     the newest behaviours only, as many as there is time for       the older behaviours
    aif_order     none                                                           the ranker: AIF's order is the answer

Here: the best rung that a situation allows. Not here: taking it (serving/relay/relay.py).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class FinalRung(enum.StrEnum):
    """Where the keys and values of a final ranking came from; the answer contains the value."""

    RESIDENT = "resident"
    WAITED = "waited"
    EXTENDED = "extended"
    RELOADED = "reloaded"
    INLINE = "inline"
    OLDER_PREFIX = "older_prefix"
    TRUNCATED = "truncated"
    AIF_ORDER = "aif_order"


DEGRADED_RUNGS = frozenset({FinalRung.TRUNCATED, FinalRung.AIF_ORDER})


@dataclass(frozen=True, slots=True)
class FinalSituation:
    """What a final ranking finds. Times in ms: predicted, from now to the end of the ranking on that rung; None = there is no such prefix."""

    left_ms: float
    resident_ms: float | None = None
    waited_ms: float | None = None
    extended_ms: float | None = None
    reloaded_ms: float | None = None
    inline_ms: float | None = None
    older_prefix_ms: float | None = None
    truncated_ms: float | None = None


def _in_time(took_ms: float | None, situation: FinalSituation) -> bool:
    return took_ms is not None and took_ms <= situation.left_ms


_TABLE: Sequence[tuple[FinalRung, Callable[[FinalSituation], float | None]]] = (
    (FinalRung.RESIDENT, lambda s: s.resident_ms),
    (FinalRung.WAITED, lambda s: s.waited_ms),
    (FinalRung.EXTENDED, lambda s: s.extended_ms),
    (FinalRung.RELOADED, lambda s: s.reloaded_ms),
    (FinalRung.INLINE, lambda s: s.inline_ms),
    (FinalRung.OLDER_PREFIX, lambda s: s.older_prefix_ms),
    (FinalRung.TRUNCATED, lambda s: s.truncated_ms),
)


def choose_final_rung(situation: FinalSituation) -> FinalRung:
    """The best rung that is in time; AIF's order if none is."""
    return next((rung for rung, took in _TABLE if _in_time(took(situation), situation)), FinalRung.AIF_ORDER)
