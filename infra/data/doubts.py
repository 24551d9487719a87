"""Warnings about data that can be imported but looks wrong. Each one has the observation, its probable cause, and the remedy.

Here: the table of all checks, at the end. Checks of the log: ids, times, order, rows that repeat, clicks among the behaviours. Checks of columns that are
read in another way than meant: numbers as categories, several values as one, cancellations as clicks.
Not here: columns that know the future (leakage.py), rejected rows (tables.py).
"""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.clock import DAY_MS
from infra.data.columns import UNIT_MS, decode_lists, decode_numbers, decode_parts, is_list, is_text, list_lengths, plain
from infra.data.files import common_schema, find_files, read_chunks, read_column_names
from infra.data.interactions import Interactions
from infra.data.leakage import find_leaking_columns, find_leaking_context
from infra.data.mapped_sources import MappedSources
from infra.data.mapping_source import FeatureSource, Source
from infra.data.periods import spell_time
from infra.data.sampled_impressions import KnownUsers
from infra.data.tables import Rejections, read_times
from schemas.ids import Id
from schemas.kinds import CATEGORICAL

_KNOWN_SHARE_LEAST = 0.5
_COMING_BACK_LEAST = 0.2  # of the users of the held-out part; in a file that is sorted by user next to none of them is in the part before
# Shares of the clicks: of users who take the same things every day a third is a day after itself; a minute after itself next to none is.
_OWN_CLICKS = (("a day", DAY_MS, 0.5), ("a minute", 60_000, 0.1))
_CLICKS_LEAST, _USERS_MOST = 50, 2_000
_FIRST_YEAR_MS, _LAST_YEAR_MS = 3_652 * DAY_MS, 47_482 * DAY_MS  # 1980 and 2100
_CLOCKS = ("time", "created")
_REPEATS_LEAST, _REPEATS_SHARE = 20, 0.01
_NUMBERS_SHARE_LEAST = 0.8  # of the different cells of a column
_CELLS_LEAST, _CELLS_MOST = 20, 10_000
_SEVERAL_SHARE = 0.2  # of the cells
_VALUE_CHARS_MAX = 40  # a longer one is a sentence
_AMOUNT = r"-?\d[\d.,]*"
_SIGNED = rf"^\s*(\p{{Sc}}\s*{_AMOUNT}|{_AMOUNT}\s*(\p{{Sc}}|%|[A-Z]{{3}}))\s*$"  # "$12.99", "12,99 EUR", "5%"
_AMOUNT_NAMES = re.compile(r"(?i)(^|[^a-z])(qty|quantity|amount|units|pieces|volume)")


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
    takers = np.count_nonzero(log.counts(len(log.user_ids), now, end, "user_X"))
    share = len(KnownUsers(log, sources.history).takers(now, end)) / max(1, int(takers))
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


# --- columns that are read in another way than meant ---


def _find_empty_columns(sources: MappedSources) -> Iterator[str]:
    """Features without a value in any row: a column that the file does not fill, or the wrong one."""
    for source in sources.mapping.sources:
        for feature in source.features.values():
            arrays = sources.table(source).sample.arrays(feature) if feature.columns else []
            if arrays and len(arrays[0]) and all(array.null_count == len(array) for array in arrays):
                parts = (
                    " or has nothing that its pattern, where or decimal asks for"
                    if feature.pattern or feature.where or feature.decimal
                    else ""
                )
                yield (
                    f"[{source.section}] features.{feature.name} has no value in any row: each cell of {feature.columns[0]!r} is empty{parts}, so a model "
                    "learns nothing from it; correct the column, or leave the feature out"
                )


def _find_negative_amounts(sources: MappedSources) -> Iterator[str]:
    """Cancellations and returns that count as clicks: a column of the log that is called an amount, mapped or not, with numbers below 0."""
    source = sources.mapping.behaviours or sources.mapping.impressions
    if source is None or source.explode is not None:
        return
    for name, array in _amounts(sources, source):
        numbers = decode_numbers(array)
        share = float(np.mean(numbers < 0))
        if 0 < share < 0.5:
            quoted = name if re.fullmatch(r"\w+", name) else f'"{name}"'
            yield (
                f"{share:.1%} of the cells of {name!r} are negative in the file of [{source.section}]: these look like cancellations or returns, "
                f"and each counts like any other row; write where = '{quoted} > 0' in [{source.section}]"
            )


def _amounts(sources: MappedSources, source: Source) -> Iterator[tuple[str, pa.Array]]:
    """Columns of the first file that are called an amount, named by the mapping or not: of its first rows that count."""
    path = find_files(sources.directory, source)[0]
    for name in read_column_names(path, source):
        if _AMOUNT_NAMES.search(name):
            with_it = source.model_copy(update={"features": {name: FeatureSource(columns=(name,))}})
            batch, _ = next(read_chunks(path, with_it, common_schema([path], with_it), Rejections()), (None, None))
            if batch is not None and batch.num_rows:
                yield name, batch.column(name)


def _read_as_categories(sources: MappedSources) -> Iterator[tuple[Source, FeatureSource, pa.Array]]:
    """(section, feature, its cells in a sample) of the columns that are read as categories because of their cells."""
    categories = {feature.name for feature in sources.features if feature.kind is CATEGORICAL}
    for source in sources.mapping.sources:
        for feature in source.features.values():
            if feature.name in categories and feature.columns and feature.kind is None:
                yield source, feature, plain(sources.table(source).sample.arrays(feature)[0])


def _find_bags(sources: MappedSources) -> Iterator[str]:
    """Cells with several values that a categorical feature reads as one, or of which it reads the first."""
    for source, feature, cells in _read_as_categories(sources):
        yield from _describe_bag(source, feature, cells, feature.name == sources.roles["sim_category"])


def _describe_bag(source: Source, column: FeatureSource, cells: pa.Array, is_role: bool) -> Iterator[str]:
    """`is_role`: histories are cut by this feature, so it has to be one category."""
    cells = pc.drop_null(cells)[:_CELLS_MOST]
    if len(cells) < _CELLS_LEAST or column.separator:
        return  # a separator says that the first value is meant
    end = ""
    if is_list(cells.type) or (is_text(cells) and cells[0].as_py().lstrip().startswith("[")):
        share, values = float(np.mean(list_lengths(decode_lists(cells, None)) > 1)), set[str]()
    elif is_text(cells):
        end = max("|;,", key=lambda mark: sum(mark in text for text in cells.to_pylist()))
        parts = [text.split(end) for text in cells.to_pylist()]
        share, values = float(np.mean([len(found) > 1 for found in parts])), {value.strip() for found in parts for value in found}
        if len(values) >= len(set(cells.to_pylist())) or max(map(len, values)) > _VALUE_CHARS_MAX:
            return  # a sentence, or a name with a comma
    else:
        return
    if share >= _SEVERAL_SHARE:
        read = "one category for each whole cell" if end else "its first value"
        apart = f', separator = "{end}"' if end else ""
        first = f', or separator = "{end}" for the first one' if end else ""
        all_of_them = f'{{ column = "{column.columns[0]}", kind = "bag"{apart} }}'
        remedy = f"write {all_of_them} for all of them{first}"
        if is_role:
            one = f'separator = "{end}" to have the first one as the category, and ' if end else ""
            remedy = f"write {one}a further feature {all_of_them} for all of them"
        yield (
            f"[{source.section}] features.{column.name} has several values in {share:.0%} of its cells, like {str(cells[0].as_py())[:60]!r}, "
            f'and is read as {read}; {remedy}; kind = "categorical" keeps it so'
        )


def _find_numbers_in_text(sources: MappedSources) -> Iterator[str]:
    """Columns of numbers that are read as categories. A kind that the mapping leaves open is numeric only if every cell is a number (schemas/kinds.py), so
    one "-" among prices makes categories of all of them. So does a decimal comma."""
    for source, feature, cells in _read_as_categories(sources):
        if is_text(cells) and feature.name != sources.roles["sim_category"]:
            yield from _describe_numbers(source, feature, pc.drop_null(cells.unique())[:_CELLS_MOST])


def _describe_numbers(source: Source, column: FeatureSource, cells: pa.Array) -> Iterator[str]:
    """`cells`: the different ones."""
    if len(cells) < _CELLS_LEAST:
        return
    place = f"[{source.section}] features.{column.name} is read as categories"
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


_CHECKS: tuple[Callable[[MappedSources], Iterator[str]], ...] = (
    _find_no_features,
    _find_other_ids,
    _find_other_clocks,
    _find_far_times,
    _find_no_order,
    _find_repeated_rows,
    _find_own_clicks,
    _find_negative_amounts,
    _find_empty_columns,
    _find_bags,
    _find_numbers_in_text,
    find_leaking_context,
    find_leaking_columns,
)
