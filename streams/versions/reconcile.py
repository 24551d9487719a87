"""The life of versions, driven: what the control log wants and what the owned shards have are brought together, one step after the other.

Here: `Reconciler.step()`: read the log, plan, perform. Not here: the plans (core/versions.py), the work of builders and what they are
at (streams/builders), manifest and entries (publication.py, promotion.py).

    for every owned shard    attach encoders -> start -> build -> seal; stop what is frozen, removed, aborted; take a snapshot when due
    for the index            manifest -> publish -> canary -> promote; roll back; want a revision when the last publish is old; drop and remove what is not kept

Invariants:
- A step keeps nothing that matters: after a kill between any two actions the next worker plans the same again, and every action is idempotent.
  Several workers may step at the same time. No message is the carrier of a command; index-events are hints.
- A shard is admitted (its first batch let in) only when every version that receives increments is recorded in it with its encoder (A7).
- While the log cannot be read, shards go on by what they know, and nothing is sealed, published or removed.
- An error of one version or shard is reported, tried again later, and never stops the others.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.clock import Clock
from infra.index.control_log import ControlLog
from infra.index.store import IndexStore
from schemas.errors import AifError
from schemas.events import IndexEvent
from schemas.index.control import ControlState, VersionStatus
from schemas.index.lifecycle import SERVABLE, EntryKind
from schemas.index.manifest import BUILD_COMPUTED, BUILD_TAKEN_OVER, Seal
from schemas.index.snapshot import ShardSnapshot
from schemas.topics import RESEAL_INTERVAL_HOURS
from streams.builders.jobs import BuildBase, BuildJob, BuildResult, Job, SealJob, SnapshotJob
from streams.builders.running_jobs import Builders, JobKey, OwnedShard, RunningJob, RunningJobs, create_checkpoint, on_shard
from streams.builders.sealer import SealPoint, prepare_seal, read_seal_point
from streams.builders.slices import remove_other_slices, remove_slices, slices_folder
from streams.core.canary import CanaryRules
from streams.core.misbehaviour import Book, ReportRules
from streams.core.shard_state import ShardVersion
from streams.core.versions import (
    REWRITE_SHARE,
    Build,
    MarkBehind,
    Revision,
    Rewrite,
    SealShard,
    ShardAction,
    ShardFacts,
    Start,
    Stop,
    plan_blocked,
    plan_publications,
    plan_shard,
)
from streams.encoders import Encoder, Encoders
from streams.shard import Shard
from streams.versions.log_ends import LogEnds
from streams.versions.promotion import Promotion
from streams.versions.publication import Publication
from streams.versions.rollback import RollbackWatch
from streams.versions.snapshot_keeper import SNAPSHOT, SnapshotKeeper, SnapshotTimes, prepare_snapshot
from streams.versions.store_keeper import KeepSettings, StoreKeeper

_PART_IS_LOST = frozenset({"missing_file", "bad_part_file", "bad_part_count", "bad_block"})
_FORGET_ROWS = 2_000  # looked at between two micro-batches


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Times of reconciling; none of them changes bytes."""

    reseal_interval_s: float = RESEAL_INTERVAL_HOURS * 3600.0
    build_stall_s_max: float = 600.0
    retry_s: float = 2.0
    rewrite_share: float = REWRITE_SHARE
    snapshots: SnapshotTimes = field(default_factory=SnapshotTimes)
    keep: KeepSettings = field(default_factory=KeepSettings)
    canary: CanaryRules = field(default_factory=lambda: CanaryRules(enabled=False))
    reports: ReportRules = field(default_factory=ReportRules)


@dataclass
class StepReport:
    """What a step did, by kind, and what it could not.

    build_seconds: of each full part taken in, from checkpoint to part; blocked: shards that a wanted revision waits for.
    """

    done: dict[str, int] = field(default_factory=dict)
    build_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    blocked: dict[Revision, list[int]] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        """One more of `kind`."""
        self.done[kind] = self.done.get(kind, 0) + 1


class Reconciler:
    """See the module. One thread calls `step`; `scratch` is a folder of this process alone, near its shards, emptied here.

    owned: the shards that this process has now; announce: gets an IndexEvent for all that happened; reports: what servers said; judge: for canaries.
    """

    def __init__(
        self,
        control_log: ControlLog,
        store: IndexStore,
        clock: Clock,
        settings: ReconcileSettings,
        owned: Callable[[], Sequence[OwnedShard]],
        builders: Builders,
        log_ends: LogEnds,
        scratch: Path,
        encoders: Encoders,
        by: str = "",
        announce: Callable[[IndexEvent], None] = lambda _: None,
        slices: Path | None = None,
        reports: Callable[[], Book] = dict,
        judge: Builders | None = None,
    ) -> None:
        self._control_log, self._clock, self._settings = control_log, clock, settings
        self._owned, self._builders, self._log_ends = owned, builders, log_ends
        self._announce, self._slices, self._encoders = announce, slices, encoders
        self._publication = Publication(control_log, store, clock, by)
        self._promotion = Promotion(control_log, clock, judge or builders, settings.canary, by)
        self._watch = RollbackWatch(control_log, clock, settings.reports, reports, by)
        self._jobs = RunningJobs(builders, clock, scratch)  # by (shard, version)
        self._keeper = StoreKeeper(control_log, store, clock, settings.keep, by)
        self._snapshots = SnapshotKeeper(store, clock, settings.snapshots)
        self._retry_at: dict[Hashable, float] = {}
        self._seal_points: dict[SealShard, SealPoint] = {}
        self._report = StepReport()
        self._slices_checked = False

    def step(self) -> StepReport:
        """One round. Raises what reading the control log raises (Unavailable, Corrupted); everything else is in the report."""
        self._report = report = StepReport()
        state = self._control_log.refresh()
        if state.unknown_entry:
            report.alarms.append(f"reconciling stopped: {state.unknown_entry}")
            return report
        if self._slices is not None and not self._slices_checked:
            remove_other_slices(self._slices, [s.version for s in state.receiving])
            self._slices_checked = True
        for task in self._owned():
            self._guard(("shard", task.number), lambda task=task: self._step_shard(state, task))  # type: ignore[misc]
        owned = {task.number for task in self._owned()}
        self._jobs.drop_lost(owned)
        self._seal_points = {seal: point for seal, point in self._seal_points.items() if seal.shard in owned}
        sealed: dict[Revision, list[int]] = {}
        for wanted in plan_publications(state):
            self._guard(wanted, lambda wanted=wanted: self._publish(state, wanted, sealed))  # type: ignore[misc]
        self._guard("rollback", self._roll_back)
        self._guard("promote", self._promote)
        self._guard("revise", lambda: self._revise(self._control_log.state))
        self._guard("keep", self._keep)
        report.blocked = {wanted: missing for wanted, missing in plan_blocked(self._control_log.state, sealed).items() if missing}
        return report

    def _guard(self, key: Hashable, act: Callable[[], None]) -> None:
        """Performs one thing; an error is reported and the same thing left alone for `retry_s`."""
        if self._clock.monotonic() < self._retry_at.get(key, float("-inf")):
            return
        try:
            act()
            self._retry_at.pop(key, None)
        except Exception as error:
            if isinstance(error, AifError) and error.code == "shard_closed":
                return  # it has another owner by now
            self._retry_at[key] = self._clock.monotonic() + self._settings.retry_s
            self._report.errors.append(f"{key}: {error!s}" if isinstance(error, AifError) else f"{key}: {error!r}")

    def _tell(self, kind: str, version: int, revision: int = 0, shard: int | None = None, reason: str = "") -> None:
        self._report.count(kind)
        self._announce(IndexEvent(schema=1, kind=kind, version=version, revision=revision, shard=shard, reason=reason))

    # --- shards --------------------------------------------------------------------------------------------------------

    def _step_shard(self, state: ControlState, task: OwnedShard) -> None:
        self._collect(task)
        self._attach_encoders(state, task)
        failed_before = len(self._report.errors)
        for action in plan_shard(state, self._facts(task), self._fingerprint(state), self._settings.rewrite_share):
            self._guard(action, lambda action=action: self._perform(state, task, action))  # type: ignore[misc]
        if not task.admitted and state.init is not None:
            self._admit(state, task, failed_before)
        if task.admitted and state.init is not None and not self._jobs.has(key := (task.number, SNAPSHOT)):
            self._guard(key, lambda: self._snapshot(key, task))

    def _snapshot(self, key: JobKey, task: OwnedShard) -> None:
        if self._snapshots.is_due(task):
            init = self._control_log.state.init
            assert init is not None
            self._jobs.begin(key, task, lambda directory: prepare_snapshot(task, init, directory))

    def _fingerprint(self, state: ControlState) -> str:
        """This process's encoder, asked for only when a version needs it: it loads the kernels."""
        return self._encoders.fingerprint if state.receiving else ""

    def _facts(self, task: OwnedShard) -> ShardFacts:
        return on_shard(task, lambda shard: ShardFacts(shard.number, shard.next_offsets, shard.versions))

    def _attach_encoders(self, state: ControlState, task: OwnedShard) -> None:
        """After a reopen. A version of another encoder (the process moved to another machine) is marked behind."""
        for version in on_shard(task, Shard.needs_encoders):
            if version.version not in state.versions:
                self._report.errors.append(
                    f"shard {task.number} has version {version.version}, which the control log does not: another index store?"
                )
            elif version.encoder_fingerprint != self._encoders.fingerprint:
                self._perform(state, task, MarkBehind(task.number, version.version))
            elif version.version in {s.version for s in state.receiving}:
                encoder = self._encoders.get(version.version, version.checkpoint_sha256)
                on_shard(task, lambda shard, encoder=encoder: shard.attach_encoder(encoder))  # type: ignore[misc]

    def _admit(self, state: ControlState, task: OwnedShard, failed_before: int) -> None:
        """Lets batches in, unless a version that servers may follow could not be started. One that only builds may start later."""
        facts = self._facts(task)
        missing = [s.version for s in state.receiving if s.version not in facts.versions and s.state in SERVABLE]
        if missing:
            self._report.alarms.append(
                f"shard {task.number} stays paused: versions {missing} are not started ({self._report.errors[failed_before:]})"
            )
            return
        task.admit()
        self._report.count("admitted")

    def _perform(self, state: ControlState, task: OwnedShard, action: ShardAction) -> None:
        match action:
            case Start(_, version, behind):
                self._start(state.versions[version], task, behind)
            case Stop(shard, version):
                self._jobs.abandon((shard, version))
                remove_slices(self._slices, shard, version)
                on_shard(task, lambda s: s.stop_version(version))
                self._tell("stopped", version, shard=shard)
            case MarkBehind(shard, version):
                on_shard(task, lambda s: s.update_version(version, behind=True))
                self._tell("behind", version, shard=shard, reason=f"this worker's encoder is {self._encoders.fingerprint}")
            case Build(shard, version) | Rewrite(shard, version):
                if not self._jobs.has((shard, version)):
                    self._begin(state.versions[version], task, action)
            case SealShard(shard, version):
                if not self._jobs.has((shard, version)) and self._has_reached_its_point(task, action):
                    self._begin(state.versions[version], task, action)

    def _start(self, status: VersionStatus, task: OwnedShard, behind: bool) -> None:
        encoder = self._encoders.get(status.version, status.checkpoint_sha256)
        ends = self._log_ends.sources_end(task.number)
        on_shard(task, lambda shard: shard.start_version(encoder, ends, behind=behind))
        self._tell("behind" if behind else "building", status.version, shard=task.number)

    def _has_reached_its_point(self, task: OwnedShard, action: SealShard) -> bool:
        """Whether the shard has applied what the topics held when the seal's delta position was read; a later round asks again."""
        if action not in self._seal_points:
            self._seal_points[action] = read_seal_point(self._log_ends, action.shard)
        return self._seal_points[action].is_reached(on_shard(task, lambda shard: shard.next_offsets))

    # --- builders ------------------------------------------------------------------------------------------------------

    def _begin(self, status: VersionStatus, task: OwnedShard, action: Build | Rewrite | SealShard) -> None:
        """Takes a checkpoint of the shard and hands the job to a builder."""
        known = on_shard(task, lambda s: s.versions[action.version])

        def prepare(directory: Path) -> Job:
            if not isinstance(action, SealShard):
                create_checkpoint(task, directory)
                return self._build_job(status, action, known, directory)
            assert known.full is not None, action
            common = (status.checkpoint_sha256, status.encoder_fingerprint, known.full)
            unprepared = SealJob(action.version, action.revision, action.shard, *common, built=known.built)
            return prepare_seal(unprepared, self._seal_points.pop(action), functools.partial(create_checkpoint, task), directory)

        self._jobs.begin((action.shard, action.version), task, prepare)
        self._report.count({Build: "build_begun", Rewrite: "rewrite_begun", SealShard: "seal_begun"}[type(action)])

    def _build_job(self, status: VersionStatus, action: Build | Rewrite, known: ShardVersion, directory: Path) -> BuildJob:
        """A build takes what still holds from the last published parts, a rewrite from the shard's own."""
        rewrite = isinstance(action, Rewrite)
        assert known.full is not None or not rewrite, action
        return BuildJob(
            status.version,
            action.shard,
            status.checkpoint_sha256,
            status.encoder_fingerprint,
            str(directory),
            base=self._publication.find_base(status, action.shard) if known.full is None else BuildBase(known.full),
            rewrite=rewrite,
            slices_directory=str(slices_folder(self._slices, action.shard, status.version)) if self._slices is not None else "",
            from_offsets=known.building_from_offsets,
        )

    def _collect(self, task: OwnedShard) -> None:
        """Takes in what builders have finished for this shard, and raises the alarm for what stands still (B4)."""
        for running in self._jobs.take_finished(task):
            self._guard((task.number, running.key, "result"), lambda running=running: self._take_in(running))  # type: ignore[misc]
        self._report.alarms += self._jobs.stalled(task, self._settings.build_stall_s_max)

    def _take_in(self, running: RunningJob) -> None:
        job, task = running.ticket.job, running.task
        if running.ticket.future.cancelled():
            return
        try:
            result = running.ticket.future.result()
        except AifError as error:
            if isinstance(job, SealJob) and error.code in _PART_IS_LOST:
                on_shard(task, lambda shard: _forget_full(shard, job))
            raise
        match job, result:
            case BuildJob(), BuildResult():
                if on_shard(task, lambda shard: _accept_full(shard, job, result)):
                    self._report.build_seconds.append(self._clock.monotonic() - running.began)
                    kept = f"{result.reused} of {result.part.rows} rows taken over" if result.reused else ""
                    self._tell("rewritten" if job.rewrite else "built", job.version, shard=job.shard, reason=kept)
                    forget_covered(task, job.version, result.source_offsets)
                remove_slices(self._slices, job.shard, job.version)
            case SealJob(), Seal():
                on_shard(task, lambda shard: _accept_seal(shard, job, result))
                self._tell("sealed", job.version, job.revision, job.shard)
            case SnapshotJob(), ShardSnapshot():
                self._snapshots.taken(result)
                self._report.count("snapshot")

    # --- the index -----------------------------------------------------------------------------------------------------

    def _publish(self, state: ControlState, wanted: Revision, sealed: dict[Revision, list[int]]) -> None:
        """Manifest from a complete set of seals if there is none yet, then its `publish` entry."""
        status = state.versions[wanted.version]
        manifest = self._publication.read_manifest_bytes(wanted)
        if manifest is None:
            seals = self._publication.read_seals(status, wanted)
            sealed[wanted] = sorted(seals)
            assert state.init is not None
            if len(seals) < state.init.shards:
                return
            manifest = self._publication.create_manifest(status, wanted, self._encoder_of(status), seals)
        if self._publication.publish(wanted, manifest):
            self._tell("published", wanted.version, wanted.revision)

    def _encoder_of(self, status: VersionStatus) -> Encoder:
        return self._encoders.get(status.version, status.checkpoint_sha256)

    def _promote(self) -> None:
        for entry in self._promotion.step():
            kind = {EntryKind.PROMOTE: "promoted", EntryKind.WITHHOLD: "withheld"}[entry.kind]
            self._tell(kind, entry.version, self._control_log.state.versions[entry.version].revision, reason=entry.reason)

    def _roll_back(self) -> None:
        if (found := self._watch.step()) is not None:
            self._tell("rolled_back", found.version, reason=f"to {found.back_to}: {found.reason}")

    def _revise(self, state: ControlState) -> None:
        for due in self._publication.revise(state, int(self._settings.reseal_interval_s * 1000)):
            self._tell("revised", due.version, due.revision)

    def _keep(self) -> None:
        for version in self._keeper.drop():
            self._tell("dropped", version)
        removed = self._keeper.remove([task for task in self._owned() if task.admitted])
        if removed:
            self._report.done["files_removed"] = removed

    def close(self) -> None:
        """Gives up what is running; the next owner of the shards does it again."""
        self._jobs.close()
        self._promotion.close()


def _accept_full(shard: Shard, job: BuildJob, result: BuildResult) -> bool:
    """Records a full part, unless the version was stopped or its increments began after the part's checkpoint (B6)."""
    known: ShardVersion | None = shard.versions.get(job.version)
    if known is None or known.behind or (known.full is not None) != job.rewrite:
        return False
    if any(result.source_offsets[topic] < began for topic, began in known.building_from_offsets.items()):
        return False
    built = {BUILD_COMPUTED: result.part.rows - result.reused, BUILD_TAKEN_OVER: result.reused}
    shard.update_version(job.version, full=result.part, sealed_increments=0, built=built)
    return True


def _forget_full(shard: Shard, job: SealJob) -> None:
    """The full part is gone or damaged: it is built again from the shard's own components."""
    known = shard.versions.get(job.version)
    if known is not None and known.full == job.full:
        shard.update_version(job.version, full=None, sealed_increments=0)


def _accept_seal(shard: Shard, job: SealJob, seal: Seal) -> None:
    known = shard.versions.get(job.version)
    if known is not None and known.sealed_revision < job.revision:
        shard.update_version(job.version, sealed_revision=job.revision, sealed_increments=seal.incremental.rows)


def forget_covered(task: OwnedShard, version: int, before: Mapping[str, int]) -> None:
    """Removes increments that the full part holds, a few between two micro-batches."""
    key: bytes | None = b""
    while key is not None:
        key = on_shard(task, lambda shard, key=key: shard.forget_increments(version, before, key, _FORGET_ROWS))  # type: ignore[misc]
