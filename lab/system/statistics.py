"""`aif bench statistics`: from a behaviour to the score that its count gives, under load; then every number that was sent, compared with an import.

    load      behaviours at a given rate, one per record, over the whole catalogue but the probes
    probes    items whose bid is the count of their behaviours: the score is y * bid, so the right new score is known: the old one times (n + 1) / n

    faults    with `--kills`, two processes of which one counts: kill -9 of it, a freeze beyond its session, a third process that joins and leaves

The model has further statistics, scaled so that no score depends on them. At the end they are compared, bit for bit, with those of an import of the
published behaviours. Here: load, probes, the comparison. Not here: looking for scores (freshness.py).
"""

import dataclasses
import itertools
import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from infra.data.interactions import Interactions
from infra.data.log_statistics import LogStatistic
from infra.figures import Figures
from infra.kafka.admin import end_offsets
from infra.kafka.publisher import Publisher
from infra.kafka.reader import read_topic
from infra.processes import Child, wait_until
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.figures.declared import read_bench
from lab.supervisor import Supervised
from lab.system.freshness import Load, Prober, Seen, not_servable, percentile_ms
from lab.system.stage import BenchStage, open_bench_stage, tell
from schemas.decoding import decode_record
from schemas.events import Behaviour, ItemFeaturesRecord, ItemFeaturesUpdate, StatisticsReport
from schemas.features import Feature, FeatureSchema, Scope
from schemas.kinds import NUMERIC
from schemas.statistics import DAY_MS, HOUR_MS, NEVER, Log, Measure, Statistic
from schemas.topics import ITEM_FEATURES, STATISTICS_REPORTS
from streams.statistics.owner import KEPT_BY_OTHER, KEPT_HERE
from streams.statistics.program import STARTS

STATISTICS = read_bench("bench statistics")

_PROBES = 64
_WARM_UP_S = 4.0
_QUIET_S = 3.0
_USERS, _HISTORY = 5_000, 5
_FIRST_USER = 1_000_000
_KINDS = ("click", "buy")
_NO_EFFECT = 1e9
_FROZEN_S, _TAKEN_OVER_S_MAX = 9.0, 120.0
_B = Log.BEHAVIOURS
_KEPT: Mapping[str, Statistic] = {
    "bid": Statistic(_B, Measure.EXACT),
    "taken_1h": Statistic(_B, Measure.COUNT, window_ms=HOUR_MS),
    "buying": Statistic(_B, Measure.RATE, ("buy",)),
    "buying_of_category": Statistic(_B, Measure.RATE, ("buy",), by="category", window_ms=DAY_MS),
    "days_since_buy": Statistic(_B, Measure.LAST, ("buy",)),
}


def schema_with_statistics(schema: FeatureSchema) -> FeatureSchema:
    """The schema with the bid as a count, and with the other statistics of `_KEPT`, which no score shows."""
    features = [dataclasses.replace(f, statistic=_KEPT["bid"]) if (f.scope, f.name) == (Scope.ITEM, "bid") else f for f in schema.features]
    for name, statistic in _KEPT.items():
        if name != "bid":
            features.append(Feature(name, Scope.ITEM, NUMERIC, scale=_NO_EFFECT, realtime=True, statistic=statistic))
    return dataclasses.replace(schema, features=tuple(features))


class Published:
    """The published behaviours, as columns for an import."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, int]] = []  # item, kind, time
        self._chance = np.random.default_rng(0)
        self._users, self._kinds = itertools.cycle(range(_USERS)), itertools.cycle((*_KINDS, "click"))

    def publish_history(self, publisher: Publisher, items: list[int]) -> None:
        """Behaviours of the last ten minutes, some on each item, packed: a young log's shares of all items jump, and with them every rate."""
        now_ms, chance = time.time_ns() // 1_000_000, np.random.default_rng(1)
        made = [
            Behaviour(user_id=_FIRST_USER + n % _USERS, item_id=item, kind=_KINDS[n % 3 % 2], time_ms=now_ms - 600_000 + int(n))
            for n, item in enumerate(chance.permutation(np.repeat(items, _HISTORY)).tolist())
        ]
        publisher.publish_behaviours(made)
        self.rows += [(b.item_id, b.kind, b.time_ms) for b in made]  # type: ignore[misc] # ids of this world are numbers

    def send(self, publisher: Publisher, item: int) -> None:
        """One behaviour of the next user, now."""
        kind, time_ms = next(self._kinds), time.time_ns() // 1_000_000
        self.rows.append((item, kind, time_ms))
        publisher.publish_behaviour(Behaviour(user_id=_FIRST_USER + next(self._users), item_id=item, kind=kind, time_ms=time_ms))

    def send_at_random(self, publisher: Publisher, items: list[int], count: int) -> None:
        """A behaviour on each of `count` random items."""
        for place in self._chance.integers(0, len(items), count).tolist():
            self.send(publisher, items[place])

    def imported(self, items: list[ItemFeaturesUpdate], time_ms: int) -> dict[str, np.ndarray]:
        """The statistics of the items as an import of the same behaviours tells them as of a time."""
        places = {item.item_id: place for place, item in enumerate(items)}
        rows = sorted(((t, places[i], _KINDS.index(k)) for i, k, t in self.rows))
        time_X, item_X, kind_X = np.array(rows, np.int64).reshape(-1, 3).T
        log = Interactions(range(1), range(len(items)), _KINDS, np.zeros_like(time_X), item_X, kind_X, time_X)
        categories = {value: code for code, value in enumerate(dict.fromkeys(item.features["category"] for item in items))}
        group_I = np.array([categories[item.features["category"]] for item in items])
        return {
            name: LogStatistic(statistic, log, len(items), group_I if statistic.by else None).at(time_ms)
            for name, statistic in _KEPT.items()
        }


class StatisticsProber(Prober):
    """Changes probes by behaviours."""

    def __init__(self, stage: BenchStage, updates: list[ItemFeaturesUpdate], worker: Any, published: Published) -> None:
        super().__init__(stage, updates, worker)
        self._published, self._counts = published, {u.item_id: _HISTORY for u in updates}

    def _move(self, publisher: Publisher, probe: Any) -> None:
        item = probe.update.item_id
        count, self._counts[item] = self._counts[item], self._counts[item] + 1
        with self._lock:
            probe.wanted = probe.score * (count + 1) / count
            probe.published_at = time.monotonic()
        self._published.send(publisher, item)


class Keepers:
    """The processes that keep the statistics: a second one where faults are to come, so that one can take over."""

    def __init__(self, stage: BenchStage, faults: bool) -> None:
        self._stage = stage
        self._services = [self._serve(f"statistics-{n}") for n in range(2 if faults else 1)]

    def _serve(self, name: str) -> Supervised:
        service = Supervised(lambda: self._start(name))
        self._stage.services.append(service)
        return service

    def _start(self, name: str) -> Child:
        code = "from infra.cli import main; main()"
        return self._stage.start_python(name, code, "statistics", AIF_STATISTICS__DATA_DIR=str(self._stage.directory / name))

    def fail(self, number: int) -> None:
        """The next kind of fault; returns when reports come again."""
        children = [service.child for service in self._services]
        wait_until(
            lambda: sorted(map(_counts, children), key=str) == [False, True], _TAKEN_OVER_S_MAX, "one process to count and one to wait"
        )
        began_ms, owner = time.time_ns() // 1_000_000, next(filter(_counts, children))
        if number % 3 == 0:
            owner.kill()
        elif number % 3 == 1:
            os.killpg(owner.pid, signal.SIGSTOP)
            time.sleep(_FROZEN_S)
            os.killpg(owner.pid, signal.SIGCONT)
        else:
            third = self._start("statistics-2")
            wait_until(lambda: KEPT_BY_OTHER in third.log_path.read_text(), _TAKEN_OVER_S_MAX, "the third process to have joined")
            self._stage.stop_worker(third)
        self._stage.wait_for(lambda: _reported_ms(self._stage)[-1] > began_ms + 1_000 * _FROZEN_S, "reports of the statistics to go on")


def _counts(child: Child) -> bool | None:
    """Whether the last assignment gave it the partitions; None before its first."""
    log = child.log_path.read_text().rpartition(STARTS)[2]
    here, other = log.rfind(KEPT_HERE), log.rfind(KEPT_BY_OTHER)
    return None if here == other else here > other


def measure_statistics(rate: float, seconds: float, items: int, kills: int = 0) -> Figures:
    """`seconds` of behaviours at `rate` a second, in which `kills` faults come, then the comparison."""
    figures = Figures(STATISTICS, {"rate": rate, "seconds": seconds, "items": items, "kills": kills})
    world = open_world(items)
    catalogue = cast(Catalogue, SimpleNamespace(schema=schema_with_statistics(world.schema), model=world.model))
    with open_bench_stage() as stage, ExitStack() as ending:
        began = tell("publish the catalogue, build, load")
        stage.publish_catalogue(world)
        worker = stage.start_worker()
        stage.wait_live(stage.publish_model(catalogue), worker)
        keepers = Keepers(stage, kills > 0)
        server = ending.enter_context(closing(stage.start_server()))
        listed, published = list(world.items()), Published()
        probed = listed[:_PROBES]
        with stage.publisher() as publisher:
            published.publish_history(publisher, [int(u.item_id) for u in listed])
        stage.wait_for(lambda: as_of(stage) > 0, "the first report of the statistics")
        wait_quiet(stage)
        not_servable(stage, server)  # waits until the answers have all of them
        began = tell("behaviours", began)
        others = [int(u.item_id) for u in listed[_PROBES:]]
        load = Load(stage, rate, lambda publisher, count: published.send_at_random(publisher, others, count))
        with StatisticsProber(stage, probed, worker, published) as prober, load:
            first_s, first_ms = time.monotonic() + _WARM_UP_S, time.time_ns() // 1_000_000
            for number in range(kills):
                keepers.fail(number)
                tell(f"fault {number + 1} of {kills}", began)
            prober.stopping.wait(max(0.0, first_s + seconds - time.monotonic()))
        wait_quiet(stage)
        tell("compare with an import", began)
        _compare(figures, stage, listed, published)
        reported_ms = np.array([at_ms for at_ms in _reported_ms(stage) if at_ms >= first_ms - 2_000])
    _add_times(figures, [s for s in prober.seen if s.published_at >= first_s], sum(math.isinf(s.visible_s) for s in prober.seen))
    figures.add("rate_per_s", load.per_s)
    figures.add("kills", kills)
    figures.add("report_gap_max_s", float(np.diff(reported_ms).max()) / 1e3)
    return figures


def wait_quiet(stage: BenchStage) -> None:
    """Until no update of an item was sent for a while."""
    before: dict[int, int] = {}
    while (ends := end_offsets(stage.connection, stage.topic_prefix + ITEM_FEATURES)) != before:
        before = ends
        time.sleep(_QUIET_S)


def _reports(stage: BenchStage) -> list[StatisticsReport]:
    records = read_topic(stage.connection, STATISTICS_REPORTS, prefix=stage.topic_prefix)
    return [decode_record(StatisticsReport, record.value) for record in records]


def _reported_ms(stage: BenchStage) -> list[int]:
    """When each report was made."""
    return [report.at_ms for report in _reports(stage)]


def as_of(stage: BenchStage) -> int:
    """As of when the newest report says that the statistics are; 0 before the first."""
    return max((report.as_of_ms for report in _reports(stage)), default=0)


def _compare(figures: Figures, stage: BenchStage, items: list[ItemFeaturesUpdate], published: Published) -> None:
    """Compares every bit of the numbers in the last updates with an import of the same behaviours as of the same time."""
    as_of_ms, told, told_at, updates = as_of(stage), dict[Any, dict[str, float]](), dict[Any, int](), 0
    for record in read_topic(stage.connection, ITEM_FEATURES, prefix=stage.topic_prefix):
        if b'"op":"statistics"' in (record.value or b""):
            for update in decode_record(ItemFeaturesRecord, record.value).updates:
                updates += 1
                if update.version > told_at.get(update.item_id, -1):
                    told_at[update.item_id] = update.version
                    told[update.item_id] = {name: _number(update.features.get(name), name) for name in _KEPT}
    nothing = {name: _number(None, name) for name in _KEPT}
    imported = published.imported(items, as_of_ms)
    differing = 0
    for name in _KEPT:
        streamed_I = np.array([told.get(item.item_id, nothing)[name] for item in items], np.float64)
        differing += int(np.bitwise_count(streamed_I.view(np.uint64) ^ imported[name].astype(np.float64).view(np.uint64)).sum())
    figures.add("parity_bits", differing)
    figures.add("numbers", len(items) * len(_KEPT))
    figures.add("updates", updates)
    figures.add("behaviours", len(published.rows))


def _number(value: Any, name: str) -> float:
    return (NEVER if _KEPT[name].measure is Measure.LAST else 0.0) if value is None else float(value)


def _add_times(figures: Figures, seen: list[Seen], lost: int) -> None:
    visible_s = [s.visible_s for s in seen if math.isfinite(s.visible_s)]
    for percent in (50, 99):
        figures.add(f"visible_p{percent}_ms", percentile_ms(visible_s, percent))
    figures.add("probes", len(visible_s))
    figures.add("lost", lost)
