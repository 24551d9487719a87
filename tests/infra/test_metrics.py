"""Metrics: every name from the table, values as they were given, in base units."""

import urllib.request

import pytest

from infra.metrics import METRICS, Metrics, open_metrics_page


def test_values_arrive_on_the_page_as_they_were_given() -> None:
    metrics = Metrics()
    metrics.counter("dead_letters").labels("item-features", "schema").inc(3)
    metrics.gauge("version_live").set(17)
    metrics.histogram("freshness_seconds").labels("0").observe(0.25)
    port, close = open_metrics_page(metrics, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    finally:
        close()
    assert 'aif_dead_letters_total{disposition="schema",topic="item-features"} 3.0' in page
    assert "aif_version_live 17.0" in page
    assert 'aif_freshness_seconds_sum{shard="0"} 0.25' in page
    assert 'aif_freshness_seconds_bucket{le="0.2",shard="0"} 0.0' in page
    assert 'aif_freshness_seconds_bucket{le="0.5",shard="0"} 1.0' in page


def test_a_metric_that_is_not_in_the_table_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="METRICS"):
        Metrics().counter("surprise")


def test_every_metric_of_the_table_can_be_made_and_durations_are_in_seconds() -> None:
    metrics = Metrics()
    for metric in METRICS:
        getattr(metrics, metric.kind)(metric.name)
        assert not metric.name.endswith(("_ms", "_total", "_milliseconds"))
        assert (metric.kind == "histogram") == bool(metric.buckets)
