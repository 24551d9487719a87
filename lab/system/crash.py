"""`aif bench crash`: a worker, its builders and the broker are killed again and again under traffic; then everything is counted.

    kinds     kill -9 at a named failpoint (infra/failpoints.py), kill -9 at a random moment, SIGSTOP for longer than the session timeout and
              then CONT, kill -9 of the broker, a disk that is full or broken for some seconds, kill -9 of a process that the worker started
              (a builder, their template, the judge of checkpoints), a second worker that joins and leaves; a new checkpoint now and then, so that
              builds and seals are hit too
    recovery  without a hand: the worker is started again at once, as a service manager would; caught up = readers were told that everything
              published before the kill is applied
    judged    by a plain fold of the topics (crash_fold.py) against the counters of the shards and the set of dead letters, and by the digest
              of a replay

Everything is drawn from `seed`; moments are real, so a run is repeatable in kind, not in detail.
"""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.broker.server import start_broker
from infra.failpoints import DISK_BROKEN, DISK_FULL, DISK_VARIABLE, VARIABLE, VERSIONING, WRITING
from infra.figures import Figures
from infra.kafka.dead_letters import dead_letter_topic, decode_dead_letter
from infra.kafka.reader import read_topic
from infra.processes import Child, wait_until
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.demo.stage import SHARDS, json_figures
from lab.figures.declared import read_bench
from lab.system.crash_fold import DeadLetter, count_topic
from lab.system.crash_traffic import Traffic
from lab.system.faulty_disk import build_faulty_disk, has_compiler
from lab.system.stage import Applied, AppliedWatch, BenchStage, open_bench_stage, started_by, tell
from schemas.topics import SHARD_TOPICS

CRASH = read_bench("bench crash")

SESSION_TIMEOUT_S = 6.0
_FROZEN_FACTOR = 1.5
_FAILPOINT_S_MAX = 20.0  # a failpoint that is not passed by then: killed at that moment instead
_CATCH_UP_S_MAX = 120.0
_RANDOM_S = (0.2, 4.0)
_PASSES_MAX = dict.fromkeys(WRITING, 40) | dict.fromkeys(VERSIONING, 3) | {"before-checkpoint": 2}
_DISK_FAILS_S = 3.0  # for so long
_CALL_FAILS_EVERY = 10
FAILPOINT, MOMENT, FREEZE, BROKER, BUILDER, JOIN = "failpoint", "moment", "freeze", "broker", "builder", "join"
FULL, BROKEN, FLAKY = "disk_full", "disk_broken", "disk_flaky"
_WEIGHTS = {FAILPOINT: 48, MOMENT: 33, FREEZE: 4, BROKER: 5, FULL: 3, BROKEN: 3, BUILDER: 4, JOIN: 4, FLAKY: 3}
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
            acts = {FREEZE: self._freeze, BROKER: self._kill_broker, BUILDER: lambda: self._kill_builder(plan), JOIN: self._join}
            began = (acts.get(plan.kind) or (lambda: self._fail_disk(_DISK_FAULTS[plan.kind])))()
        else:
            self._wait_moment(plan)
            began = time.monotonic()
            self.worker.kill()
            self.stage.children.remove(self.worker)
            self.start_worker(following)
        self.watch.wait(self._ends_from_now(), _CATCH_UP_S_MAX, self._supervise)
        self.catch_up_s.append(time.monotonic() - began)
        self.kinds[plan.kind] += 1

    def _supervise(self) -> None:
        """What a service manager does: a worker that ended is started again, be it by itself or because its failpoint came during a recovery."""
        if not self.worker.alive():
            self.worker.kill()
            self.stage.children.remove(self.worker)
            self.restarts += not self._fired.exists()
            self.start_worker(None)

    def _wait_moment(self, plan: Plan) -> None:
        if plan.kind == FAILPOINT and plan is self.armed:
            end = time.monotonic() + _FAILPOINT_S_MAX
            while not self._fired.exists() and self.worker.alive() and time.monotonic() < end:
                self.watch.poll()
            return
        time.sleep(plan.after_s or _RANDOM_S[0])

    # Each returns when the recovery began (monotonic).

    def _freeze(self) -> float:
        """A process that stands still for longer than its session, and then goes on as if nothing had been."""
        os.killpg(self.worker.pid, signal.SIGSTOP)
        time.sleep(_FROZEN_FACTOR * SESSION_TIMEOUT_S)
        began = time.monotonic()
        os.killpg(self.worker.pid, signal.SIGCONT)
        return began

    def _kill_broker(self) -> float:
        broker = self.stage.broker
        assert broker is not None, "the bench kills a broker of its own only"
        began = time.monotonic()
        broker.kill()
        self.stage.broker = start_broker(broker.data_dir)
        assert self.stage.broker.bootstrap_servers == broker.bootstrap_servers, "the broker came back at another address"
        return began

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
        owns = re.compile(r"shards owned: \[(\d)\]")

        def has_joined() -> bool:
            self._supervise()
            second.check()
            return owns.search(second.log_path.read_text()) is not None

        wait_until(has_joined, _CATCH_UP_S_MAX, "the second worker to own a shard")
        taken = int(owns.findall(second.log_path.read_text())[-1])
        time.sleep(_RANDOM_S[0])
        self.stage.stop_worker(second)
        self.joins.append((began_ms, int(time.time() * 1e3), next(shard for shard in range(SHARDS) if shard != taken)))
        return time.monotonic()

    def _fail_disk(self, fault: str) -> float:
        """Every write of the worker and its builders fails for a while, or some calls do. What it consumes meanwhile it has to consume again."""
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


def measure_crash(kills: int, seed: int, items: int, updates_per_s: float) -> Figures:
    """The whole campaign. Raises Unavailable where a recovery did not come by itself."""
    config: dict[str, Any] = {"kills": kills, "seed": seed, "items": items, "updates_per_s": updates_per_s}
    figures = Figures(CRASH, {**config, "session_timeout_s": SESSION_TIMEOUT_S})
    flaky = has_compiler()
    catalogue, plans = open_world(items), plan_kills(kills, seed, {k: w for k, w in _WEIGHTS.items() if flaky or k != FLAKY})
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
        _judge(stage, traffic, figures)
        _add_campaign(campaign, figures)
    return figures


def _judge(stage: BenchStage, traffic: Traffic, figures: Figures) -> None:
    """Counts the topics by a fold of our own and compares: what is missing is lost, what is too much is doubled."""
    found = _count_shards(stage)
    lost = doubled = expected_total = 0
    dead_letters = set[DeadLetter]()
    missing = set(traffic.acknowledged)
    for topic in SHARD_TOPICS:
        records = list(read_topic(stage.bootstrap_servers, topic, prefix=stage.topic_prefix))
        for record in records:
            missing.discard((topic, record.partition, record.offset))
        judged = count_topic(topic, sorted(records, key=lambda r: (r.partition, r.offset)))
        dead_letters |= judged.dead_letters
        for shard, expected in judged.counts.items():
            expected_total += expected["consumed"]
            for name, wanted in expected.items():
                lost += max(0, wanted - found[shard][topic][name])
            doubled += sum(max(0, count - expected[name]) for name, count in found[shard][topic].items())
    dead_letters_found = _read_dead_letters(stage)
    replay = stage.run("replay", "replay", "--directory", str(stage.directory / "replay"), "--json")
    figures.add("acknowledged", len(traffic.acknowledged))
    figures.add("not_acknowledged", traffic.not_acknowledged)
    figures.add("in_topics", expected_total)
    figures.add("lost", lost + len(missing))
    figures.add("doubled", doubled)
    figures.add("dead_letters", len(dead_letters))
    figures.add("dead_letters_missing", len(dead_letters - dead_letters_found))
    figures.add("dead_letters_wrong", len(dead_letters_found - dead_letters))
    figures.add("digest_equal", json_figures(replay)["digest_equal"])


def _read_dead_letters(stage: BenchStage) -> set[DeadLetter]:
    """Where the dead letters came from; one that was sent twice counts once (A5)."""
    found = set[DeadLetter]()
    for topic in SHARD_TOPICS:
        for record in read_topic(stage.bootstrap_servers, dead_letter_topic(topic), prefix=stage.topic_prefix):
            source = decode_dead_letter(list(record.headers))
            found.add((source.topic, source.partition, source.offset, source.index))
    return found


def _count_shards(stage: BenchStage) -> dict[int, dict[str, dict[str, int]]]:
    """The counters that the shards wrote in their batches."""
    log = stage.run("shards", "shards", str(stage.directory / "worker"), "--json")
    rows = json.loads(next(line for line in log.splitlines() if line.startswith('{"shards"')))["shards"]
    assert [row["shard"] for row in rows] == list(range(SHARDS))
    return {row["shard"]: row["counts"] for row in rows}


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
