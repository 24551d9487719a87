"""`aif bench crash`: a worker, its builders and the broker are killed again and again under traffic; then everything is counted.

    kinds     kill -9 at a named failpoint (infra/failpoints.py), kill -9 at a random moment, SIGSTOP for longer than the session timeout and
              then CONT, kill -9 of the broker, a disk that is full or broken for some seconds, kill -9 of a process that the worker started
              (a builder, their template, the judge of checkpoints), a second worker that joins and leaves, a storm of joins, a database file
              that is cut or changed, a start while the broker is away, foreign records in every topic; a new checkpoint now and then, so that
              builds and seals are hit too; transactions, half of them aborted, all the time
    recovery  without a hand: the worker is started again at once, as a service manager would; caught up = readers were told that everything
              published before the kill is applied
    judged    by a plain fold of the topics (crash_fold.py) against the counters of the shards and the set of dead letters, and by the digest
              of a replay

Everything is drawn from `seed`; moments are real, so a run is repeatable in kind, not in detail.
"""

import contextlib
import itertools
import os
import random
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.broker.server import start_broker
from infra.failpoints import DISK_BROKEN, DISK_FULL, DISK_VARIABLE, VARIABLE, VERSIONING, WRITING
from infra.figures import Figures
from infra.kafka.producer import open_producer
from infra.processes import Child, wait_until
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.demo.stage import SHARDS
from lab.figures.declared import read_bench
from lab.system.crash_judge import judge
from lab.system.crash_traffic import Traffic
from lab.system.faulty_disk import build_faulty_disk, has_compiler
from lab.system.stage import Applied, AppliedWatch, BenchStage, open_bench_stage, started_by, tell
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, TOPICS

CRASH = read_bench("bench crash")

SESSION_TIMEOUT_S = 6.0
_FROZEN_FACTOR = 1.5
_FAILPOINT_S_MAX = 20.0  # a failpoint that is not passed by then: killed at that moment instead
_CATCH_UP_S_MAX = 120.0
_RANDOM_S = (0.2, 4.0)
_PASSES_MAX = dict.fromkeys(WRITING, 40) | dict.fromkeys(VERSIONING, 3) | {"before-checkpoint": 2}
_DISK_FAILS_S = 3.0  # for so long
_CALL_FAILS_EVERY = 10
_AWAY_S = 4.0  # a broker, while a worker starts
_STORM = 2  # workers, and times
_FOREIGN = (b"", b"{}", b"\xff" * 40, b"[" * 100_000, b"x" * RECORD_BYTES_MAX)
FAILPOINT, MOMENT, FREEZE, BROKER, BUILDER, JOIN = "failpoint", "moment", "freeze", "broker", "builder", "join"
DAMAGE, AWAY, FOREIGN, STORM = "damage", "away", "foreign", "storm"
FULL, BROKEN, FLAKY = "disk_full", "disk_broken", "disk_flaky"
_WEIGHTS = {
    FAILPOINT: 48,
    MOMENT: 33,
    FREEZE: 4,
    BROKER: 5,
    FULL: 3,
    BROKEN: 3,
    BUILDER: 4,
    JOIN: 4,
    FLAKY: 3,
    DAMAGE: 6,
    AWAY: 3,
    FOREIGN: 3,
    STORM: 2,
}
_DISK_FAULTS = {FULL: DISK_FULL, BROKEN: DISK_BROKEN, FLAKY: "flaky"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One kill: its kind, the failpoint and the pass, or the moment after which it comes; whether a checkpoint is published before."""

    kind: str
    name: str = ""
    passes: int = 1
    after_s: float = 0.0

    @property
    def new_version(self) -> bool:
        return self.name in VERSIONING or self.name == "before-checkpoint" or self.kind in (BUILDER, FLAKY)


def plan_kills(kills: int, seed: int, weights: Mapping[str, int] = _WEIGHTS) -> list[Plan]:
    """The campaign. Every kind is in it where there is room: failpoints first, then the rest in proportion, shuffled."""
    chance = random.Random(seed)
    names = [*WRITING, *VERSIONING]
    plans = []
    for n in range(kills):
        kind = chance.choices(list(weights), list(weights.values()))[0] if n >= len(weights) else list(weights)[n]
        if kind == FAILPOINT:
            name = chance.choice(names)
            plans.append(Plan(kind, name, chance.randint(1, _PASSES_MAX[name])))
        else:
            plans.append(Plan(kind, after_s=chance.uniform(*_RANDOM_S)))
    chance.shuffle(plans)
    return plans


@dataclass
class Campaign:
    """The worker under attack and what happened so far. `disk`: the folder of the files that let disks fail."""

    stage: BenchStage
    catalogue: Catalogue
    watch: AppliedWatch
    disk: Path
    preloaded: Mapping[str, str]  # environment of a disk on which single calls fail
    catch_up_s: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    versions: int = 1
    restarts: int = 0  # of a worker that ended by itself
    joins: list[tuple[int, int, int]] = field(default_factory=list)  # from and to, in ms of the clock, and the shard that stayed
    armed: Plan | None = None
    worker: Child = field(init=False)

    def start_worker(self, plan: Plan | None) -> None:
        """A worker with the next plan's failpoint armed."""
        environment = {DISK_VARIABLE: str(self.disk), **self.preloaded}
        if plan is not None and plan.kind == FAILPOINT:
            self._fired.unlink(missing_ok=True)
            environment[VARIABLE] = f"{plan.name}:{plan.passes}:{self._fired}"
        self.armed = plan
        self.worker = self.stage.start_worker(**environment)

    @property
    def _fired(self) -> Path:
        return self.stage.directory / "fired"

    def kill(self, plan: Plan, following: Plan | None) -> None:
        """Carries out one plan and waits until everything published before it is applied again."""
        if plan.new_version:
            self.stage.publish_model(self.catalogue, seed=self.versions)
            self.versions += 1
        if plan.kind not in (FAILPOINT, MOMENT):
            time.sleep(plan.after_s)
            acts = {
                FREEZE: self._freeze,
                BROKER: self._kill_broker,
                BUILDER: lambda: self._kill_builder(plan),
                JOIN: self._join,
                DAMAGE: lambda: self._damage_database(plan),
                AWAY: self._start_without_broker,
                FOREIGN: self._send_foreign,
                STORM: self._storm,
            }
            began = (acts.get(plan.kind) or (lambda: self._fail_disk(_DISK_FAULTS[plan.kind])))()
        else:
            self._wait_moment(plan)
            began = time.monotonic()
            self._kill_worker()
            self.start_worker(following)
        self.watch.wait(self._ends_from_now(), _CATCH_UP_S_MAX, self._supervise)
        self.catch_up_s.append(time.monotonic() - began)
        self.kinds[plan.kind] += 1

    def _supervise(self) -> None:
        """Starts a worker that ended again, as a service manager does: one that ended by itself, or whose failpoint came during a recovery."""
        if not self.worker.alive():
            self._kill_worker()
            self.restarts += not self._fired.exists()
            self.start_worker(None)

    def _kill_worker(self) -> None:
        self.worker.kill()
        self.stage.children.remove(self.worker)

    def _wait_moment(self, plan: Plan) -> None:
        if plan.kind == FAILPOINT and plan is self.armed:
            end = time.monotonic() + _FAILPOINT_S_MAX
            while not self._fired.exists() and self.worker.alive() and time.monotonic() < end:
                self.watch.poll()
            return
        time.sleep(plan.after_s or _RANDOM_S[0])

    # Each returns when the recovery began (monotonic).

    def _freeze(self) -> float:
        """A process that stands still for longer than its session, and then continues."""
        os.killpg(self.worker.pid, signal.SIGSTOP)
        time.sleep(_FROZEN_FACTOR * SESSION_TIMEOUT_S)
        began = time.monotonic()
        os.killpg(self.worker.pid, signal.SIGCONT)
        return began

    def _kill_broker(self) -> float:
        began = time.monotonic()
        self._lose_broker(lambda: None)
        return began

    def _lose_broker(self, meanwhile: Callable[[], None]) -> None:
        broker = self.stage.broker
        assert broker is not None, "the bench kills a broker of its own only"
        broker.kill()
        meanwhile()
        self.stage.broker = start_broker(broker.data_dir)
        assert self.stage.broker.bootstrap_servers == broker.bootstrap_servers, "the broker came back at another address"

    def _start_without_broker(self) -> float:
        """The worker starts while the broker is away."""

        def start() -> None:
            self._kill_worker()
            self.start_worker(None)
            time.sleep(_AWAY_S)

        self._lose_broker(start)
        return time.monotonic()

    def _damage_database(self, plan: Plan) -> float:
        """While the worker is away, a file of one of its databases is cut, or a bit of it changes."""
        chance = random.Random(plan.after_s)
        self._kill_worker()
        shards = self.stage.directory / "worker" / "shards"
        file = chance.choice(sorted(path for path in shards.glob("[0-9][0-9][0-9][0-9][0-9]/*") if path.is_file() and path.stat().st_size))
        raw = bytearray(file.read_bytes())
        if chance.random() < 0.5:
            del raw[chance.randrange(len(raw)) :]
        else:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        file.unlink()  # a snapshot that links to it stays whole
        file.write_bytes(raw)
        tell(f"damaged {file.relative_to(shards)}")
        self.start_worker(None)
        return time.monotonic()

    def _send_foreign(self) -> float:
        """Records that are none of ours, small and large, in every topic but those of dead letters."""
        producer = open_producer(self.stage.bootstrap_servers, _CATCH_UP_S_MAX)
        for topic in TOPICS:
            for value in (*_FOREIGN, None) if not topic.name.startswith(DEAD_LETTER_PREFIX) else ():
                producer.produce(self.stage.topic_prefix + topic.name, value, b"foreign", 0)
        producer.flush(_CATCH_UP_S_MAX)
        return time.monotonic()

    def _storm(self) -> float:
        """Several workers that join at once, and die as soon as one of them has a shard; again and again."""
        for _ in range(_STORM):
            folders = [str(self.stage.directory / f"storm-{n}") for n in range(_STORM)]
            many = [self.stage.start_worker(Path(folder).name, AIF_WORKER__DATA_DIR=folder) for folder in folders]
            self._wait_joined(many)
            for child in many:
                child.kill()
                self.stage.children.remove(child)
        return time.monotonic()

    def _kill_builder(self, plan: Plan) -> float:
        """One of the processes that the worker started, while a new version is on its way; which goes live all the same."""
        chance = random.Random(plan.after_s)

        def killed() -> bool:
            self._supervise()
            with contextlib.suppress(ProcessLookupError, IndexError):  # it has just ended, or none runs yet
                os.kill(chance.choice(sorted(started_by(self.worker))), signal.SIGKILL)
                return True
            return False

        wait_until(killed, _CATCH_UP_S_MAX, "a process that the worker started")
        return time.monotonic()

    def _join(self) -> float:
        """A second worker with a directory of its own takes one shard, and gives it back."""
        began_ms = int(time.time() * 1e3)
        second = self.stage.start_worker(f"second-{len(self.joins)}", AIF_WORKER__DATA_DIR=str(self.stage.directory / "second"))
        taken = self._wait_joined([second])
        time.sleep(_RANDOM_S[0])
        self.stage.stop_worker(second)
        self.joins.append((began_ms, int(time.time() * 1e3), next(shard for shard in range(SHARDS) if shard != taken)))
        return time.monotonic()

    def _wait_joined(self, workers: Sequence[Child]) -> int:
        """The shard that one of them has taken."""
        owns = re.compile(r"shards owned: \[(\d)\]")

        def taken() -> list[str]:
            self._supervise()
            for worker in workers:
                worker.check()
            return [shard for worker in workers for shard in owns.findall(worker.log_path.read_text())]

        wait_until(lambda: bool(taken()), _CATCH_UP_S_MAX, "another worker to own a shard")
        return int(taken()[-1])

    def _fail_disk(self, fault: str) -> float:
        """Every write of the worker and its builders fails for a while, or some calls do. It has to consume these records again."""
        switch = self.disk / fault
        switch.touch()
        time.sleep(_DISK_FAILS_S)
        switch.unlink()
        return time.monotonic()

    def _ends_from_now(self) -> dict[int, tuple[int, ...]]:
        """End offsets with something in every shard that came after this moment: only who is back can have applied it."""
        before, ends = self.stage.source_ends(), dict[int, tuple[int, ...]]()

        def all_grew() -> bool:
            ends.update(self.stage.source_ends())
            return all(sum(ends[shard]) > sum(offsets) for shard, offsets in before.items())

        wait_until(all_grew, _CATCH_UP_S_MAX, "the traffic to go on", poll_s=0.05)
        return ends

    def stop(self) -> None:
        """Everything applied, one more version live, the worker ended cleanly."""
        self.watch.wait(self.stage.source_ends(), _CATCH_UP_S_MAX, self._supervise)
        self.stage.wait_live(self.stage.publish_model(self.catalogue, seed=self.versions), self.worker)
        self.stage.stop_worker(self.worker)


def measure_crash(kills: int, seed: int, items: int, updates_per_s: float, kinds: Mapping[str, int] = _WEIGHTS) -> Figures:
    """The whole campaign, of these kinds with their weights. Raises Unavailable where a recovery did not come by itself."""
    config: dict[str, Any] = {"kills": kills, "seed": seed, "items": items, "updates_per_s": updates_per_s}
    figures = Figures(CRASH, {**config, "session_timeout_s": SESSION_TIMEOUT_S})
    flaky = has_compiler()
    catalogue, plans = open_world(items), plan_kills(kills, seed, {k: w for k, w in kinds.items() if flaky or k != FLAKY})
    settings = {"AIF_WORKER__SESSION_TIMEOUT_S": f"{SESSION_TIMEOUT_S:g}", "AIF_BUILD__SNAPSHOT_EVERY_UPDATES": "2000"}
    with open_bench_stage(**settings) as stage, AppliedWatch(stage) as watch:
        stage.publish_catalogue(catalogue)
        (disk := stage.directory / "failing-disk").mkdir()
        preloaded = build_faulty_disk(stage.directory, disk / _DISK_FAULTS[FLAKY], _CALL_FAILS_EVERY) if flaky else {}
        campaign = Campaign(stage, catalogue, watch, disk, preloaded)
        campaign.start_worker(None)
        stage.wait_live(stage.publish_model(catalogue), campaign.worker)
        with Traffic(stage, catalogue, updates_per_s, seed) as traffic:
            for n, plan in enumerate(plans):
                campaign.kill(plan, plans[n + 1] if n + 1 < len(plans) else None)
                tell(f"kill {n + 1} of {kills}: {plan.kind} {plan.name}, caught up after {campaign.catch_up_s[-1]:.1f} s")
        campaign.stop()
        judge(stage, traffic, figures)
        _add_campaign(campaign, figures)
    return figures


def _add_campaign(campaign: Campaign, figures: Figures) -> None:
    figures.add("kills", campaign.kinds.total())
    for kind in _WEIGHTS:
        figures.add(f"kills_{kind}", campaign.kinds[kind])
    figures.add("restarts", campaign.restarts)
    figures.add("catch_up_p50_s", statistics.median(campaign.catch_up_s))
    figures.add("catch_up_over_session", statistics.median(campaign.catch_up_s) / SESSION_TIMEOUT_S)
    figures.add("catch_up_max_s", max(campaign.catch_up_s))
    pauses = [_longest_pause_s(campaign.watch.seen, *join) for join in campaign.joins]
    figures.add("join_pause_over_session", statistics.median(pauses) / SESSION_TIMEOUT_S if pauses else None)


def _longest_pause_s(seen: Sequence[Applied], from_ms: int, to_ms: int, shard: int) -> float:
    """The longest time in which nothing of a shard was applied."""
    at_ms = sorted(one.at_ms for one in seen if one.shard == shard and from_ms <= one.at_ms <= to_ms)
    return max(later - earlier for earlier, later in itertools.pairwise([from_ms, *at_ms, to_ms])) / 1e3
