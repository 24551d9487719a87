"""An object store loses answers, refuses, gives old lists, hides new objects and cuts bodies. Two workers publish, snapshot and remove at once, and a reader
loads the live version. Still each version goes live, verifies and agrees with the events."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from infra.index.control_log import ControlLog, ensure_init
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.store import IndexStore, open_index_store
from infra.index.verify import verify_version
from infra.processes import wait_until
from schemas.errors import Unavailable
from schemas.index.control_entry import decode_entry
from schemas.index.lifecycle import SERVABLE, State
from schemas.index.retention import RetentionRules
from streams.shard.log_ends import LogRange
from streams.shard.start import start_shard
from streams.versions.keepers import SnapshotTimes
from tests.infra.object_faults import CUT, FAILED, HIDDEN, LOST, REFUSED, FaultyLine, Rule
from tests.infra.object_server import ObjectServer, object_server
from tests.streams.shard_world import ManualClock, upsert
from tests.streams.version_world import Worker, World

VERSIONS, SHARDS, WAIT_S = 3, 2, 180.0
KEEP = RetentionRules(keep_versions=2, grace_ms=4_000)
PASSING = {"store_unreachable", "missing_file", "bad_manifest", "file_exists"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("moto")) as running:
        yield running


def make_rule(seed: int) -> Rule:
    """A fault in every sixth PUT and in every tenth read; an object is new for half a second."""
    chance, put_s = random.Random(seed), dict[str, float]()

    def rule(method: str, path: str) -> str:
        draw, key = chance.random(), path.partition("?")[0]
        if method == "PUT":
            put_s.setdefault(key, time.monotonic())
            return (LOST, REFUSED, FAILED)[int(draw * 18)] if draw < 1 / 6 else ""
        if draw < 0.4 and ("list-type" in path or time.monotonic() - put_s.get(key, -1e9) < 0.5):
            return HIDDEN
        return CUT if draw > 0.95 and method == "GET" else ""

    return rule


class RealClock(ManualClock):
    """The times of files in the store are real."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class Life:
    """Two workers and a reader in threads until it is left; `errors` counts their errors by code."""

    def __init__(self, world: World, stores: list[IndexStore]) -> None:
        self.errors: Counter[str] = Counter()
        self.workers = [self._open_worker(world, shard, stores[shard]) for shard in range(SHARDS)]
        self.loads, self._reader, self._log = 0, stores[SHARDS], ControlLog(stores[SHARDS])
        self._end = threading.Event()
        calls: list[Callable[[], object]] = [*(worker.step for worker in self.workers), self._load]
        self._threads = [threading.Thread(target=self._repeat, args=(call,)) for call in calls]

    def _open_worker(self, world: World, shard: int, store: IndexStore) -> Worker:
        world.store = store
        return Worker(world, (shard,), f"w{shard}", keep=KEEP, retry_s=0.1, snapshots=SnapshotTimes(1e12, 3), reseal_interval_s=1e12)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for worker in self.workers:
            worker.close()

    def _repeat(self, call: Callable[[], object]) -> None:
        while not self._end.wait(0.02):
            try:
                report = call()
                self.errors.update([*error.split(": "), ""][1] for error in getattr(report, "errors", ()))
            except Unavailable as error:
                self.errors[error.code] += 1
            except Exception as error:
                self.errors[repr(error)] += 1

    def _load(self) -> None:
        current = self._log.refresh().current
        if current is None or current.revision < 0:
            return
        manifest = read_manifest(self._reader, current)
        for seal in manifest.seals:
            assert sum(len(block) for block in read_full_part(self._reader, seal.full, manifest.layout)) == seal.full.rows
            assert len(list(read_incremental_part(self._reader, seal.incremental))) == seal.incremental.rows + seal.incremental.tombstones
        self.loads += 1


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_versions_over_a_store_that_fails_all_the_time_go_live_verify_and_are_what_the_events_say(
    server: ObjectServer, tmp_path: Path, seed: int
) -> None:
    bucket = server.new_bucket()
    good = open_index_store(f"s3://{bucket}/p?endpoint={server.endpoint}&cache_dir={tmp_path / 'good'}")
    world = World(tmp_path, SHARDS)
    world.clock = RealClock()
    ensure_init(ControlLog(good), world.init, 0, "test")
    world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i) for i in range(60)))
    with FaultyLine(server) as line:
        stores = [open_index_store(f"s3://{bucket}/p?endpoint={line.endpoint}&cache_dir={tmp_path / str(n)}") for n in range(SHARDS + 1)]
        with Life(world, stores) as life:
            world.store = good
            line.rule = make_rule(seed)
            for version in range(1, VERSIONS + 1):
                world.want(version, version % 2)
                wait_until(lambda version=version: world.state.live == version, WAIT_S, f"version {version}")
                world.publish_items(upsert(version, 5 + version, price=3.0), upsert(100 + version, 1, price=1.0))
            line.rule = lambda *_: ""
        assert line.seen and life.loads and set(life.errors) <= PASSING, life.errors
    entries = [decode_entry(good.get(path)) for path in good.list("control/")]
    assert max(Counter((entry.kind, entry.version, entry.revision) for entry in entries).values()) == 1
    kept = [status for status in world.state.versions.values() if status.state in SERVABLE or status.state is State.FROZEN]
    assert [verify_version(good, status).faults for status in kept] == [()] * len(kept)
    for shard in range(SHARDS):
        log = {topic: LogRange(min(end, 1), end) for topic, end in world.sources_end(shard).items()}
        start_shard(tmp_path / f"new-{shard}", shard, world.init, "index", world.clock, log, good).close()
