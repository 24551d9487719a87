"""The engine's numbers as metrics have the right values, also over a reload."""

import dataclasses
import math
from typing import Any

from infra.metrics import Metrics
from schemas.token import VersionToken
from serving.core.row_ages import RowAges
from serving.engine.work import EngineStatus, VersionReport
from serving.status_view import EngineMetrics

TOKEN = VersionToken(4, 1, "aaaaaaaa")
REPORT = VersionReport(TOKEN, 10, 20, 3, ({},), {}, {0: 0}, 7)


class FakeEngine:
    """What `EngineMetrics` asks of an engine and of the follower of versions."""

    def __init__(self) -> None:
        self.residents: tuple[VersionReport, ...] = (REPORT,)
        self.flips, self.counters = 2, {"corrupted": 1, "strangers": 5}
        self.arrivals, self.loads = [("new-items", 0.3)], [4.0]

    def status(self) -> EngineStatus:
        return EngineStatus("cpu", self.residents[0].token if self.residents else None, self.residents, 0, 0, 0, 0, self.flips)

    def take_arrivals(self) -> list[tuple[str, float]]:
        taken, self.arrivals = self.arrivals, []
        return taken

    def take_load_seconds(self) -> list[float]:
        taken, self.loads = self.loads, []
        return taken


def test_what_is_shown_is_counted_once() -> None:
    engine, metrics = FakeEngine(), Metrics()
    ages = iter([RowAges([0.2, 9.0], [1]), RowAges([None, 9.0], [0, 1]), RowAges([0.1, 0.2])])
    shown = EngineMetrics(metrics, engine, engine, lambda watermark: next(ages))  # type: ignore[arg-type]

    def value(name: str, **labels: Any) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    shown.show()
    assert (value("aif_freshness_age_seconds"), value("aif_shards_lagging")) == (9.0, 1), "the worst shard's"
    shown.show()
    assert math.isnan(value("aif_freshness_age_seconds") or 0.0) and value("aif_shards_lagging") == 2
    assert [value(f"aif_{name}_total") for name in ("flips", "delta_rows", "versions_corrupted", "delta_strangers")] == [2, 7, 1, 5]
    assert (value("aif_version_live"), value("aif_version_revision"), value("aif_rows_not_servable")) == (4, 1, 3)
    assert value("aif_visible_seconds_count", topic="new-items") == 1 and value("aif_version_load_seconds_sum") == 4.0
    engine.residents = (
        dataclasses.replace(REPORT, changes_applied=2),
        dataclasses.replace(REPORT, token=VersionToken(5, 0, "b"), changes_applied=3),
    )
    shown.show()
    assert value("aif_delta_rows_total") == 7 + 2 + 3  # the version was loaded again and counts from 0
    engine.residents = ()
    shown.show()
    assert value("aif_version_live") == -1
