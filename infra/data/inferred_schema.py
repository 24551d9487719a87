"""Infers from the data what a mapping leaves open: which statistics items have, and of each feature the kind and the parameters.

Here: pure functions of the loaded columns and the log's length, so the same files and the same mapping give the same schema and fingerprint. Not here:
cells that suit a kind (schemas/kinds.py), decoding (columns.py, tables.py), counting (log_statistics.py), statistics themselves (schemas/statistics.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from infra.clock import DAY_MS
from infra.data.columns import distinct, is_list
from infra.data.mapping import DataMapping, Items, reject
from infra.data.mapping_source import FeatureSource
from infra.data.tables import ColumnCells, LoadedRows
from schemas.errors import Misconfigured, suggest
from schemas.features import Feature, Scope
from schemas.kinds import NUMERIC, Kind, Layout, Transform, guess_kind, infer_scale
from schemas.statistics import CLICK, SHOWN, TAKEN, Log, Measure, Statistic, fit_windows

_GROUPS_MIN = 16  # values of a column whose rates are derived; an embedding learns those of fewer
_ITEMS_OF_VALUE_MIN = 4
_GROUPS_MAX, _KINDS_MAX, _OUTCOMES_MAX = 3, 3, 3
_NAME_MAX = 60
_SPANS_OF_SHOWN = 50.0  # impressions are many, so a short window of them changes most items each time
_TOGETHER = FeatureSource(name="taken_together", taken_together=32)
_AGES = tuple(FeatureSource(name=f"{which}_taken", days_since=which, realtime=True) for which in ("first", "last"))


def find_roles(mapping: DataMapping) -> Mapping[str, str | None]:
    """Names of the features that play a role, as the mapping says, else by their usual names."""
    names = {name for s in (mapping.items, mapping.item_history) if s is not None for name in s.features}
    clusters = [f.name for f in mapping.items.features.values() if f.clusters is not None]
    usual = {
        "sim_category": "category" if "category" in names else next(iter(clusters), None),
        "bid": "bid" if "bid" in names else None,
    }
    roles = {role: getattr(mapping.roles, role) or default for role, default in usual.items()}
    for role, name in roles.items():
        if name is not None and name not in names:
            raise reject(mapping.path, f"[schema] {role}", f"names {name!r}, which is no feature of [items]; {suggest(str(name), names)}")
    return roles


def infer_feature(source: FeatureSource, scope: Scope, rows: LoadedRows, role: Kind | None = None) -> Feature:
    """The feature of a source that is read from `rows`; `role` = the kind that a role of the schema asks for."""
    cells = rows.cells(source, source.name)
    _require_plain(source, cells)
    kind = source.kind or role or guess_kind(cells)
    if role is not None and kind is not role:
        raise Misconfigured("bad_mapping", f"feature {source.name!r} is {kind}, but the role that [schema] gives it needs kind {role}")
    try:
        return Feature(source.name, scope, kind, **{**kind.infer(cells, source.details), **source.details})
    except ValueError as error:
        column = f"column {source.columns[0]!r}" if source.columns else "its column"
        expected = f"no cell of {column} is {error}; the first is {cells.first()!r}"
        raise Misconfigured("bad_mapping", f"feature {source.name!r} is {kind}, but {expected}") from error


def _require_plain(source: FeatureSource, cells: ColumnCells) -> None:
    """Raises if a column holds structs, maps or lists of lists: their text would be taken for a category."""
    for array in cells.arrays:
        inner = array.type.value_type if is_list(array.type) else array.type
        if pa.types.is_nested(inner):
            raise Misconfigured(
                "bad_mapping",
                f"feature {source.name!r}: column {source.columns[0]!r} holds {str(array.type)[:100]}, expected values or lists of values; "
                f"name a field of a struct, like '{source.columns[0]}.NAME'; write values in maps or lists of lists as separate columns",
            )


def infer_derived(source: FeatureSource, scope: Scope, statistic: Statistic | None, numbers: np.ndarray) -> Feature:
    """The feature that is derived from the log, with these numbers as of the evaluation time."""
    numbers, fixed = numbers.astype(np.float64), {"statistic": statistic, **source.details}
    if source.rate is not None:
        return Feature(source.name, scope, NUMERIC, **{**infer_rate(numbers), **fixed})
    details = infer_scale(numbers, {}) if source.mean_of else infer_scale(numbers[numbers >= 0], {"transform": Transform.LOG1P})
    details |= {"default": 0.0} if source.count_days is not None or source.count is not None else {}
    return Feature(source.name, scope, NUMERIC, **{**details, **fixed})


def infer_rate(values: np.ndarray) -> dict[str, Any]:
    """How a model reads a rate: around 0, in units of its deviation."""
    deviation = float(values.std()) if len(values) else 0.0
    return {"transform": Transform.NONE, "mean": 0.0, "scale": round(deviation, 6) if deviation > 1e-3 else 1.0, "default": 0.0}


def infer_bid(numbers: np.ndarray, details: Mapping[str, Any]) -> dict[str, Any]:
    """Details of the bid: read raw, with the median of the positive values as default."""
    positive = numbers[np.isfinite(numbers) & (numbers > 0)]
    return {"default": round(float(np.median(positive)), 6) or 1e-6 if len(positive) else 1.0, **details}


# --- statistics of items ------------------------------------------------------------------------------------------------


def count_values(items: Items, sample: LoadedRows, sim_category: str | None) -> Mapping[str, int]:
    """The number of values of each categorical column of [items.features], in a sample."""
    read = {name: f for name, f in items.features.items() if not f.is_derived and f.columns}
    kinds = {name: f.kind or guess_kind(sample.cells(f)) for name, f in read.items()}
    wanted = [name for name in read if kinds[name].layout is Layout.BUCKET or name == sim_category]
    return {name: len(distinct(sample.arrays(read[name])[0])[0]) for name in wanted}


def names_alone(features: Mapping[str, FeatureSource], values: Mapping[str, int], items: int, sim_category: str | None) -> frozenset[str]:
    """Categorical features with nearly as many values as items, if rates of their values are derived. The model would learn their embedding by heart, so it
    reads the rates alone. A feature whose `buckets` the mapping gives stays."""
    many = {name for name, count in values.items() if count * _ITEMS_OF_VALUE_MIN > items}
    told = {f.by for f in features.values() if f.by is not None}
    return frozenset(name for name in many & told if features[name].buckets is None and name != sim_category)


def default_statistics(outcomes: Sequence[str], kinds: Sequence[str], values: Mapping[str, int], span_ms: int) -> Iterator[FeatureSource]:
    """The features that a mapping with impressions gets if it derives none from behaviours. These are rates of the click and of each outcome, for the item
    and for its groups, and counts of impressions in windows that fit the log. With behaviours in a file of their own (`kinds`) there are also the count of
    behaviours and the share of each kind."""
    groups = [name for name, count in values.items() if count >= _GROUPS_MIN]
    rates = (CLICK, *outcomes[:_OUTCOMES_MAX])
    for by in (None, *groups[:_GROUPS_MAX]):
        of_group = "" if by is None else f"_of_{by}"
        yield from (FeatureSource(name=f"rate_{name}{of_group}", rate=name, by=by, realtime=True) for name in rates)
    yield from _counts(SHOWN, fit_windows(span_ms, _SPANS_OF_SHOWN))
    if kinds:
        yield from (*_counts(TAKEN, ()), _TOGETHER)
    if len(kinds) > 1:
        yield from (FeatureSource(name=f"rate_{kind}"[:_NAME_MAX], rate=kind, realtime=True) for kind in kinds[1 : 1 + _KINDS_MAX])


def default_counts(positive_kinds: Sequence[str], span_ms: int, items_pass: bool) -> Iterator[FeatureSource]:
    """The same without impressions: how often an item was taken, in all and in windows that fit the log, and the items that the same users took.

    Items that pass have the days since the first and the last time instead. From numbers that tell items apart a network learns which
    of them were popular while it was trained.
    """
    for kind in positive_kinds[:_KINDS_MAX] or (TAKEN,):
        yield from _counts(kind, fit_windows(span_ms))
    yield from _AGES if items_pass else (_TOGETHER,)


def _counts(of: str, windows: Iterable[str]) -> Iterator[FeatureSource]:
    yield FeatureSource(name=of, count=of, realtime=True)
    for window in windows:
        yield FeatureSource(name=f"{of}_{window}"[:_NAME_MAX], count=of, window=window, realtime=True)


def statistic_of(
    source: FeatureSource, outcomes: Sequence[str] | None, kinds: Sequence[str], positive_kinds: Sequence[str]
) -> Statistic | None:
    """The statistic behind a derived feature; None: only an import computes it, and no stream. `outcomes`: of the impressions, None without such a file;
    `kinds`: of behaviours. Raises ValueError for a name that no log has."""
    window = source.window_ms
    if source.of_shown:
        name, log = str(source.rate or source.count), _log_of(source, outcomes, kinds)
        measure = Measure.RATE if source.rate is not None else Measure.COUNT if source.half_life is None else Measure.DECAYED
        return Statistic(log, measure, () if name in (SHOWN, TAKEN) else (name,), source.by, window)
    log, counted = (Log.BEHAVIOURS, tuple(positive_kinds)) if outcomes is None else (Log.IMPRESSIONS, (CLICK,))
    if source.days_since is not None:
        return Statistic(log, Measure.FIRST if source.days_since == "first" else Measure.LAST, counted)
    if source.count_days is not None and source.of == "behaviours":
        return Statistic(log, Measure.EXACT, counted, window_ms=round(source.count_days * DAY_MS))
    return None


def _log_of(source: FeatureSource, outcomes: Sequence[str] | None, kinds: Sequence[str]) -> Log:
    """The log that a rate or a count is made of."""
    name = source.rate or source.count
    of_shown = {CLICK, SHOWN, *outcomes} if outcomes is not None else set()
    known = (of_shown | {TAKEN, *kinds}) - ({SHOWN, TAKEN} if source.rate is not None else set())
    if name not in known:
        raise ValueError(f"names {name!r}, which no impression or behaviour has; {suggest(str(name), known)}")
    return Log.IMPRESSIONS if name in of_shown else Log.BEHAVIOURS
