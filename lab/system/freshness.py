"""`aif bench freshness`: from before the produce call to an answer with the right new score, under load, and while a full build runs.

    load      updates at a given rate, one per record, over the whole catalogue but the probes
    probes    items of which only the bid changes; the score is y * bid, so the right new score is known: the old one times the ratio of the bids
    looker    asks the server for all probes over and over; a probe is visible at the end of the first answer that has its right score

A probe is changed again only when its last change is visible. A change that is due earlier counts from that time until the last one is visible, because it
could not have been visible earlier. Without this rule a stall would be charged to at most one change of each probe.
All versions have the same random model, so a flip changes no score.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from infra.figures import Figures
from infra.kafka.publisher import Publisher
from infra.processes import Child, wait_until
from lab.background import Background
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.figures.declared import read_bench
from lab.plain_client import PlainClient
from lab.system.stage import BenchStage, open_bench_stage, tell
from schemas.errors import Unavailable
from schemas.events import ItemFeaturesUpdate
from schemas.topics import ITEM_FEATURES

FRESHNESS = read_bench("bench freshness")

_PROBES = 64
_PROBE_EVERY_S = 0.04
_LOOK_EVERY_S = 0.008
_PACE_S = 0.01
_SCORE_TOLERANCE = 1e-4  # relative; a step of a bid is 20 percent
_LOST_AFTER_S = 120.0  # longer than anything that is only late
_WARM_UP_S = 3.0
_READY_S_MAX = 120.0
_FIRST_VERSION = 1 << 50  # event versions of probes: above those of the catalogue
_CHANGES_AT_ONCE = 4_096


@dataclass
class Probe:
    """One item whose bid the bench changes. Its last change was published at `published_at`, None once it is visible. Further changes were due at
    `due` meanwhile."""

    update: ItemFeaturesUpdate
    score: float = math.nan  # the last right one
    wanted: float = math.nan
    published_at: float | None = None
    due: list[float] = field(default_factory=list)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_VERSION))


@dataclass(frozen=True, slots=True)
class Seen:
    """A change that became visible `visible_s` after it was published, or was due; math.inf if it never did."""

    published_at: float
    visible_s: float


class Prober(Background):
    """Publishes changes of the probes in one thread and looks for them in another. Use as a context manager."""

    def __init__(self, stage: BenchStage, updates: list[ItemFeaturesUpdate], worker: Child) -> None:
        self._stage, self._worker = stage, worker
        self._probes = {u.item_id: Probe(u) for u in updates}
        self._lock = threading.Lock()
        self.seen: list[Seen] = []
        super().__init__(self._publish, self._look)

    def __enter__(self) -> Self:
        with self._stage.publisher() as publisher:  # known bids, and a first answer with them
            for probe in self._probes.values():
                publisher.publish_update(probe.update)
        wait_until(self._has_scores, _READY_S_MAX, "the first scores of the probes")
        return super().__enter__()

    def _has_scores(self) -> bool:
        server = PlainClient(self._stage.url)
        scores = self._ask(server)
        server.close()
        for item, probe in self._probes.items():
            probe.score = scores.get(item, math.nan)
        return all(not math.isnan(probe.score) for probe in self._probes.values())

    def _publish(self) -> None:
        with self._stage.publisher() as publisher:
            for probe in itertools.cycle(self._probes.values()):
                if self.stopping.wait(_PROBE_EVERY_S):
                    return
                self._move_or_wait(publisher, probe, time.monotonic())

    def _move_or_wait(self, publisher: Publisher, probe: Probe, now: float) -> None:
        """Changes a probe; if its last change is not visible yet, notes that one was due."""
        with self._lock:
            if waits := probe.published_at is not None:
                probe.due.append(now)
        if not waits:
            self._move(publisher, probe)

    def _move(self, publisher: Publisher, probe: Probe) -> None:
        bid = probe.update.features["bid"]
        assert isinstance(bid, int | float)
        moved = bid * 1.2 if bid < 1.0 else bid / 1.2
        features = {**probe.update.features, "bid": moved}
        probe.update = ItemFeaturesUpdate(item_id=probe.update.item_id, version=next(probe.versions), features=features)
        with self._lock:
            probe.wanted = probe.score * moved / bid
            probe.published_at = time.monotonic()
        publisher.publish_update(probe.update)

    def _look(self) -> None:
        """Until the last change before the end of the block is visible or lost. Raises Unavailable where the worker has ended: none will be."""
        server = PlainClient(self._stage.url)
        while not (self.stopping.is_set() and all(p.published_at is None for p in self._probes.values())):
            self._worker.check()
            self._take(self._ask(server), time.monotonic())
            time.sleep(_LOOK_EVERY_S)
        server.close()

    def _ask(self, server: PlainClient) -> dict[Any, float]:
        body = {"user_id": 1, "item_ids": list(self._probes), "top_k": len(self._probes), "deadline_ms": 30_000}
        return {item["item_id"]: item["score"] for item in server.prerank(body).answer["items"]}

    def _take(self, scores: dict[Any, float], now: float) -> None:
        for item, probe in self._probes.items():
            with self._lock:
                began, wanted = probe.published_at, probe.wanted
            if began is None:
                continue
            if math.isclose(scores.get(item, math.nan), wanted, rel_tol=_SCORE_TOLERANCE):
                self._end(probe, Seen(began, now - began))
            elif now - began > _LOST_AFTER_S:
                self._end(probe, Seen(began, math.inf))

    def _end(self, probe: Probe, seen: Seen) -> None:
        visible_at = seen.published_at + seen.visible_s
        with self._lock:
            due, probe.due = probe.due, []
            probe.score, probe.published_at = probe.wanted, None
        self.seen += [seen, *(Seen(at, visible_at - at) for at in due if math.isfinite(visible_at))]


class Load(Background):
    """Events at a steady rate: `send(publisher, n)` publishes the next n. Use as a context manager; `per_s` is the rate that was reached."""

    def __init__(self, stage: BenchStage, rate: float, send: Callable[[Publisher, int], None]) -> None:
        self._stage, self._rate, self._send = stage, rate, send
        self.sent, self.seconds = 0, 0.0
        super().__init__(self._run)

    @property
    def per_s(self) -> float:
        return self.sent / self.seconds

    def _run(self) -> None:
        began = time.monotonic()
        with self._stage.publisher() as publisher:
            while not self.stopping.wait(_PACE_S):
                due = int((time.monotonic() - began) * self._rate) - self.sent
                self._send(publisher, due)
                self.sent += due
            self.seconds = time.monotonic() - began


def send_changes(catalogue: Catalogue, spared: set[Any]) -> Callable[[Publisher, int], None]:
    """The `send` of a `Load` of item updates: price changes of all items but the spared ones, without end."""
    drawn = (u for seed in itertools.count(1) for u in catalogue.price_changes(_CHANGES_AT_ONCE, seed))
    changes = (u for u in drawn if u.item_id not in spared)

    def send(publisher: Publisher, count: int) -> None:
        for update in itertools.islice(changes, count):
            publisher.publish_update(update)

    return send


def measure_freshness(rate: float, seconds: float, items: int, builds: int) -> Figures:
    """Steady for `seconds`, then through `builds` full builds, all at `rate` updates per second."""
    figures = Figures(FRESHNESS, {"rate": rate, "seconds": seconds, "items": items, "builds": builds})
    catalogue = open_world(items)
    with open_bench_stage() as stage, ExitStack() as ending:
        began = tell("publish the catalogue, build, load")
        stage.publish_catalogue(catalogue)
        worker = stage.start_worker()
        stage.wait_live(stage.publish_model(catalogue), worker)
        server = ending.enter_context(closing(stage.start_server()))
        began = tell("steady", began)
        probed = list(itertools.islice(catalogue.items(), _PROBES))
        load = Load(stage, rate, send_changes(catalogue, {u.item_id for u in probed}))
        with Prober(stage, probed, worker) as prober, load:
            steady = (time.monotonic() + _WARM_UP_S, time.monotonic() + _WARM_UP_S + seconds)
            prober.stopping.wait(_WARM_UP_S + seconds)
            tell("full builds", began)
            building = [_build(stage, catalogue, worker) for _ in range(builds)]
        left = not_servable(stage, server)
    _add_figures(figures, prober.seen, steady, building)
    figures.add("rate_per_s", load.per_s)
    figures.add("lost", sum(math.isinf(s.visible_s) for s in prober.seen) + left)
    return figures


def _build(stage: BenchStage, catalogue: Catalogue, worker: Child) -> tuple[float, float]:
    """One more version, from its announcement until it is live."""
    began = time.monotonic()
    stage.wait_live(stage.publish_model(catalogue), worker)
    return began, time.monotonic()


def not_servable(stage: BenchStage, server: PlainClient) -> int:
    """Updates that the server's answers do not contain a while after the last: by the watermark of an answer against the ends of the topic."""
    ends, behind = stage.source_ends(), [0]

    def reached() -> bool:
        answer = server.prerank({"user_id": 1, "item_ids": [1], "deadline_ms": 30_000}).answer
        by_shard = answer["freshness"]["watermark"]
        behind[0] = sum(max(0, offsets[0] - by_shard[shard][ITEM_FEATURES]) for shard, offsets in ends.items())
        return behind[0] == 0

    try:
        wait_until(reached, _LOST_AFTER_S, "every update in an answer")
    except Unavailable as error:
        if error.code != "timed_out":  # a server that answers nothing has lost nothing that can be counted
            raise
    return behind[0]


def _add_figures(figures: Figures, seen: list[Seen], steady: tuple[float, float], building: list[tuple[float, float]]) -> None:
    in_steady = [s.visible_s for s in seen if steady[0] <= s.published_at < steady[1]]
    in_builds = [s.visible_s for s in seen if any(a <= s.published_at < b for a, b in building)]
    figures.add("visible_p50_ms", percentile_ms(in_steady, 50))
    figures.add("visible_p99_ms", percentile_ms(in_steady, 99))
    figures.add("visible_during_build_p50_ms", percentile_ms(in_builds, 50))
    figures.add("visible_during_build_p99_ms", percentile_ms(in_builds, 99))
    figures.add("probes", len(in_steady))
    figures.add("probes_during_build", len(in_builds))
    figures.add("build_s", float(np.mean([b - a for a, b in building])) if building else None)


def percentile_ms(seconds: list[float], percent: float) -> float | None:
    """Of the visible changes; a lost one is counted apart and is infinitely late here."""
    return 1e3 * float(np.percentile(seconds, percent, method="higher")) if seconds else None
