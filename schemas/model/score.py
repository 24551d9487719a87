"""The score that orders candidates: a product of powers of the tasks' probabilities and the bid.

    ecpm                        click * bid
    click                       click
    click * shown               the catalogue: how likely an item is shown at all, times how likely it is then clicked
    click * buy^0.5 * bid       any tasks of the model and `bid`, each at most once, each with an exponent above 0 if it is not 1

Invariant: a score grows with every probability and with the bid, so bounds of the probabilities give bounds of the score.

Source: AIF, eq. (10), which compares y * bid, the expected revenue (eCPM). Differs: the paper has one task; a product of powers is what rankers with
several commonly use.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

BID = "bid"
SHOWN = "shown"  # the task that distinguishes shown items from the rest of the catalogue
# Its log-odds lie so far below those among a fit's few drawn negatives. There the likeliest items are nearly certain to be shown, and a product of
# probabilities could not order them; this low a probability is proportional to the odds.
SHOWN_OFFSET = 7.0
_NAMED = {"ecpm": (("click", 1.0), (BID, 1.0)), "click": (("click", 1.0),)}
_TERM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\^([0-9]+(?:\.[0-9]+)?))?")
EXPONENT_MAX = 8.0

Terms = tuple[tuple[str, float], ...]


def decode_rank_by(rank_by: str) -> Terms:
    """The factors of a formula, (name, exponent), in its order. Raises ValueError saying which part does not read."""
    if rank_by in _NAMED:
        return _NAMED[rank_by]
    terms = []
    for part in rank_by.split("*"):
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{part.strip()!r} is no factor; expected ecpm, click, or a product such as click * buy^0.5 * bid")
        exponent = float(found[2] or 1)
        if not 0 < exponent <= EXPONENT_MAX:
            raise ValueError(f"the exponent of {found[1]} is {found[2]}, expected above 0 and at most {EXPONENT_MAX:g}")
        terms.append((found[1], exponent))
    names = [name for name, _ in terms]
    if len(set(names)) < len(names):
        raise ValueError(f"{rank_by!r} names a factor twice; write an exponent instead")
    return tuple(terms)


def rank_scores(terms: Terms, tasks: Sequence[str], probabilities_CT: Any, bids_C: Any) -> Any:
    """Scores [..., C] from probabilities [..., C, T] and bids [..., C]: tensors or arrays of NumPy."""
    factors = [_power(bids_C if name == BID else probabilities_CT[..., tasks.index(name)], exponent) for name, exponent in terms]
    return math.prod(factors[1:], start=factors[0])


def _power(values: Any, exponent: float) -> Any:
    return values if exponent == 1 else values**exponent


def bid_exponent(rank_by: str) -> float:
    """The exponent of the bid in a formula; 0 if the bid is not in it."""
    return dict(decode_rank_by(rank_by)).get(BID, 0.0)
