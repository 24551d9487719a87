"""The table of the four ways: what a traffic costs in each, and that every figure is there."""

from dataclasses import replace

import pytest

from lab.serving.table1 import MEASURES, PAPER, Costs, Traffic, measure_table1, table_rows, weigh

COSTS = Costs(row_ms=0.004, block_ms=1.5, item_half_ms=10, user_half_ms=5, gather_ms=0.5, row_bytes=80, order_bytes=37, state_bytes=100_000)


def test_the_ways_rank_as_in_the_paper() -> None:
    ways = weigh(Traffic(), COSTS)

    def order(field: str) -> list[str]:
        return sorted(ways, key=lambda name: getattr(ways[name], field))

    assert order("compute_cores") == ["offline", "nearline", "online", "real_time"]
    assert order("storage_bytes") == ["real_time", "online", "offline", "nearline"]
    assert order("age_s") == ["real_time", "nearline", "online", "offline"]
    assert max(ways, key=lambda name: ways[name].latency_ms) == "real_time" and ways["online"].latency_ms == 0


def test_what_each_way_pays_follows_its_own_traffic_and_no_other() -> None:
    twice = {"updates_per_s": 2_000 * 256.0, "requests_per_s": 200.0, "items": 2_000_000}
    ways = weigh(Traffic(), COSTS)
    for name, field, ratio in (("online", "requests_per_s", 2), ("real_time", "requests_per_s", 2), ("offline", "items", 2)):
        changed = weigh(replace(Traffic(), **{field: twice[field]}), COSTS)  # type: ignore[arg-type]
        assert changed[name].compute_cores == pytest.approx(ratio * ways[name].compute_cores)
    busy = weigh(replace(Traffic(), updates_per_s=twice["updates_per_s"]), COSTS)
    assert busy["nearline"].compute_cores > 2 * ways["nearline"].compute_cores and busy["offline"] == ways["offline"]
    assert weigh(replace(Traffic(), retrieval_ms=2.0), COSTS)["online"].latency_ms == 3.0, "what retrieval does not hide is waited for"


def test_a_run_has_every_figure_of_every_way_and_prints_the_papers_table() -> None:
    figures = measure_table1(Traffic(candidates=300, behaviours=20), 1_000, calls=2)
    given = figures.as_dict()["figures"]
    for name in PAPER:
        assert {f"{name}.{field}" for field in ("compute_cores", "storage_bytes", "latency_ms", "age_s")} <= set(given)
        assert {f"{name}.paper_{measure}" for measure in MEASURES} <= set(given)
    assert all(given[name]["value"] > 0 for name in Costs.__slots__)
    assert [row["way"] for row in table_rows(figures)] == list(PAPER)
