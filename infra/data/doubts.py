"""Warnings about data that can be imported but looks wrong. Each one has the observation, its probable cause, and the remedy.

Here: the table of all checks, at the end; and the checks of the log: ids, times, order, rows that repeat, clicks among the behaviours. Not here: columns
read in another way than meant (odd_columns.py), columns that know the future (leakage.py, context_leakage.py), rejected rows (rejections.py).
"""

import re
from collections.abc import Callable, Iterator

import numpy as np

from infra.clock import DAY_MS
from infra.data.columns import UNIT_MS, decode_numbers
from infra.data.context_leakage import find_leaking_context
from infra.data.interactions import Interactions
from infra.data.leakage import find_leaking_columns
from infra.data.mapped_sources import MappedSources
from infra.data.mapping_source import Source
from infra.data.odd_columns import find_bags, find_negative_amounts, find_numbers_in_text
from infra.data.periods import spell_time
from infra.data.sampled_impressions import KnownUsers
from infra.data.tables import read_times
from schemas.ids import Id

_KNOWN_SHARE_LEAST = 0.5
_COMING_BACK_LEAST = 0.2  # of the users of the held-out part; in a file that is sorted by user next to none of them is in the part before
# Shares of the clicks: of users who take the same things every day a third is a day after itself; a minute after itself next to none is.
_OWN_CLICKS = (("a day", DAY_MS, 0.5), ("a minute", 60_000, 0.1))
_CLICKS_LEAST, _USERS_MOST = 50, 2_000
_FIRST_YEAR_MS, _LAST_YEAR_MS = 3_652 * DAY_MS, 47_482 * DAY_MS  # 1980 and 2100
_CLOCKS = ("time", "created")
_REPEATS_LEAST, _REPEATS_SHARE = 20, 0.01


def find_doubts(sources: MappedSources) -> list[str]:
    """The sentences, an empty list if nothing looks wrong. Raises what loading the sources and `require_common_ids` raise."""
    require_common_ids(sources)
    return [doubt for check in _CHECKS for doubt in check(sources)]


def require_common_ids(sources: MappedSources) -> None:
    """Raises Misconfigured if no behaviour is with an item of [items]: there is nothing to learn or to rank."""
    if not sources.known_share:
        log = sources.mapping.behaviours or sources.mapping.impressions
        assert log is not None
        known, other = sources.item_rows.ids[0], next(sources.history.blocks()).item_X[0]
        raise sources.reject(
            f"[{log.section}] item",
            f"has no id in common with [items] id: items are like {known!r}, the log has ids like {sources.history.item_ids[other]!r}; name the columns "
            "that hold the same ids, or take the part of a cell that is equal with { column = ..., pattern = ... }",
        )


def _find_no_features(sources: MappedSources) -> Iterator[str]:
    """Items of which a model reads nothing but marks and counts, so that none of its inputs shows what two items have in common."""
    if sources.mapping.embeddings is not None or sources.has_marks_beside_features or not len(sources.positives):
        return
    yield (
        "[items] has no features and no embedding, so a model sees of an item only how often it was taken before. If the files have no features, "
        "derive some from behaviours. Write [items.features] taken = { count_days = 28, realtime = true } and together = { taken_together = 32 }"
    )


def _find_other_ids(sources: MappedSources) -> Iterator[str]:
    if sources.known_share >= _KNOWN_SHARE_LEAST:
        return
    known = sources.item_rows.ids
    yield (
        f"only {sources.known_share:.0%} of what users did was with an item of [items], like {known[0]!r}, others with none, like "
        f"{sources.history.item_ids[len(known)]!r}; do both files spell ids the same way, and in these columns"
        f"{', and shall its `where` leave so much out' if sources.mapping.items.where else ''}?"
    )


def _find_other_clocks(sources: MappedSources) -> Iterator[str]:
    """Times whose years are far off: numbers in another unit, dates like 20240301, or numbers that do not count from 1970."""
    mapping = sources.mapping
    for source, role in (
        (mapping.impressions or mapping.behaviours, "time"),
        *((s, r) for s in (mapping.item_history, mapping.items, mapping.users) for r in _CLOCKS),
    ):
        if source is None or role not in source.roles or source.roles[role].value is not None:
            continue
        rows = sources.table(source).sample
        times, numbers = read_times(rows, role), decode_numbers(rows.array(role))
        known = (times >= 0) & np.isfinite(numbers)
        if known.any() and not _FIRST_YEAR_MS <= np.median(times[known]) < _LAST_YEAR_MS:
            yield _describe_clock(source, role, times[known], float(np.median(numbers[known])))


def _describe_clock(source: Source, role: str, times: np.ndarray, usual: float) -> str:
    """The years of a column, and the `time_unit` or `time_format` that corrects them."""
    column = source.roles[role]
    name, read_in = column.columns[0], f'time_unit = "{column.time_unit}"' if column.time_unit else "seconds to nanoseconds by their size"
    fits = [unit for unit, unit_ms in UNIT_MS.items() if _FIRST_YEAR_MS <= usual * unit_ms < _LAST_YEAR_MS]
    if re.fullmatch(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])", f"{usual:.0f}"):
        remedy = f'they look like dates: write {role} = {{ column = "{name}", time_format = "%Y%m%d" }}'
    elif fits and fits != [column.time_unit]:
        remedy = f'write {role} = {{ column = "{name}", time_unit = "{fits[0]}" }}'
    elif column.time_unit:
        remedy = "if the file counts from a day of its own, all is right but the dates"
    else:
        remedy = (
            f'name their unit: {role} = {{ column = "{name}", time_unit = "day" }} (or "hour", "min"), from 1970 or from a day of its own'
        )
    first, last = spell_time(int(times.min())), spell_time(int(times.max()))
    return f"the times of [{source.section}] {role} are from {first} to {last}: its numbers were read in {read_in}; {remedy}. Windows in days go by it"


def _find_far_times(sources: MappedSources) -> Iterator[str]:
    """A few times far from all others, such as 2037 in a log of a week."""
    log, source = sources.positives, sources.mapping.impressions or sources.mapping.behaviours
    if source is None or "time" not in source.roles or not len(log):
        return
    (low, high), first, last = sources.usual_times, int(log.time_X[0]), int(log.time_X[-1])
    if (low, high) != (first, last):
        yield (
            f"nearly all times of [{source.section}] are from {spell_time(low)} to {spell_time(high)}, but the first is {spell_time(first)} and the last "
            f"{spell_time(last)}: windows and the evaluation do not go by these, and rows that are too late become no events; if the times are wrong, "
            "`where` leaves their rows out"
        )


def _find_repeated_rows(sources: MappedSources) -> Iterator[str]:
    """Rows of the log that are in it twice: in [behaviours] both count, and in a request of [impressions] an item counts once."""
    behaviours, history = sources.mapping.behaviours, sources.history
    if behaviours is not None and behaviours.time is not None and not behaviours.distinct:
        repeated = sum(_count_repeats(block) for block in history.blocks())
        if repeated >= max(_REPEATS_LEAST, _REPEATS_SHARE * len(history)):
            yield (
                f"{repeated:,} of {len(history):,} rows of [behaviours] repeat user, item, time and kind of another, and each counts as a behaviour; "
                "if they are copies, write distinct = true in [behaviours]"
            )
    if sources.shown is not None:
        rows, repeated, other = sources.shown_requests.count_repeats()
        if other >= max(_REPEATS_LEAST, _REPEATS_SHARE * rows):
            yield (
                f"{repeated:,} of {rows:,} rows of [impressions] repeat user, item and request of another, {other:,} with another outcome. Such an item counts "
                "once, as clicked if any of its rows is. That is right if the log writes one row for the impression and one for the click. If not, "
                "name a column that distinguishes the requests (request = ...), or leave the wrong rows out with `where`"
            )
        elif repeated >= max(_REPEATS_LEAST, _REPEATS_SHARE * rows):
            yield f"{repeated:,} of {rows:,} rows of [impressions] repeat user, item and request of another; each counts once, so this changes no label"


def _count_repeats(block: Interactions) -> int:
    """The number of rows that are equal to another. Rows of one time stand together, so hardly any pair crosses the end of a block. Times that are whole
    days do not count, because a user may take an item twice a day."""
    rows = np.stack([block.time_X, block.user_X, block.item_X, block.kind_X])[:, block.time_X % DAY_MS != 0]
    rows = rows[:, np.lexsort(rows[::-1])]
    return int((np.diff(rows, axis=1) == 0).all(axis=0).sum())


def _find_no_order(sources: MappedSources) -> Iterator[str]:
    """Row numbers that stand for times, in a file that is sorted by user."""
    source = sources.mapping.impressions or sources.mapping.behaviours
    if source is None or "time" in source.roles or sources.period is None or sources.end_ms <= sources.now_ms:
        return
    log, now, end = sources.positives, sources.now_ms, sources.end_ms
    takers = np.zeros(len(log.user_ids), bool)
    for block in log.blocks(log.before(now), log.before(end)):
        takers[block.user_X] = True
    share = len(KnownUsers(log, sources.history).takers(now, end)) / max(1, takers.sum())
    if share >= _COMING_BACK_LEAST:
        return
    yield (
        f"[{source.section}] has no time, so its rows count as ordered by time. Only {share:.0%} of the users of the last part are in the "
        "part before, which leaves little to learn and to measure. If the file is sorted by user, name a time column or shuffle its rows"
    )


def _find_own_clicks(sources: MappedSources) -> Iterator[str]:
    """Behaviours that repeat the clicks of the impressions with an earlier time, so that the history of a request contains its answer."""
    if sources.mapping.impressions is None or sources.mapping.behaviours is None or not len(sources.positives):
        return
    asked = set(sources.positives.user_ids[:_USERS_MOST])
    clicks, taken = (_times_of(log, asked) for log in (sources.positives, sources.history))
    before_X = np.array(
        [
            min((time_ms - own_ms for own_ms in taken.get(pair, ()) if own_ms < time_ms), default=np.inf)
            for pair, times in clicks.items()
            for time_ms in times
        ]
    )
    if len(before_X) < _CLICKS_LEAST:
        return
    for span, span_ms, least in _OWN_CLICKS:
        if (share := np.mean(before_X <= span_ms)) >= least:
            yield (
                f"{share:.0%} of the clicks of [impressions] are in [behaviours], too, up to {span} before the click: they are in the history of their "
                "own request and reveal its click; leave [behaviours] out, or give both the same clock"
            )
            return


def _times_of(log: Interactions, users: set[Id]) -> dict[tuple[Id, int], list[int]]:
    """When these users took which items: times in ms by (user, place of the item)."""
    wanted_U = np.array([user in users for user in log.user_ids], bool)
    found: dict[tuple[Id, int], list[int]] = {}
    for block in log.blocks():
        chosen = block.take(wanted_U[block.user_X])
        for user, item, time_ms in zip(chosen.user_X.tolist(), chosen.item_X.tolist(), chosen.time_X.tolist(), strict=True):
            found.setdefault((log.user_ids[user], item), []).append(time_ms)
    return found


_CHECKS: tuple[Callable[[MappedSources], Iterator[str]], ...] = (
    _find_no_features,
    _find_other_ids,
    _find_other_clocks,
    _find_far_times,
    _find_no_order,
    _find_repeated_rows,
    _find_own_clicks,
    find_negative_amounts,
    find_bags,
    find_numbers_in_text,
    find_leaking_context,
    find_leaking_columns,
)
