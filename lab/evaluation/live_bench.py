"""`aif eval online --live`: the time from the announcement of a follower's checkpoint until its version is live, with real processes.

Each checkpoint takes the usual way: it is validated, built over all items, sealed, published and promoted. No server runs meanwhile; `aif bench switch`
measures the cost of serving during a build.
"""

import itertools
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from infra.figures import Figures
from infra.processes import Child, wait_until
from lab.catalogues.world import World, WorldSize
from lab.catalogues.world_catalogue import WorldCatalogue
from lab.figures.declared import read_bench
from lab.system.stage import BenchStage, open_bench_stage, tell
from schemas.errors import Unavailable

LIVE = read_bench("eval online --live")

CHECKPOINTS = 3
_EVERY_S_MIN, _ITEMS_PER_S = 5, 1_000  # the interval: a follower watches only its newest checkpoint, so it must be live before the next
_IMPRESSIONS = 200  # published between two looks at the status, so that there is something new to learn before each checkpoint
_LIVE_S_MAX = 1_800.0
_PAST = "1000000000000"  # seconds; no bound on the age of impressions, because those of the world are dated years ago


def measure_live(items: int) -> Figures:
    """Seconds from announcement to live of several checkpoints of one follower, over `items` items."""
    every_s = max(_EVERY_S_MIN, items // _ITEMS_PER_S)
    figures = Figures(LIVE, {"items": items, "checkpoints": CHECKPOINTS, "every_s": every_s})
    catalogue = WorldCatalogue(World(0, WorldSize(items=items, users=500, requests_per_user=40, shown_per_request=12)))
    with open_bench_stage() as stage:
        began = tell(f"{items} items: publish")
        stage.publish_catalogue(catalogue)
        with stage.publisher() as publisher:
            publisher.publish_users(catalogue.users())
            publisher.publish_behaviours(catalogue.behaviours())
        began = tell("apply and build the first version", began)
        worker = stage.start_worker()
        stage.wait_live(stage.publish_model(catalogue), worker)
        began = tell("follow", began)
        options = ("--follow", "--out", str(stage.directory / "checkpoints"), "--every", str(every_s), "--late-after", _PAST)
        follower = stage.start("follower", "train", *options)
        seconds = _follow(stage, catalogue, follower)
        tell(f"{len(seconds)} checkpoints live", began)
    figures.add("publish_to_live_s", statistics.median(seconds))
    figures.add("publish_to_live_max_s", max(seconds))
    figures.add("checkpoints", len(seconds))
    return figures


def _follow(stage: BenchStage, catalogue: WorldCatalogue, follower: Child) -> list[float]:
    """Seconds from announcement to live of each checkpoint that went live. Raises Unavailable (`nothing_went_live`)."""
    wait_until(lambda: any("ready" in line for line in _lines(follower)), _LIVE_S_MAX, "the follower to be ready", poll_s=0.1)
    impressions = itertools.cycle(catalogue.impressions())
    live: dict[int, float] = {}
    until = time.monotonic() + _LIVE_S_MAX
    while len(live) < CHECKPOINTS and time.monotonic() < until:
        assert follower.alive(), follower.log_tail()
        with stage.publisher() as publisher:
            publisher.publish_impressions(itertools.islice(impressions, _IMPRESSIONS))
        told = [line["published"] for line in _lines(follower) if line.get("published")]
        live |= {p["version"]: p["live_s"] for p in told if p["live_s"] is not None}
        time.sleep(0.5)
    if not live:
        raise Unavailable("nothing_went_live", f"no checkpoint was live before the next one was due; the follower said {told[-1:]}")
    return list(live.values())


def _lines(child: Child) -> list[Mapping[str, Any]]:
    """The status lines of a follower's log so far; other lines are left out."""
    return [json.loads(line) for line in child.log_path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
