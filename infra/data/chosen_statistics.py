"""Which statistics the items of a mapping with impressions get, and what they count.

Here: the choice from the log's length and the columns, and the log and the groups of one statistic. Not here: counting (shown_statistics.py), the definitions
(schemas/statistics.py).

Arrays: I items.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from infra.data.columns import decode_categories, distinct
from infra.data.inferred_schema import guess_kind
from infra.data.interactions import Interactions, kind_name
from infra.data.item_rows import ItemRows
from infra.data.mapping import DataMapping
from infra.data.mapping_source import FeatureSource, Source
from infra.data.shown_impressions import ShownRows
from infra.data.shown_statistics import LogStatistic, default_statistics
from infra.data.spool import BLOCK_ROWS
from infra.data.tables import LoadedTable
from infra.data.taken_together import together_vectors
from schemas.errors import Misconfigured, suggest
from schemas.features import Kind
from schemas.statistics import CLICK, DAY_MS, SHOWN, TAKEN, Log, Measure, Statistic

_GROUPS_MIN = 16  # values of a column whose rates are derived; an embedding learns those of fewer
_ITEMS_OF_VALUE_MIN = 4


class Sources(Protocol):
    """The part of mapped_sources.MappedSources that the choice reads."""

    mapping: DataMapping

    def table(self, source: Source) -> LoadedTable:
        """The rows of a section."""

    def reject(self, key: str, expectation: str) -> Misconfigured:
        """An error of the mapping file."""

    @property
    def shown(self) -> ShownRows | None:
        """The rows of the impressions' file."""

    @property
    def shown_log(self) -> Interactions:
        """The same as interactions, with outcomes as bits."""

    @property
    def history(self) -> Interactions:
        """What users did."""

    @property
    def now_ms(self) -> int:
        """From when on is measured."""

    @property
    def item_rows(self) -> ItemRows:
        """The items' file by item."""

    @property
    def item_features(self) -> Mapping[str, FeatureSource]:
        """The features of [items] with the chosen statistics."""

    @property
    def roles(self) -> Mapping[str, str | None]:
        """Names of the features that play a role."""


def choose_statistics(sources: Sources) -> Mapping[str, FeatureSource]:
    """Statistics for a mapping with impressions that names none from behaviours, by name; nothing for any other."""
    items, given = sources.mapping.items, sources.mapping.items.features
    if sources.shown is None or items.time is not None or not items.popularity or any(f.from_behaviours for f in given.values()):
        return {}
    kinds = sources.history.kinds if sources.mapping.behaviours is not None else ()
    log = sources.shown_log
    span = sources.now_ms - int(log.time_X[0]) if len(log) else 0
    groups = [name for name, values in _values_of_categories(sources).items() if values >= _GROUPS_MIN]
    chosen = default_statistics(sources.shown.outcomes, kinds, groups, span)
    return {name: source for name, source in chosen.items() if name not in given}


def names_alone(sources: Sources) -> frozenset[str]:
    """Categorical features with nearly as many values as items, where rates of their values are derived: the model would learn an embedding by heart, so it
    reads the rates alone. A feature whose `buckets` the mapping gives stays."""
    told = {f.by for f in sources.item_features.values() if f.by is not None}
    if not told:
        return frozenset()
    items, given = len(sources.item_rows.ids), sources.mapping.items.features
    many = {name for name, values in _values_of_categories(sources).items() if values * _ITEMS_OF_VALUE_MIN > items}
    return frozenset(name for name in many & told if given[name].buckets is None and name != sources.roles["sim_category"])


def together_before_shown(sources: Sources) -> np.ndarray | None:
    """`taken_together` as of the first impression, [I, E]: what items' signatures are made of where the mapping has no embeddings. An embedding has no time, so
    it must not tell what followed from what was shown. None without impressions or such vectors."""
    width = next((source.taken_together for source in sources.item_features.values() if source.taken_together is not None), None)
    if sources.shown is None or width is None or not len(sources.shown_log):
        return None
    return together_vectors(sources.history, len(sources.item_rows.ids), width, int(sources.shown_log.time_X[0]))


def _values_of_categories(sources: Sources) -> Mapping[str, int]:
    """How many values each categorical column of [items.features] has, in a sample."""
    sample = sources.table(sources.mapping.items).sample
    read = {name: f for name, f in sources.mapping.items.features.items() if not f.is_derived and f.columns}
    kinds = {name: f.kind or guess_kind(f, sample.arrays(f)) for name, f in read.items()}
    wanted = [name for name in read if kinds[name] is Kind.CATEGORICAL or name == sources.roles["sim_category"]]
    return {name: len(distinct(sample.arrays(read[name])[0])[0]) for name in wanted}


def statistic_of(sources: Sources, source: FeatureSource) -> Statistic | None:
    """What a derived feature counts, as a stream can keep it too; None: only an import makes it. Raises Misconfigured for a name that no log tells."""
    window = source.window_ms
    if source.of_shown:
        name, log = str(source.rate or source.count), _log_of(sources, source)
        measure = Measure.COUNT if source.rate is None else Measure.RATE
        return Statistic(log, measure, () if name in (SHOWN, TAKEN) else (name,), source.by, window)
    if sources.shown is not None:
        log, kinds = Log.IMPRESSIONS, [CLICK]
    else:
        log, kinds = Log.BEHAVIOURS, [kind_name(kind) for kind in sources.mapping.sampling.positive_kinds]
    if source.days_since is not None:
        return Statistic(log, Measure.FIRST if source.days_since == "first" else Measure.LAST, tuple(kinds))
    if source.count_days is not None and source.of == "behaviours":
        return Statistic(log, Measure.EXACT, tuple(kinds), window_ms=round(source.count_days * DAY_MS))
    return None


def open_statistic(sources: Sources, source: FeatureSource, statistic: Statistic) -> LogStatistic:
    """The statistic over the log of the mapping that tells it."""
    groups = None if statistic.by is None else _groups(sources, source)
    is_shown = statistic.log is Log.IMPRESSIONS
    return LogStatistic(statistic, sources.shown_log if is_shown else sources.history, len(sources.item_rows.ids), groups, bits=is_shown)


def _log_of(sources: Sources, source: FeatureSource) -> Log:
    """The log that tells a rate or a count."""
    name = source.rate or source.count
    of_shown = {CLICK, SHOWN, *sources.shown.outcomes} if sources.shown is not None else set()
    known = (of_shown | {TAKEN, *sources.history.kinds}) - ({SHOWN, TAKEN} if source.rate is not None else set())
    if name not in known:
        expected = f"names {name!r}, which no impression or behaviour tells; {suggest(str(name), known)}"
        raise sources.reject(f"[items] features.{source.name}", expected)
    return Log.IMPRESSIONS if name in of_shown else Log.BEHAVIOURS


def _groups(sources: Sources, source: FeatureSource) -> np.ndarray:
    """The group of each item, by the cells of the feature that `by` names: codes [I], -1 for an empty cell."""
    columns = sources.mapping.items.feature_columns()
    column = columns.get(str(source.by))
    if column is None or not column.columns:
        expected = f"by = {source.by!r} is no column of [items.features]; {suggest(str(source.by), list(columns))}"
        raise sources.reject(f"[items] features.{source.name}", expected)
    rows, codes = sources.item_rows, dict[int | str, int]()
    latest_I, found = rows.latest_rows(sources.now_ms), [np.zeros(0, np.int64)]
    for first in range(0, len(latest_I), BLOCK_ROWS):
        cells, places = distinct(rows.rows_at(latest_I[first : first + BLOCK_ROWS]).arrays(column)[0])
        values = decode_categories(cells, column.separator)  # as events carry them
        code_N = np.array([-1 if value is None else codes.setdefault(value, len(codes)) for value in values], np.int64)
        found.append(code_N[places])
    return np.concatenate(found)
