"""`aif bench soak`: mixed load for as long as asked, and whether anything grows with time.

load      item updates, deletes, embeddings and bad records (crash_traffic.py); behaviours; requests; a new version now and then
bounds    a cache grows until it is full, and a heap until its maximum. With the usual bounds that takes hours, so here they are lower (`_BOUNDS`)
samples   of broker, worker and server: resident memory and open files; table files of the shards and of the view of users; files in the store
slope     of each series after the settling time: the median of the slopes between all pairs of samples (Theil-Sen), an hour. Short peaks, such
      as a build's, do not move it
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from scipy.stats import theilslopes

from infra.figures import Figures
from lab.background import Background
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.figures.declared import read_bench
from lab.plain_client import PlainClient
from lab.system.crash_traffic import Traffic
from lab.system.stage import BenchStage, open_bench_stage, tell
from schemas.errors import Unavailable
from schemas.events import Behaviour
from schemas.ids import IdKind

SOAK = read_bench("bench soak")

BEHAVIOURS_PER_S, REQUESTS_PER_S = 50, 5
CANDIDATES = 500
_USERS = 50  # each has as many behaviours as the model reads within 20 minutes, so their states stop growing while the load settles
_SAMPLES = 400  # of a run; at least a second apart
_JUDGED_S_MIN = 600.0  # of a slope
_GRACE_S = (
    60.0  # after it the store removes the files of old versions: with the default of a day their number would grow through the whole run
)
_BROKER_HEAP_MIB = 112  # of which 61 are in use
_BOUNDS = {
    "AIF_BUILD__SNAPSHOT_EVERY_UPDATES": "5000",
    "AIF_INDEX__REMOVE_AFTER_S": str(_GRACE_S),
    "AIF_USERS__DECODED_BEHAVIOURS_MAX": "20000",
}

Series = Mapping[str, Callable[[], float]]


def slope_per_h(times_s: Sequence[float], values: Sequence[float]) -> float | None:
    """The median of the slopes between all pairs of samples, an hour; None of fewer than two samples."""
    if len(times_s) < 2:
        return None
    return float(theilslopes(values, times_s).slope) * 3600.0


class UserTraffic(Background):
    """Behaviours of users in one thread, requests in another. Use as a context manager; `answers` and `refused` are counted."""

    def __init__(self, stage: BenchStage, catalogue: Catalogue) -> None:
        self._stage = stage
        self._items = [update.item_id for update in itertools.islice(catalogue.items(), CANDIDATES)]
        self.answers = self.refused = 0
        super().__init__(self._behave, self._ask)

    def _behave(self) -> None:
        with self._stage.publisher() as publisher:
            for n in itertools.count():
                if self.stopping.wait(1 / BEHAVIOURS_PER_S):
                    return
                item = self._items[n % len(self._items)]
                publisher.publish_behaviour(Behaviour(user_id=n % _USERS, item_id=item, time_ms=int(time.time() * 1e3)))

    def _ask(self) -> None:
        server = PlainClient(self._stage.url)
        for n in itertools.count():
            if self.stopping.wait(1 / REQUESTS_PER_S):
                break
            try:
                server.prerank({"user_id": n % _USERS, "item_ids": self._items, "top_k": 100, "deadline_ms": 5_000})
                self.answers += 1
            except Unavailable:
                self.refused += 1
        server.close()


def measure_soak(seconds: float, settle_s: float, items: int, rate: float, version_every_s: float) -> Figures:
    """The mixed load for `seconds`; slopes from `settle_s` on. Raises Unavailable where a process ends."""
    config = {"seconds": seconds, "settle_s": settle_s, "items": items, "rate": rate, "version_every_s": version_every_s}
    figures, catalogue = Figures(SOAK, config), open_world(items)
    with open_bench_stage(IdKind.INT64, _BROKER_HEAP_MIB, **_BOUNDS) as stage:
        began = tell("publish the catalogue, build, load")
        stage.publish_catalogue(catalogue)
        worker = stage.start_worker()
        stage.wait_live(stage.publish_model(catalogue), worker)
        stage.start_server().close()
        service = stage.services[-1]
        assert stage.broker is not None, "the soak starts a broker of its own"
        series = _series(stage.directory, {"broker": stage.broker.child.pid, "worker": worker.pid, "server": service.child.pid})
        tell("load", began)
        times, samples, versions = list[float](), {name: list[float]() for name in series}, 1
        with Traffic(stage, catalogue, rate, seed=1) as traffic, UserTraffic(stage, catalogue) as users:
            started = time.monotonic()
            while (now := time.monotonic() - started) < seconds:
                worker.check()
                service.check()
                if now > versions * version_every_s:
                    stage.publish_model(catalogue, seed=versions)
                    versions += 1
                times.append(now)
                for name, read in series.items():
                    samples[name].append(read())
                users.stopping.wait(max(1.0, seconds / _SAMPLES))
                if users.stopping.is_set() or traffic.stopping.is_set():
                    break  # the error is raised at the end of the block
        figures.add("acknowledged", len(traffic.acknowledged))
        figures.add("answers", users.answers)
        figures.add("refused", users.refused)
        figures.add("versions", versions)
    _add_slopes(figures, times, samples, settle_s)
    return figures


def _series(directory: Path, pids: Mapping[str, int]) -> Series:
    """The series to sample, by name."""
    found: dict[str, Callable[[], float]] = {}
    for process, pid in pids.items():
        found[f"{process}_rss_mib"] = partial(_rss_mib, pid)
        found[f"{process}_open_files"] = partial(_open_files, pid)
    found["shards_table_files"] = partial(_count, directory / "worker", ".sst")
    found["users_table_files"] = partial(_count, directory / "users", ".sst")
    found["store_files"] = lambda: _count(directory / "index") - _count(directory / "index" / "control")
    return found


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _open_files(pid: int) -> float:
    return float(len(os.listdir(f"/proc/{pid}/fd")))


def _count(folder: Path, ending: str = "") -> float:
    """Files below a folder. Files come and go meanwhile."""
    return float(sum(name.endswith(ending) for _, _, names in os.walk(folder) for name in names))


def _add_slopes(figures: Figures, times: Sequence[float], samples: Mapping[str, Sequence[float]], settle_s: float) -> None:
    settled = [n for n, at in enumerate(times) if at >= settle_s]
    is_long = len(settled) > 1 and times[settled[-1]] - times[settled[0]] >= _JUDGED_S_MIN
    for series, values in samples.items():
        figures.add(f"{series}_per_h", slope_per_h([times[n] for n in settled], [values[n] for n in settled]) if is_long else None)
        figures.add(f"{series}_end", values[-1] if values else None)
