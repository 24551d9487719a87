"""What can be imported but looks wrong. Each doubt is one sentence: what was seen, what it probably is, and what to write instead.

Here: the sentences, and what is found by counting: items without features, ids that differ, times of another unit, a file without order, clicks among the
behaviours, requests without a contrast, numbers that read as categories. Not here: whether a column knows the future
(leakage.py, context_leakage.py), rows that are rejected (rejections.py).
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.clock import DAY_MS
from infra.data.columns import decode_numbers, decode_parts, is_text, plain
from infra.data.context_leakage import find_leaking_context
from infra.data.interactions import Interactions
from infra.data.leakage import SUSPICIOUS, find_known_future, find_made_of_the_log
from infra.data.mapped_sources import MappedSources
from infra.data.mapping_source import Source
from infra.data.periods import spell_time
from infra.data.sampled_impressions import KnownUsers
from infra.data.tables import read_times
from schemas.features import Kind
from schemas.ids import Id

_KNOWN_SHARE_LEAST = 0.5
_COMING_BACK_LEAST = 0.2  # of the users of the held-out part; in a file that is sorted by user next to none of them is in the part before
_UNDATED = (
    "a column without a time counts as always known: if it sums up the whole period, leave it out, or take count_days or [item_history]"
)
_WEAK = "a price can do the same; but if the column sums up the whole period, leave it out, or use count_days or [item_history]"
_DATED = "a row counts as known from its time on; if it sums up a later period, set known_after_days"
# Shares of the clicks: of users who take the same things every day a third is a day after itself; a minute after itself next to none is.
_OWN_CLICKS = (("a day", DAY_MS, 0.5), ("a minute", 60_000, 0.1))
_CLICKS_LEAST, _USERS_MOST = 50, 2_000
_FIRST_YEAR_MS = 3_652 * DAY_MS  # 1980: no log of a shop is older
_CLOCKS = ("time", "created")
_NUMBERS_SHARE_LEAST = 0.8  # of the different cells of a column
_NUMBERS_LEAST, _NUMBERS_MOST = 20, 10_000
_AMOUNT = r"-?\d[\d.,]*"
_SIGNED = rf"^\s*(\p{{Sc}}\s*{_AMOUNT}|{_AMOUNT}\s*(\p{{Sc}}|%|[A-Z]{{3}}))\s*$"  # "$12.99", "12,99 EUR", "5%"


def find_doubts(sources: MappedSources) -> list[str]:
    """The sentences, an empty list if nothing looks wrong. Raises what loading the sources raises."""
    found: list[str | None] = [
        _find_no_features(sources),
        _find_other_ids(sources),
        _find_far_times(sources),
        _find_no_order(sources),
        _find_own_clicks(sources),
    ]
    made = find_made_of_the_log(sources)
    leaking = [_describe_made(place, *gammas) for place, gammas in made.items()]
    leaking += [
        _describe_known_future(place, correlation) for place, correlation in find_known_future(sources).items() if place not in made
    ]
    found += [*_find_other_clocks(sources), *_find_numbers_in_text(sources)]
    return [*(doubt for doubt in found if doubt is not None), *find_leaking_context(sources), *leaking]


def _describe_made(place: str, whole: float, before: float) -> str:
    """What two gammas say of a column: that it is made of the whole log."""
    return (
        f"{place} orders items or categories by their counts in the whole log (gamma {whole:.3f}), more than by those before the evaluation "
        f"time ({before:.3f}): it contains the answers; {_UNDATED}"
    )


def _describe_known_future(place: str, correlation: float) -> str:
    """What a correlation says of a column: that it tells the future, or that it may."""
    plain = abs(correlation) >= SUSPICIOUS
    why = _WEAK if not plain else _DATED if place.startswith("[item_history]") else _UNDATED
    return (
        f"{place} goes with what happens after the evaluation time {'' if plain else 'somewhat '}more than what came before explains (partial rank "
        f"correlation {correlation:+.2f}); {why}"
    )


def _find_no_features(sources: MappedSources) -> str | None:
    """Items of which a model sees nothing but marks and counts: what two of them have in common is in none of its inputs."""
    if sources.mapping.embeddings is not None or sources.has_marks_beside_features or not len(sources.positives):
        return None
    return (
        "[items] has no features and no embedding, so a model sees of an item only how often it was taken before; where the files tell "
        "nothing of them, take what users did: [items.features] taken = { count_days = 28, realtime = true } and together = { taken_together = 32 }"
    )


def _find_other_ids(sources: MappedSources) -> str | None:
    if sources.known_share >= _KNOWN_SHARE_LEAST:
        return None
    known = sources.item_rows.ids
    return (
        f"only {sources.known_share:.0%} of what users did was with an item of [items], like {known[0]!r}, others with none, like "
        f"{sources.history.item_ids[len(known)]!r}; do both files spell ids the same way, and in these columns"
        f"{', and shall its `where` leave so much out' if sources.mapping.items.where else ''}?"
    )


def _find_other_clocks(sources: MappedSources) -> Iterator[str]:
    """Numbers of days or hours that were read as seconds, dates like 20240301, or numbers that do not count from 1970: then all times lie in the seventies."""
    mapping = sources.mapping
    for source, role in (
        (mapping.impressions or mapping.behaviours, "time"),
        *((s, r) for s in (mapping.item_history, mapping.items, mapping.users) for r in _CLOCKS),
    ):
        if source is None or role not in source.roles or source.roles[role].value is not None:
            continue
        rows = sources.table(source).sample
        times = read_times(rows, role)
        times = times[(times >= 0) & np.isfinite(decode_numbers(rows.array(role)))]
        if len(times) and times.max() < _FIRST_YEAR_MS:
            yield _describe_clock(source, role, int(times.min()), int(times.max()))


def _describe_clock(source: Source, role: str, first_ms: int, last_ms: int) -> str:
    """That the times of a column lie in the seventies, and what may be meant."""
    unit = source.roles[role].time_unit
    how = (
        f'in the time_unit that is given, "{unit}"; if the file counts from a day of its own, all is right but the dates'
        if unit
        else f'in seconds unless {role} = {{ column = ..., time_unit = "day" }} (or hour, min, ms) says another; 20240301 is a date by time_format = "%Y%m%d"'
    )
    return (
        f"the times of [{source.section}] {role} are from {spell_time(first_ms)} to {spell_time(last_ms)}: "
        f"numbers count from 1970, {how}; days of windows are of this clock"
    )


def _find_far_times(sources: MappedSources) -> str | None:
    """A few times far from all others, such as 2037 in a log of a week: what is held out, how far windows look and when features are told go by them."""
    log, source = sources.positives, sources.mapping.impressions or sources.mapping.behaviours
    if source is None or "time" not in source.roles or len(log) < _CLICKS_LEAST:
        return None
    far = max(1, len(log) // 1_000)
    first, low, high, last = (int(log.time_X[at]) for at in (0, far, len(log) - 1 - far, len(log) - 1))
    if 2 * (high - low) >= last - first:
        return None
    return (
        f"nearly all times of [{source.section}] are from {spell_time(low)} to {spell_time(high)}, but the first is {spell_time(first)} and the last "
        f"{spell_time(last)}, and windows and the evaluation go by these; if they are wrong, `where` leaves their rows out"
    )


def _find_no_order(sources: MappedSources) -> str | None:
    """Row numbers that stand for times, in a file that is sorted by user."""
    source = sources.mapping.impressions or sources.mapping.behaviours
    if source is None or "time" in source.roles or sources.period is None or sources.end_ms <= sources.now_ms:
        return None
    log, now, end = sources.positives, sources.now_ms, sources.end_ms
    takers = np.zeros(len(log.user_ids), bool)
    for block in log.blocks(log.before(now), log.before(end)):
        takers[block.user_X] = True
    share = len(KnownUsers(log, sources.history).takers(now, end)) / max(1, takers.sum())
    if share >= _COMING_BACK_LEAST:
        return None
    return (
        f"[{source.section}] has no time, so its rows count as ordered by time. Only {share:.0%} of the users of the last part are in the "
        "part before, which leaves little to learn and to measure. If the file is sorted by user, name a time column or shuffle its rows"
    )


def _find_own_clicks(sources: MappedSources) -> str | None:
    """Behaviours that are the clicks of the impressions, with an earlier time: then the history of a request holds its answer."""
    if sources.mapping.impressions is None or sources.mapping.behaviours is None or not len(sources.positives):
        return None
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
        return None
    for span, span_ms, least in _OWN_CLICKS:
        if (share := np.mean(before_X <= span_ms)) >= least:
            return (
                f"{share:.0%} of the clicks of [impressions] are in [behaviours], too, up to {span} before the click: they are in the history of their "
                "own request and reveal its click; leave [behaviours] out, or give both the same clock"
            )
    return None


def _times_of(log: Interactions, users: set[Id]) -> dict[tuple[Id, int], list[int]]:
    """When these users took which items: times in ms by (user, place of the item)."""
    wanted_U = np.array([user in users for user in log.user_ids], bool)
    found: dict[tuple[Id, int], list[int]] = {}
    for block in log.blocks():
        chosen = block.take(wanted_U[block.user_X])
        for user, item, time_ms in zip(chosen.user_X.tolist(), chosen.item_X.tolist(), chosen.time_X.tolist(), strict=True):
            found.setdefault((log.user_ids[user], item), []).append(time_ms)
    return found


def _find_numbers_in_text(sources: MappedSources) -> Iterator[str]:
    """Columns of numbers that read as categories, because a kind that the mapping leaves open is numeric only where every cell is a number
    (inferred_schema.py): one "-" among prices makes categories of all of them, and so does a decimal comma."""
    mapping = sources.mapping
    categories = {feature.name for feature in sources.features if feature.kind is Kind.CATEGORICAL} - {sources.roles["sim_category"]}
    for source in (mapping.items, mapping.item_history, mapping.users, mapping.behaviours, mapping.impressions):
        if source is None:
            continue
        for feature in source.features.values():
            if feature.name in categories and feature.kind is None and feature.columns:
                yield from _describe_numbers(sources, source, feature.name)


def _describe_numbers(sources: MappedSources, source: Source, name: str) -> Iterator[str]:
    column = source.feature_columns()[name]
    cells = plain(sources.table(source).sample.arrays(column)[0])
    if not is_text(cells):
        return
    cells = pc.drop_null(cells.unique())[:_NUMBERS_MOST]
    if len(cells) < _NUMBERS_LEAST:
        return
    place = f"[{source.section}] features.{name} is read as categories"
    if np.isfinite(decode_numbers(cells)).mean() >= _NUMBERS_SHARE_LEAST:
        odd = cells.filter(pa.array(np.isnan(decode_numbers(cells))))[0].as_py()
        yield f'{place}, because not every cell is a number, like {odd[:60]!r}; kind = "numeric" leaves these out, kind = "categorical" keeps it so'
        return
    signed = pc.match_substring_regex(cells, _SIGNED).to_numpy(zero_copy_only=False).mean() >= _NUMBERS_SHARE_LEAST
    numbers = decode_parts(cells, _AMOUNT) if signed else cells
    shares = {mark: _share_of_numbers(numbers, mark) for mark in (".", ",")}  # where both fit, as in "1,250", the digits are grouped
    mark = max(shares, key=lambda mark: shares[mark])
    if shares[mark] >= _NUMBERS_SHARE_LEAST:
        part = f"pattern = '{_AMOUNT}', " if signed else ""
        yield f"""{place}, but its cells are numbers like {cells[0].as_py()[:60]!r}; write {{ column = "{column.columns[0]}", {part}decimal = "{mark}" }}"""


def _share_of_numbers(cells: pa.Array, mark: str) -> float:
    """How many cells are numbers with `mark` before their fraction, and groups of three digits before it."""
    group = "," if mark == "." else "."
    found = pc.match_substring_regex(cells, rf"^\s*[-+]?(\d+|\d{{1,3}}([{group}'’ \x{{a0}}\x{{202f}}]\d{{3}})+)([{mark}]\d+)?\s*$")
    return float(np.mean(found.to_numpy(zero_copy_only=False)))
