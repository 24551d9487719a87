"""Metrics: every name from the table, values as they were given, in base units."""

import urllib.request
from pathlib import Path

import pytest

from infra.metrics import METRICS, Metrics, open_metrics_page
from schemas.errors import Misconfigured


def test_values_arrive_on_the_page_as_they_were_given() -> None:
    metrics = Metrics()
    metrics.counter("dead_letters").labels("item-features", "schema").inc(3)
    metrics.gauge("version_live").set(17)
    metrics.histogram("visible_seconds").labels("0").observe(0.25)
    port, close = open_metrics_page(metrics, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        with pytest.raises(Misconfigured, match=f"port {port}.*--metrics-port"):
            open_metrics_page(metrics, port)
    finally:
        close()
    assert 'aif_dead_letters_total{disposition="schema",topic="item-features"} 3.0' in page
    assert "aif_version_live 17.0" in page
    assert 'aif_visible_seconds_sum{topic="0"} 0.25' in page
    assert 'aif_visible_seconds_bucket{le="0.2",topic="0"} 0.0' in page
    assert 'aif_visible_seconds_bucket{le="0.5",topic="0"} 1.0' in page
    assert "process_resident_memory_bytes" in page
    assert "_created" not in page, "a second series for each counter that says nothing"


def test_a_metric_that_is_not_in_the_table_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="METRICS"):
        Metrics().counter("surprise")


def test_every_metric_of_the_table_can_be_made_and_durations_are_in_seconds() -> None:
    metrics = Metrics()
    for metric in METRICS:
        getattr(metrics, metric.kind)(metric.name)
        assert not metric.name.endswith(("_ms", "_total", "_milliseconds"))
        assert (metric.kind == "histogram") == bool(metric.buckets)


def test_every_metric_of_the_table_is_filled_somewhere() -> None:
    """A name that nobody fills is a dashboard that stays empty."""
    folders = [Path(__file__).parents[2] / name for name in ("infra", "streams", "serving", "lab")]
    sources = [
        f.read_text() for folder in folders for f in sorted(folder.rglob("*.py")) if f.name != "metrics.py" or folder.name != "infra"
    ]
    made_of_parts = {"shard_keys", "shard_bytes", "shard_compaction_debt_bytes", "shard_table_files"}  # worker_metrics.py
    unfilled = [m.name for m in METRICS if m.name not in made_of_parts and not any(f'("{m.name}"' in text for text in sources)]
    assert unfilled == []
