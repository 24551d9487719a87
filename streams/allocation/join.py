"""Joins outcomes of decisions with impressions by request id.

A decision is in allocation-outcomes, what became of it in impressions, at most `JOIN_MS` apart. Which of the two is earlier says nothing: an impression has the
publisher's time, often that of the request, and an outcome the server's. A value is the sum of the bids of clicked items. A request that
was ranked and has no impression in time has no outcome: neither "shown" nor "invalid". One that was not ranked (dropped, refused, failed) never has one.
A request may have several impressions, and one may be published twice: each item counts once.

Outcomes may be lost or come twice: servers drop them under load and count the loss, and a repeated request id counts once. So this needs no exactly-once
reading: `aif allocate fit` reads the retained records at each fit, and no agent keeps a state. Of more outcomes than fit into memory it takes those of some
users: all requests of a user, whatever decided them, because propensities hold for such a sample and the drop rule reads rows of a user's requests.

Here: records to columns. Not here: the fits (value_fit.py, cost_fit.py), reading the topics (program.py). Arrays: R requests, A actions.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.actions import Action, Kind
from schemas.allocation import NUMBER_MAX, Requests
from schemas.events import AllocationOutcome, ImpressionRecord
from streams.allocation.value_fit import Samples

JOIN_MS = 30 * 60_000
_RATIO_MAX = 1e3  # of the sums of two actions: the items of one request
_NUMBER_BITS = 64  # of the number of a user
_NOT_RANKED = ("dropped", "refused", "failed")


@dataclass(frozen=True)
class Joined:
    """Samples of requests, those of a user in the order of time, with the processor time of those that were ranked (nan elsewhere)."""

    samples: Samples
    took_R: np.ndarray


def join_outcomes(outcomes: Iterable[AllocationOutcome], impressions: Iterable[ImpressionRecord], actions: Sequence[Action]) -> Joined:
    """Decisions for one of `actions` with their values; the first decision of a request id counts."""
    shown = by_request(impressions)
    names = {action.name for action in actions}
    seen: set[str] = set()
    rows: list[tuple[AllocationOutcome, float]] = []
    for outcome in outcomes:
        if outcome.action not in names or outcome.request_id in seen:
            continue
        seen.add(outcome.request_id)
        items = None if outcome.state in _NOT_RANKED else items_shown(outcome, shown)
        rows.append((outcome, np.nan if items is None else sum(bid for bid in items.values() if bid is not None)))
    rows.sort(key=lambda row: row[0].time_ms)
    return Joined(_samples(rows, actions), np.array([np.nan if o.took_ms is None else o.took_ms for o, _ in rows]))


def is_plausible(outcome: AllocationOutcome) -> bool:
    """Whether the numbers of an outcome are such that a table can hold. Records are bytes of a topic, and one forged number would ruin a whole table."""
    counts = (outcome.candidates, outcome.behaviours, outcome.user_value, outcome.took_ms, outcome.cached_s)
    signed = (outcome.retrieval_top, *outcome.logits)
    sums = outcome.predicted or [0.0]
    return (
        all(x is None or abs(x) <= NUMBER_MAX for x in (*counts, *signed, *sums))
        and min(sums) >= 0
        and max(sums) <= _RATIO_MAX * max(sums[-1], 1e-12)
    )


def has_plausible_bids(impression: ImpressionRecord) -> bool:
    """Whether the value of an impression is a number that a table can hold."""
    return sum(item.bid for item in impression.items) <= NUMBER_MAX


def sample_users(outcomes: Iterable[AllocationOutcome], most: int) -> tuple[list[AllocationOutcome], float]:
    """(at most `most` outcomes: all of those users whose number is low enough, the share of users that this is)."""
    kept, below = list[AllocationOutcome](), 1 << _NUMBER_BITS
    for outcome in outcomes:
        if user_number(outcome.user_id) < below:
            kept.append(outcome)
        while len(kept) > most:
            below //= 2
            kept = [one for one in kept if user_number(one.user_id) < below]
    return kept, below / (1 << _NUMBER_BITS)


def keep_needed(impression: ImpressionRecord, answered: Collection[str]) -> ImpressionRecord:
    """The impression with its clicked items and those of a cached answer (`answered`), from whose clicks a calibration is fitted. Most items are neither."""
    needed = [item for item in impression.items if item.clicked or str(item.item_id) in answered]
    return impression.model_copy(update={"items": needed, "context": {}})


def by_request(impressions: Iterable[ImpressionRecord]) -> Mapping[str, Sequence[ImpressionRecord]]:
    """The impressions of each request id."""
    found: dict[str, list[ImpressionRecord]] = {}
    for one in impressions:
        found.setdefault(one.request_id, []).append(one)
    return found


def items_shown(outcome: AllocationOutcome, shown: Mapping[str, Sequence[ImpressionRecord]]) -> Mapping[str, float | None] | None:
    """The bid of each item that was shown in time, None if it was not clicked. None without any impression in time."""
    within = [one for one in shown.get(outcome.request_id, ()) if abs(one.time_ms - outcome.time_ms) <= JOIN_MS]
    if not within:
        return None
    bids: dict[str, float | None] = {}
    for item in (item for one in within for item in one.items):
        before = bids.get(str(item.item_id))
        bids[str(item.item_id)] = max(item.bid, before or 0.0) if item.clicked else before
    return bids


def _place(action: Action, candidates: int, actions: Sequence[Action]) -> int:
    """The place of an action. Those of a level that take all candidates of their request are one: the last of the level, as full work is."""
    if action.kind is Kind.RANK and action.candidates >= candidates:
        return max(place for place, one in enumerate(actions) if one.level == action.level)
    return actions.index(action)


def _samples(rows: Sequence[tuple[AllocationOutcome, float]], actions: Sequence[Action]) -> Samples:
    predicted_RA = np.full((len(rows), len(actions)), np.nan)
    ranks = [(place, action.name) for place, action in enumerate(actions) if action.kind is Kind.RANK]
    for row, (outcome, _) in enumerate(rows):
        sums = dict(zip(outcome.actions, outcome.predicted or (), strict=False))
        if all(name in sums for _, name in ranks):
            predicted_RA[row, [place for place, _ in ranks]] = [sums[name] for _, name in ranks]
    columns = ("candidates", "behaviours", "needs_user", "user_value", "retrieval_top", "cached_s")
    known = [[np.nan if (x := getattr(o, name)) is None else float(x) for o, _ in rows] for name in columns]
    return Samples(
        np.array([user_number(o.user_id) for o, _ in rows], np.uint64),
        Requests(*(np.array(column) for column in known)),
        np.array([_place(Action.parse(o.action), o.candidates, actions) for o, _ in rows], int),
        np.array([o.arm for o, _ in rows], dtype="U9"),
        np.array([o.propensity for o, _ in rows]),
        np.array([value for _, value in rows]),
        predicted_RA,
    )


def user_number(user_id: int | str) -> int:
    """A number that stands for a user in samples and splits: equal ids, equal numbers."""
    return int.from_bytes(hashlib.blake2b(str(user_id).encode(), digest_size=_NUMBER_BITS // 8).digest())
