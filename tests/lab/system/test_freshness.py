"""The freshness bench: what counts as visible, as lost, and in which window."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.figures import Figures
from infra.processes import free_ports, start_child, wait_until
from lab.plain_client import PlainClient
from lab.system import freshness
from lab.system.freshness import _LOST_AFTER_S, FRESHNESS, Prober, Seen, _add_figures, not_servable
from schemas.errors import Unavailable
from schemas.events import ItemFeaturesUpdate
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front


@pytest.fixture
def prober(tmp_path: Path) -> Iterator[Prober]:
    """One probe, item 7, whose bid is 2 and whose score is 10; its worker has ended, nothing runs."""
    worker = start_child("worker", [sys.executable, "-c", "raise SystemExit('its disk is full')"], tmp_path / "log")
    wait_until(lambda: not worker.alive(), 30, "the worker to end")
    stage: Any = SimpleNamespace(url="")
    made = Prober(stage, [ItemFeaturesUpdate(item_id=7, version=1, features={"bid": 2.0})], worker)
    made._probes[7].score = 10.0
    yield made
    worker.kill()


class Sent:
    """A publisher that keeps its updates."""

    def __init__(self) -> None:
        self.updates: list[ItemFeaturesUpdate] = []

    def publish_update(self, update: ItemFeaturesUpdate) -> None:
        self.updates.append(update)


def test_a_change_is_visible_with_the_score_that_the_new_bid_gives_and_with_no_other(prober: Prober) -> None:
    sent: Any = Sent()
    prober._move(sent, prober._probes[7])
    assert sent.updates[0].features["bid"] == 2.0 / 1.2
    began = prober._probes[7].published_at
    assert began is not None
    for score in (10.0, 8.0, math.nan):
        prober._take({7: score}, began + 1)
    assert not prober.seen
    prober._take({7: 10.0 / 1.2}, began + 2)
    assert prober.seen == [Seen(began, 2.0)] and prober._probes[7].published_at is None


def test_a_stall_is_charged_for_the_changes_that_were_due_meanwhile(prober: Prober) -> None:
    """A probe whose change is not visible cannot be changed again: changes that were due meanwhile would have waited, too."""
    sent: Any = Sent()
    prober._move_or_wait(sent, prober._probes[7], 100.0)
    for due in (101.0, 103.0):
        prober._move_or_wait(sent, prober._probes[7], due)
    began = prober._probes[7].published_at
    assert began is not None and len(sent.updates) == 1
    prober._take({7: 10.0 / 1.2}, 104.0)
    assert [s for s in prober.seen if s.published_at != began] == [Seen(101.0, 3.0), Seen(103.0, 1.0)] and not prober._probes[7].due


def test_a_change_that_never_shows_is_lost_and_infinitely_late(prober: Prober) -> None:
    sent: Any = Sent()
    prober._move(sent, prober._probes[7])
    prober._take({}, time.monotonic() + _LOST_AFTER_S + 1)
    assert [s.visible_s for s in prober.seen] == [math.inf]


def test_a_worker_that_has_ended_ends_the_bench_with_its_reason(prober: Prober) -> None:
    with pytest.raises(Unavailable, match=r"(?s)worker ended with exit code 1.*its disk is full"):
        prober._look()


def test_a_server_that_is_away_at_the_end_ends_the_bench_instead_of_having_lost_nothing() -> None:
    stage: Any = SimpleNamespace(source_ends=lambda: {0: (5, 0)})
    (port,) = free_ports(1)
    with closing(PlainClient(f"http://127.0.0.1:{port}")) as server, pytest.raises(Unavailable, match="gave no answer"):
        not_servable(stage, server)


@pytest.mark.parametrize(("ends", "behind"), [(5, 0), (8, 3)], ids=["all in the answer", "three are not"])
def test_what_the_watermark_of_an_answer_does_not_reach_is_lost(ends: int, behind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "_LOST_AFTER_S", 0.2)
    stage: Any = SimpleNamespace(source_ends=lambda: {0: (ends, 3)})
    with open_front(FakeEngine()) as front, closing(PlainClient(front.url)) as server:
        assert not_servable(stage, server) == behind


def test_changes_count_in_the_window_in_which_they_were_published(tmp_path: Path) -> None:
    figures = Figures(FRESHNESS)
    seen = [Seen(t, t / 1_000) for t in range(100)]
    _add_figures(figures, seen, (10, 20), [(50, 52), (60, 61)])
    assert figures.value("probes") == 10 and figures.value("probes_during_build") == 3
    assert figures.value("visible_p99_ms") == 19 and figures.value("visible_during_build_p99_ms") == 60
    assert figures.value("build_s") == 1.5
