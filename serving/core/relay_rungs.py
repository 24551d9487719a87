"""The ladder of the final ranking: where the keys and values of a user's history come from. Pure.

    rung          keys and values                                                what the order lacks
    resident      computed for this request while retrieval ran                  nothing
    waited        being computed; the rest is computed here                      nothing
    extended      kept from an earlier request; newer behaviours added here      nothing
    reloaded      the same, from the host tier                                   nothing
    inline        computed here as a whole                                       nothing, but it is the slowest
    older_prefix  kept, and it begins before the window that is due now          nothing: it reads more behaviours than asked
    truncated     the newest behaviours only, as many as there is time for       the older behaviours
    aif_order     none                                                           the ranker: AIF's order is the answer

Here: the best rung that is in time. Not here: taking it (serving/relay/relay.py).
"""

import enum
from collections.abc import Mapping


class FinalRung(enum.StrEnum):
    """Where the keys and values of a final ranking came from, the best first; the answer contains the value."""

    RESIDENT = "resident"
    WAITED = "waited"
    EXTENDED = "extended"
    RELOADED = "reloaded"
    INLINE = "inline"
    OLDER_PREFIX = "older_prefix"
    TRUNCATED = "truncated"
    AIF_ORDER = "aif_order"


DEGRADED_RUNGS = frozenset({FinalRung.TRUNCATED, FinalRung.AIF_ORDER})


def choose_final_rung(took_ms: Mapping[FinalRung, float], left_ms: float) -> FinalRung:
    """The best rung that is in time; AIF's order if none is. `took_ms`: predicted, from now to the end of the ranking, of each rung that there is."""
    return next((rung for rung in FinalRung if rung in took_ms and took_ms[rung] <= left_ms), FinalRung.AIF_ORDER)
