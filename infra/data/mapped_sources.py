"""The files of a mapping, loaded and joined: ids of one kind, interactions in order of time, states of items, and the schema.

Here: everything that is read once and used many times. Each part is loaded when it is first asked for. Not here: events (mapped_catalogue.py).
Memory: ids with their places; rows of files up to `SpoolBounds.memory_bytes` for each section, and on disk beyond that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from infra.clock import DAY_MS
from infra.data.columns import decode_numbers
from infra.data.files import load_table
from infra.data.inferred_schema import (
    count_values,
    default_counts,
    default_statistics,
    find_roles,
    infer_bid,
    infer_derived,
    infer_feature,
    names_alone,
    statistic_of,
)
from infra.data.interactions import DEFAULT_KIND, Interactions, hold_out_latest
from infra.data.item_embeddings import ItemEmbeddings, ItemMarks, cluster_embeddings
from infra.data.items import AsOf, HistoryFeature, ItemStates, RowsById, read_item_history, read_rows_by_id
from infra.data.log import read_interactions
from infra.data.log_statistics import ExpectedTakers, LogStatistic, MeanOfValue, TakersCount, TogetherVectors, count_users, together_vectors
from infra.data.mapping import DataMapping, reject
from infra.data.mapping_source import Column, FeatureSource, Source
from infra.data.periods import SHORT_LIFE, HeldOutPeriod, find_period, life_of_items, plan_sample_times, usual_times, window_of
from infra.data.shown_impressions import ShownRequests, ShownRows
from infra.data.spool import SpoolBounds
from infra.data.tables import FILE, ROW, LoadedTable, Rejections, Tell, read_times
from schemas.errors import Misconfigured, suggest
from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import Id, IdKind
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC, Kind, buckets_for
from schemas.statistics import Log, Statistic

_KINDS_MAX, _HELD_OUT_OF_USER = 64, 0.2
_TOGETHER_TIMES_MAX, _TOGETHER_TIMES_SHOWN_MAX = 16, 6  # each costs a decomposition


class MappedSources:
    """Loaded tables of `mapping` under `directory`; at most `limit` rows of each. `tell` is called after every block that is read."""

    def __init__(self, mapping: DataMapping, directory: Path, limit: int | None, bounds: SpoolBounds, tell: Tell | None) -> None:
        self.mapping, self.directory, self._limit = mapping, directory, limit
        self.bounds, self._tell = bounds, tell
        self.rejections = Rejections()
        self._tables: dict[str, LoadedTable] = {}
        self._statistics: dict[str, AsOf] = {}

    def table(self, source: Source) -> LoadedTable:
        """The rows of a section."""
        if source.section not in self._tables:
            self._tables[source.section] = load_table(self.directory, source, self._limit, self.rejections, self.bounds, self._tell)
        return self._tables[source.section]

    def reject(self, key: str, expectation: str) -> Misconfigured:
        """An error of the mapping file."""
        return reject(self.mapping.path, key, expectation)

    @cached_property
    def id_kind(self) -> IdKind:
        """int64 if every id of every file is a whole number, else text; or what the mapping says."""
        if self.mapping.roles.id_kind is not None:
            return IdKind(self.mapping.roles.id_kind)
        whole = all(form.whole_numbers for source in self.mapping.sources for form in self.table(source).id_forms.values())
        return IdKind.INT64 if whole else IdKind.TEXT

    # --- interactions ---

    @cached_property
    def item_rows(self) -> RowsById:
        """The items' file by item. With a file of impressions, a row is known a millisecond after its time, because a row of the same time may
        contain an outcome."""
        known_after_ms = int(self.mapping.impressions is not None)
        rows = read_rows_by_id(self.table(self.mapping.items), self.id_kind, self.bounds, known_after_ms)
        if not rows.ids:
            told = next((f"; {row}" for row in self.rejections.named if row.section == "items"), "")
            raise self.reject("[items]", f"gives no item: no row of {self.mapping.items.file} counts and has an id{told}")
        return rows

    @cached_property
    def history_known_after_ms(self) -> int:
        """How long after its time a row of [item_history] is known; with a file of impressions a millisecond longer, as for the items' file."""
        history = self.mapping.item_history
        days = history.known_after_days if history is not None else 0.0
        return round(days * DAY_MS) + int(self.mapping.impressions is not None)

    @cached_property
    def shown(self) -> ShownRows | None:
        """The rows of the impressions' file. None without such a file."""
        return ShownRows(self.table(self.mapping.impressions)) if self.mapping.impressions is not None else None

    @cached_property
    def history(self) -> Interactions:
        """The behaviours of users: [behaviours], or else the clicks of [impressions]."""
        if (behaviours := self.mapping.behaviours) is not None:
            columns = self.table(behaviours).spool.schema.names if behaviours.features else (ROW, FILE)
            found = read_interactions(self.table(behaviours), self.id_kind, self.item_rows.ids, self.bounds, columns)
            per_user = self.mapping.holdout.hold_out and self.mapping.holdout.split == "user" and len(found)
            return hold_out_latest(found, _HELD_OUT_OF_USER, usual_times(found.time_X)[1] + 1, self.bounds) if per_user else found
        if self.shown is not None:
            return self._clicks
        nothing = np.zeros(0, np.int64)
        return Interactions((), (), (DEFAULT_KIND,), nothing, nothing, nothing, nothing)

    @cached_property
    def _clicks(self) -> Interactions:
        assert self.shown is not None
        return read_interactions(self.shown.table, self.id_kind, self.item_rows.ids, self.bounds, choose=self.shown.clicked)

    @cached_property
    def positives(self) -> Interactions:
        """The right answers: clicks of [impressions], or behaviours of the positive kinds."""
        if self.shown is not None:
            return self._clicks
        wanted = self.mapping.sampling.positive_kinds
        for kind in wanted:
            if kind not in self.history.kinds:
                raise self.reject(
                    "[impressions] positive_kinds", f"names {kind!r}, which no behaviour is; {suggest(kind, self.history.kinds)}"
                )
        codes = [self.history.kinds.index(kind) for kind in wanted]
        return self.history.of_kinds(codes, self.bounds) if wanted else self.history

    @cached_property
    def period(self) -> HeldOutPeriod | None:
        """The period in which held-out users are measured; None for an empty log."""
        times = self.positives.time_X
        return find_period(self.mapping, times, usual_times(self.history.time_X)[1]) if len(times) else None

    @cached_property
    def usual_times(self) -> tuple[int, int]:
        """The first and last usual time of positives, for windows and cuts."""
        return usual_times(self.positives.time_X) if len(self.positives) else (self.now_ms, self.now_ms)

    @cached_property
    def now_ms(self) -> int:
        """The evaluation time. Later rows become no events, except those of price_changes and arrivals. Of an empty log it is the latest time in the items'
        files, because all rows count."""
        if self.period is not None:
            return self.period.start_ms
        times, history = [int(self.item_rows.time_R[-1]), int(self.item_rows.created_I.max())], self.mapping.item_history
        if history is not None:
            times += [int(read_times(rows, "time").max(initial=0)) + self.history_known_after_ms for rows in self.table(history).blocks()]
        return max(times)

    @cached_property
    def end_ms(self) -> int:
        """The end of the period that is measured."""
        return self.period.end_ms if self.period is not None else self.now_ms

    @cached_property
    def user_rows(self) -> RowsById:
        """The users' file by user. A row with a time is valid from a millisecond after it, as in the items' file."""
        assert self.mapping.users is not None
        return read_rows_by_id(self.table(self.mapping.users), self.id_kind, self.bounds, 1)

    @cached_property
    def profiles(self) -> Mapping[Id, int]:
        """The number of each user's row in `user_rows` that is valid at the evaluation time; of an empty log the last one. Without users of later rows only."""
        if self.mapping.users is None:
            return {}
        rows, until_ms = self.user_rows, self.now_ms if self.period is not None else np.iinfo(np.int64).max
        row_P, known_P = rows.latest_rows(until_ms).tolist(), (rows.created_I <= until_ms).tolist()
        return {user: row for user, row, known in zip(rows.ids, row_P, known_P, strict=True) if known}

    @cached_property
    def known_share(self) -> float:
        """The share of behaviours with items of the catalogue; 1 for an empty log."""
        log = self.history
        return log.counts(len(self.item_rows.ids), 0, int(log.time_X[-1]) + 1).sum() / len(log) if len(log) else 1.0

    # --- items ---

    @cached_property
    def shown_requests(self) -> ShownRequests:
        """The rows of [impressions] with a user, an item and a time, by request. No request crosses the evaluation time."""
        assert self.shown is not None
        found = read_interactions(self.shown.table, self.id_kind, self.item_rows.ids, self.bounds, self.shown.table.spool.schema.names)
        return ShownRequests(self.shown, found, self.now_ms, self.bounds)

    @cached_property
    def shown_log(self) -> Interactions:
        """The same as interactions, with outcomes as bits."""
        return self.shown_requests.log()

    @cached_property
    def item_features(self) -> Mapping[str, FeatureSource]:
        """The features of [items], with statistics where the mapping derives none from behaviours. A file with versions of an item gets none, because each
        version has a time of its own and no grid of times applies."""
        items, given = self.mapping.items, self.mapping.items.features
        are_chosen = items.time is not None or not items.popularity or any(f.from_behaviours for f in given.values())
        if are_chosen or (self.shown is None and not len(self.positives)):
            return given
        if self.shown is None:
            chosen = default_counts(self.mapping.sampling.positive_kinds, self.now_ms - self.usual_times[0], self.items_pass)
        else:
            kinds = self.history.kinds if self.mapping.behaviours is not None else ()
            span = self.now_ms - usual_times(self.shown_log.time_X)[0] if len(self.shown_log) else 0
            chosen = default_statistics(self.shown.outcomes, kinds, self._values_of_categories, span)
        return {**given, **{source.name: source for source in chosen}, **given}

    @cached_property
    def items_pass(self) -> bool:
        """Whether items are popular for so short a part of a log without impressions that what tells them apart is of no use later, as in news."""
        return self.shown is None and life_of_items(self.positives, self.usual_times[0], self.now_ms) < SHORT_LIFE

    @cached_property
    def _values_of_categories(self) -> Mapping[str, int]:
        return count_values(self.mapping.items, self.table(self.mapping.items).sample, self.roles["sim_category"])

    @cached_property
    def _names_alone(self) -> frozenset[str]:
        """Columns of which the model reads the rates alone."""
        if not any(f.by for f in self.item_features.values()):
            return frozenset()
        return names_alone(self.item_features, self._values_of_categories, len(self.item_rows.ids), self.roles["sim_category"])

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """All features of the schema, the embedding last."""
        mapping, roles, alone = self.mapping, self.roles, self._names_alone
        kinds = {roles["sim_category"]: CATEGORICAL, roles["bid"]: NUMERIC}
        of_items = [(f, mapping.items) for name, f in self.item_features.items() if name not in alone]
        item = {f.name: self._item_feature(f, section, kinds.get(f.name)) for f, section in [*of_items, *self._history_features()]}
        found = list(item.values())
        found.append(Feature(mapping.embedding_name, Scope.ITEM, EMBEDDING, width=self.embeddings.width))
        for scope, other in ((Scope.USER, mapping.users), (Scope.BEHAVIOUR, mapping.behaviours), (Scope.CONTEXT, mapping.impressions)):
            if other is not None:
                table = self.table(other)
                found += [infer_feature(f, scope, table.sample) for f in other.features.values() if not f.is_derived]
        for source in mapping.users.derived if mapping.users is not None else ():
            found.append(infer_derived(source, Scope.USER, self._statistic_of(source), self.user_numbers[source.name][1]))
        return tuple(found)

    def _history_features(self) -> list[tuple[FeatureSource, Source]]:
        """Features of the history table. [items.features] may fix parameters of the same name."""
        found: list[tuple[FeatureSource, Source]] = []
        if (history := self.mapping.item_history) is not None:
            for feature in history.features.values():
                of_items = self.mapping.items.features.get(feature.name, feature)
                fixed = {"kind": feature.kind or of_items.kind, **of_items.details, **feature.details}
                found.append((feature.model_copy(update=fixed), history))
        return found

    def _item_feature(self, source: FeatureSource, table_source: Source, role: Kind | None) -> Feature:
        if source.taken_together is not None:
            return Feature(source.name, Scope.ITEM, EMBEDDING, **{"width": source.taken_together, **source.details})
        if source.from_behaviours:
            return infer_derived(source, Scope.ITEM, self._statistic_of(source), self._statistic(source).at(self.now_ms))
        if source.clusters is not None:
            return Feature(source.name, Scope.ITEM, CATEGORICAL, **{"buckets": buckets_for(source.clusters), **source.details})
        rows = self.table(table_source).sample
        if rows.has("time"):
            rows = rows.take(np.flatnonzero(read_times(rows, "time") <= self.now_ms))
        if source.name == self.roles["bid"]:
            numbers = ItemStates(self.item_rows, (), self.now_ms).numbers_at(source.name, self.now_ms)
            if table_source is self.mapping.item_history:
                numbers = decode_numbers(rows.arrays(source)[0])
            return Feature(source.name, Scope.ITEM, NUMERIC, **infer_bid(numbers, source.details))
        return infer_feature(source, Scope.ITEM, rows, role)

    @cached_property
    def user_numbers(self) -> Mapping[str, tuple[Sequence[Id], np.ndarray]]:
        """(users of its log, the number of each as of the evaluation time) of each statistic of users."""
        statistics = {f.name: self._statistic_of(f) for f in (self.mapping.users.derived if self.mapping.users is not None else ())}
        return {name: count_users(s, self._log_of(s), self.now_ms) for name, s in statistics.items() if s is not None}

    def _log_of(self, statistic: Statistic) -> Interactions:
        return self.shown_log if statistic.log is Log.IMPRESSIONS else self.history

    @cached_property
    def roles(self) -> Mapping[str, str | None]:
        return find_roles(self.mapping)

    @cached_property
    def schema(self) -> FeatureSchema:
        """The schema of the catalogue."""
        given, is_input = self.mapping.roles, self.mapping.roles.multimodal_is_input
        kinds = self.history.kinds[:_KINDS_MAX] if given.behaviour_kinds is None else given.behaviour_kinds
        marks_pass = self.mapping.embeddings is None and self.items_pass
        return FeatureSchema(
            self.features,
            id_kind=self.id_kind,
            sim_category=self.roles["sim_category"],
            bid=self.roles["bid"],
            multimodal=self.mapping.embedding_name,
            multimodal_is_input=not (self.has_marks_beside_features or marks_pass) if is_input is None else is_input,
            behaviour_kinds=kinds or (DEFAULT_KIND,),
        )

    @property
    def has_marks_beside_features(self) -> bool:
        """Whether an item's embedding is its mark and the item half has other inputs, so that it need not read the mark."""
        return self.mapping.embeddings is None and sum(f.scope is Scope.ITEM and not f.realtime for f in self.features) > 1

    @cached_property
    def embeddings(self) -> ItemEmbeddings | ItemMarks:
        """Embeddings of the items."""
        rows = self.item_rows
        source = self.mapping.embeddings
        if source is None:
            return ItemMarks(rows.ids, self._together_before_shown())
        later = [rows.ids[place] for place in np.flatnonzero(rows.created_I > self.now_ms).tolist()]
        return ItemEmbeddings(read_rows_by_id(self.table(source), self.id_kind, self.bounds), source, later)

    def _together_before_shown(self) -> np.ndarray | None:
        """`taken_together` as of the first impression, [I, E]: the source of signatures where the mapping has no embeddings. An embedding has no
        time, so it must not depend on the outcomes of impressions. None without impressions or such vectors."""
        width = next((source.taken_together for source in self.item_features.values() if source.taken_together is not None), None)
        if self.shown is None or width is None or not len(self.shown_log):
            return None
        return together_vectors(self.history, len(self.item_rows.ids), width, int(self.shown_log.time_X[0]))

    @cached_property
    def states(self) -> ItemStates:
        """Item features as of any time."""
        mapping, rows, histories = self.mapping, self.item_rows, dict[str, HistoryFeature]()
        features = [f for f in self.features if f.scope is Scope.ITEM]
        features += [Feature(name, Scope.ITEM, CATEGORICAL, buckets=2) for name in sorted(self._names_alone)]  # streams count by them
        if mapping.item_history is not None:
            table, by_name = self.table(mapping.item_history), {f.name: f for f in features}
            histories = read_item_history(table, self.id_kind, rows.ids, by_name, self.history_known_after_ms, self.bounds)
        statistics = {source.name: self._statistic(source) for source in self.item_features.values() if source.from_behaviours}
        clusters = {source.name: self._clusters(source) for source in mapping.items.features.values() if source.clusters is not None}
        states = ItemStates(rows, features, self.now_ms, histories, statistics, clusters)
        if states.changes_with_time and rows.table.has("time"):
            expected = "is for a file with several versions of an item; it does not go with [item_history] or features made from behaviours"
            raise self.reject("[items] time", expected)
        return states

    def _statistic(self, source: FeatureSource) -> AsOf:
        """One statistic for each feature, because it continues from one time to the next."""
        if source.name not in self._statistics:
            self._statistics[source.name] = self._open_statistic(source)
        return self._statistics[source.name]

    def _statistic_of(self, source: FeatureSource) -> Statistic | None:
        """The statistic that a stream can keep too; None: only an import computes it."""
        outcomes, kinds = self.shown.outcomes if self.shown is not None else None, self.history.kinds if source.of_shown else ()
        try:
            return statistic_of(source, outcomes, kinds, self.mapping.sampling.positive_kinds)
        except ValueError as error:
            section = "items" if source.name in self.item_features else "users"
            raise self.reject(f"[{section}] features.{source.name}", str(error)) from error

    def _open_statistic(self, source: FeatureSource) -> AsOf:
        statistic, items, times, log = self._statistic_of(source), len(self.item_rows.ids), self.sample_times, self.positives
        if statistic is not None:
            by = self._named_column(source, "by", self.mapping.items) if statistic.by is not None else None
            groups = self.item_rows.groups(by, self.now_ms) if by is not None else None
            return LogStatistic(statistic, self._log_of(statistic), items, groups)
        if source.expected_days is not None:
            return ExpectedTakers(log, items, source.expected_days, times[-1])
        if source.mean_of is not None:
            return MeanOfValue(self.history, items, self._values(source))
        if source.count_days is not None:
            return TakersCount(log, items, source.count_days)
        assert source.taken_together is not None
        log, most = (log, _TOGETHER_TIMES_MAX) if self.shown is None else (self.history, _TOGETHER_TIMES_SHOWN_MAX)
        return TogetherVectors(log, items, source.taken_together, times[::-1][:: -(-len(times) // most)][::-1])

    def _values(self, source: FeatureSource) -> Callable[[pa.Table], np.ndarray]:
        """The number of [behaviours.features] that `mean_of` names, in rows of the history."""
        column = self._named_column(source, "mean_of", self.mapping.behaviours)
        assert self.mapping.behaviours is not None
        table = self.table(self.mapping.behaviours)
        return lambda rows: decode_numbers(table.rows(rows).arrays(column)[0])

    def _named_column(self, source: FeatureSource, key: str, section: Source | None) -> Column:
        """The column of the feature of a section that a key of another feature names."""
        columns, name = section.feature_columns() if section is not None else {}, str(getattr(source, key))
        if name in columns and columns[name].columns:
            return columns[name]
        expected = f"{key} = {name!r} is no column of [{'items' if key == 'by' else 'behaviours'}.features]; {suggest(name, list(columns))}"
        raise self.reject(f"[items] features.{source.name}", expected)

    @cached_property
    def sample_times(self) -> list[int]:
        """The times of item features, oldest first."""
        return plan_sample_times(self.mapping, self.usual_times[0], self.now_ms, self.window_ms())

    def _clusters(self, source: FeatureSource) -> np.ndarray:
        if isinstance(self.embeddings, ItemMarks) or source.clusters is None:
            raise self.reject(f"[items] features.{source.name}", "groups items by their embeddings; it needs a section [embeddings]")
        matrix, created_I = self.embeddings.matrix(self.item_rows.ids), self.item_rows.created_I
        return cluster_embeddings(matrix, (created_I <= self.now_ms) & matrix.any(axis=1), source.clusters)

    def window_ms(self) -> int:
        """How long a sampled impression looks ahead."""
        return window_of(self.mapping, self.end_ms - self.now_ms, self.usual_times[1] - self.usual_times[0], self.items_pass)
