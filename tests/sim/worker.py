"""A worker process and the group that gives it shards: real shards, the real reconciler, the real builders' work.

Here: `Worker`, its builders, and `Group`. Not here: a shard in its hands (task.py); what a batch or a plan does; the
points at which a worker dies are in world.py.

As in the shell, an assignment opens the shard, commits its offsets, zeros too, and seeks there before the first batch; a batch may come again. A worker that
the group has given up (a pause longer than its session) goes on with its shards, seals and log entries until it notices.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from infra.clock import Clock
from infra.index.control_log import append_entry
from infra.index.parts import read_manifest
from infra.index.store import StoreClock
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import checkpoint_path
from schemas.index.retention import RetentionRules
from schemas.topics import SHARD_TOPICS
from streams.builders.full_part import build_full_part
from streams.builders.jobs import BuildJob, CanaryJob, Job, SealJob, SnapshotJob
from streams.builders.pool import Ticket
from streams.builders.sealer import write_seal
from streams.core.canary import CanaryFigures, CanaryRules
from streams.shard.log_ends import LogRange
from streams.shard.shard import Shard
from streams.shard.start import start_shard
from streams.versions.attempts import StepReport
from streams.versions.keepers import SnapshotTimes
from streams.versions.reconcile import Reconciler, ReconcileSettings
from tests.sim.boundary import Boundary
from tests.sim.disk import Disk
from tests.sim.encoder import FINGERPRINT, SCHEMA_FINGERPRINT, SimEncoders
from tests.sim.haste import QuickLog
from tests.sim.task import REOPEN_CODES, Task
from tests.sim.world import Violation, World, WrongClock

T = TypeVar("T")

RESEAL_S = 100.0
SNAPSHOT_S = 60.0
GRACE_S, KEPT_VERSIONS = 80.0, 3
_SETTINGS = ReconcileSettings(
    RESEAL_S,
    retry_s=0.0,
    snapshots=SnapshotTimes(SNAPSHOT_S, 30),
    keep=RetentionRules(KEPT_VERSIONS, int(GRACE_S * 1000)),
    canary=CanaryRules(),
)


def plan_positions(stored: Mapping[str, int], committed: Mapping[str, int]) -> dict[str, int]:
    """Where the consumer reads after an assignment: at the shard's own offsets, whatever the group had (streams/faust_shell.py)."""
    return dict(stored)


class Worker:
    """A process that builds nearline. Its name is its host's name."""

    def __init__(self, world: World, boundary: Boundary, name: str) -> None:
        self.world, self.boundary, self.name = world, boundary, name
        self.disk = boundary.disks[name] = Disk()
        self.fingerprint = FINGERPRINT  # of its encoder, from its next start on
        self.alive = False
        self.report = StepReport()
        self.shards, self.scratch = Path(name, "shards"), Path(name, "scratch")
        self.start()

    def start(self) -> None:
        """The process starts; it owns nothing yet."""
        self.alive = True
        self.tasks: dict[int, Task] = {}
        self.jobs: list[Ticket] = []
        self.encoders = SimEncoders(self.fingerprint, self.world.lost)
        self.log = QuickLog(self.world.store)  # type: ignore[arg-type]
        self.clock = self._read_clock()
        self.reconciler = Reconciler(
            self.log,
            self.world.store,  # type: ignore[arg-type]
            self.clock,
            _SETTINGS,
            lambda: list(self.tasks.values()),
            self,
            self.world,
            self.scratch,
            self.encoders,  # type: ignore[arg-type]
            self.name,
            self.world.note_event,
        )

    def _read_clock(self) -> Clock:
        """As streams/versions/version_side.py: what dates the log and the store's files. The worker's own clock may be an hour wrong."""
        if not self.world.has_wrong_clocks:
            return self.world.clock
        ahead_s = 3_600.0 if self.name == "w0" else -3_600.0
        return StoreClock(self.world.store, WrongClock(self.world.clock, ahead_s))  # type: ignore[arg-type]

    def die(self) -> None:
        """Killed; sometimes the whole host loses its power."""
        self.alive = False
        power = self.world.random.random() < 0.4
        self.world.say("%s dies%s", self.name, ", its host loses power" if power else "")
        if power:
            self.disk.lose_tails(lambda n: self.world.random.randrange(n + 1))
        self.disk.free()

    # --- shards ---------------------------------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """The shard is assigned to this worker."""
        world = self.world
        logs = {topic: world.topics[topic, number] for topic in SHARD_TOPICS}
        ranges = {topic: LogRange(log.start, log.end) for topic, log in logs.items()}
        world.point("an assignment")
        shard = self._start_shard(number, ranges)
        self._check_index(shard)
        committed = {topic: world.committed.get((topic, number), log.start) for topic, log in logs.items()}
        positions = plan_positions(shard.next_offsets, committed)
        world.say("%s opens shard %d at %s, reads from %s", self.name, number, shard.next_offsets, positions)
        self.tasks[number] = Task(self, shard, positions)

    def _start_shard(self, number: int, ranges: Mapping[str, LogRange]) -> Shard:
        """Tried again while a disk fails; the partitions are paused meanwhile."""
        world, directory = self.world, self.shards / f"{number:05d}"
        while True:
            try:
                return start_shard(directory, number, world.init, world.index_id, world.clock, ranges, world.store)  # type: ignore[arg-type]
            except Unavailable as error:
                if error.code not in REOPEN_CODES:
                    raise
            world.point("an assignment is tried again")

    def _check_index(self, shard: Shard) -> None:
        """Whatever died since, the shard knows its index: one that was begun again in the same store has versions of the same numbers."""
        try:
            shard.hold_index("begun again")
        except Incompatible:
            return
        raise Violation("one index", f"{self.name} would go on with shard {shard.number} in an index that was begun again")

    def close(self, number: int) -> None:
        """The shard is given away."""
        task = self.tasks.pop(number, None)
        if task is not None:
            self.world.say("%s closes shard %d", self.name, number)
            task.close()

    # --- versions --------------------------------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """A round of the real reconciler."""
        try:
            self.report = self.reconciler.step()
        except AifError as error:
            raise Violation("the control log reads", f"{self.name}: {error}") from error
        if self.report.done or self.report.errors:
            self.world.say("%s reconciled: %s %s", self.name, self.report.done, self.report.errors or "")

    def submit(self, job: Job, /) -> Ticket:
        """streams/builders/pool.py: the job is queued."""
        self.jobs.append(Ticket(job))
        return self.jobs[-1]

    def build(self) -> None:
        """A builder process does a job; it may die by itself."""
        if not self.jobs:
            return
        ticket = self.jobs.pop(self.world.random.randrange(len(self.jobs)))
        if not ticket.future.set_running_or_notify_cancel():
            return
        if not self.world.calm and self.world.random.random() < 0.05:
            self.world.say("a builder of %s dies", self.name)
            ticket.future.set_exception(Unavailable("builder_died", "killed"))
            return
        try:
            result = run_job(self.world, self.boundary, ticket.job, self.encoders)
        except Exception as error:
            self.world.say("%s: %s", type(ticket.job).__name__, error)
            ticket.future.set_exception(error)
        else:
            self.world.say("%s did %s", self.name, ticket.job)
            ticket.future.set_result(result)

    def decide_checkpoint(self) -> None:
        """The agent of model-checkpoints, without the checks of the file (streams/versions/checkpoints.py)."""
        offset, version = plan_checkpoint(self.world, self.log.refresh())
        if offset < self.world.checkpoints.end:
            record = self.world.checkpoints.records[offset]
            self.world.note_want(offset)
            sha256 = checkpoint_sha256(record)
            with contextlib.suppress(Unavailable):  # a store that fails: the record is decided later
                entry = _decision(version, record, sha256, self)
                self.world.store.put_bytes(checkpoint_path(sha256), record.encode())
                if append_entry(self.log, lambda s: entry if entry.version > s.newest_decided else None):
                    self.world.say("%s: %s %d", self.name, entry.kind, version)


def plan_checkpoint(world: World, state: ControlState) -> tuple[int, int]:
    """(offset of the next record to decide, the version that it makes): both follow from the log (B3)."""
    return state.newest_decided + 1, state.newest_decided + 1


def checkpoint_sha256(record: str) -> str:
    """Stands for the sha256 of the file that the record names."""
    return record.encode().hex().rjust(64, "0")[-64:]


def _decision(version: int, record: str, sha256: str, worker: Worker) -> Entry:
    now_ms, by = worker.clock.now_ms(), worker.name
    if record.startswith("bad"):
        return Entry(EntryKind.REJECT, now_ms, by, version, reason="bad: not finite")
    cause = Cause.ADOPT if record.startswith("adopt") else Cause.CHECKPOINT
    return Entry(
        EntryKind.WANT,
        now_ms,
        by,
        version,
        cause=cause,
        checkpoint_sha256=sha256,
        model_id="sim",
        feature_schema=SCHEMA_FINGERPRINT,
        encoder_fingerprint=worker.encoders.fingerprint,
        label=f"replay-{version}" if cause is Cause.ADOPT else "",
    )


def run_job(world: World, boundary: Boundary, job: Job, encoders: SimEncoders) -> Any:
    """What streams/builders/process.py does with a job."""
    if isinstance(job, SnapshotJob):
        return boundary.write_snapshot(world.store, job)
    if isinstance(job, CanaryJob):
        return sing_canary(world, job)
    encoder = encoders.get(job.version, job.checkpoint_sha256)
    if isinstance(job, BuildJob):
        return build_full_part(world.store, encoder, job)  # type: ignore[arg-type]
    assert isinstance(job, SealJob)
    return write_seal(world.store, encoder, job)  # type: ignore[arg-type]


def ranks_unlike(version: int, live: int) -> bool:
    """Whether a canary withholds a version while another one is live: of about every fourth pair."""
    return (version + 2 * live) % 4 == 3


def sing_canary(world: World, job: CanaryJob) -> CanaryFigures:
    """streams/builders/canary_scores.py without a network, the same for whoever looks."""
    world.point("a canary")
    read_manifest(world.store, job.status)  # type: ignore[arg-type]
    if job.live is None:
        return CanaryFigures(1, 0.0)
    overlap = 0.0 if ranks_unlike(job.status.version, job.live.version) else 1.0
    return CanaryFigures(1, 0.0, job.live.version, 0.0, overlap, spread=1.0)


class Group:
    """The consumer group: which worker owns which shard."""

    def __init__(self, world: World, workers: list[Worker]) -> None:
        self.world, self.workers = world, workers
        self.owner: dict[int, Worker] = {}

    def rebalance(self) -> None:
        """Gives one shard to a living worker. Its former owner closes it, or goes on without knowing."""
        world = self.world
        number, living = world.random.randrange(world.shards), [w for w in self.workers if w.alive]
        if not living:
            return
        self.give(number, world.random.choice(living), knows=world.random.random() < 0.3)

    def give(self, number: int, worker: Worker, knows: bool) -> None:
        """`knows`: the former owner closes the shard first."""
        former = self.owner.get(number)
        if former is worker and number in worker.tasks and worker.alive:
            return
        if former is not None and former is not worker and former.alive:
            if knows:
                former.close(number)
            elif number in former.tasks:
                self.world.say("%s does not know that it lost shard %d", former.name, number)
        worker.close(number)  # its shards of an earlier assignment
        self.owner[number] = worker
        if worker.alive:  # it may have died with the shard before
            self.world.run(worker, "assignment", lambda: worker.open(number))

    def notice(self) -> None:
        """Workers that lost a shard learn it."""
        for worker in self.workers:
            if worker.alive:
                for number in [n for n in worker.tasks if self.owner.get(n) is not worker]:
                    if not self.world.is_busy(worker, f"shard {number}"):
                        worker.close(number)

    def settle(self) -> None:
        """Every worker lives, every shard has one owner who knows it."""
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        self.notice()
        for number in range(self.world.shards):
            owner = self.owner.get(number) or self.workers[number % len(self.workers)]
            if self.world.random.random() < 0.25:
                owner = self.world.random.choice(self.workers)
            self.give(number, owner, knows=True)


def newest_state(world: World) -> ControlState:
    """The fold of the whole log."""
    return world.log.refresh()
