"""The versions of the owned shards: for each shard, the next step towards what the control log wants.

    attach encoders -> start -> build -> seal; stop what is frozen, removed or aborted; take a snapshot when one is due

Invariants: as in reconcile.py. A shard is admitted (its first batch is let in) only when it has every version that receives rows, with its encoder or marked
as behind (A7).
"""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

from infra.clock import Clock
from schemas.errors import AifError, Corrupted
from schemas.index.control import ControlState, Init, VersionStatus
from schemas.index.manifest import BUILD_COMPUTED, BUILD_TAKEN_OVER, Seal
from schemas.index.shard_snapshot import ShardSnapshot
from streams.builders.jobs import BuildBase, BuildJob, BuildResult, Job, SealJob, SnapshotJob, describe_job
from streams.builders.running_jobs import JobKey, OwnedShard, RunningJob, RunningJobs, create_checkpoint, on_shard
from streams.builders.sealer import SealPoint, prepare_seal, read_seal_point
from streams.builders.slices import remove_other_slices, remove_slices, slices_folder
from streams.core.shard_state import ShardVersion, encode_identity
from streams.core.version_plans import (
    Build,
    MarkBehind,
    Revision,
    Rewrite,
    SealShard,
    ShardAction,
    ShardFacts,
    Start,
    Stop,
    find_stale_service,
    plan_shard,
)
from streams.encoder_protocol import Encoders
from streams.shard.log_ends import LogEnds
from streams.shard.shard import Shard
from streams.shard.start import mark_damaged
from streams.versions.attempts import Attempts
from streams.versions.keepers import SNAPSHOT, SnapshotKeeper
from streams.versions.publication import Publication
from streams.versions.readable_encoders import ReadableEncoders

_PART_IS_LOST = frozenset({"missing_file", "bad_part_file", "bad_part_count", "bad_block"})
_TOLD_AS = {Start: "start", Build: "build", Rewrite: "rewrite", SealShard: "seal", Stop: "stop", MarkBehind: "leave behind"}
_STORE_IS_OLDER = "the shard is ahead of the seal in the index store, which is an older copy: readers would miss the changes in between"
_FORGET_ROWS = 2_000  # looked at between two micro-batches


class ShardVersions:
    """One per reconciler, called by its thread. `slices`: where finished slices of builds are kept, None = nowhere."""

    def __init__(
        self,
        attempts: Attempts,
        jobs: RunningJobs,
        snapshots: SnapshotKeeper,
        publication: Publication,
        encoders: Encoders,
        log_ends: LogEnds,
        clock: Clock,
        *,
        slices: Path | None,
        retry_s: float,
        rewrite_share: float,
        build_stall_s_max: float,
    ) -> None:
        self._attempts, self._jobs, self._snapshots, self._publication = attempts, jobs, snapshots, publication
        self._encoders, self._log_ends, self._clock, self._slices = ReadableEncoders(encoders, clock, retry_s), log_ends, clock, slices
        self._rewrite_share, self._build_stall_s_max = rewrite_share, build_stall_s_max
        self._seal_points: dict[SealShard, SealPoint] = {}
        self._slices_checked = False

    def remove_old_slices(self, state: ControlState) -> None:
        """At the first step: removes the slices that an earlier process has left of unwanted builds."""
        if self._slices is not None and not self._slices_checked:
            remove_other_slices(self._slices, [s.version for s in state.receiving])
            self._slices_checked = True

    def step(self, state: ControlState, task: OwnedShard) -> None:
        """One step of one shard."""
        self._collect(task, None if state.building is None else state.building.version)
        self._attach_encoders(state, task)
        lost = self._encoders.find_lost(state.receiving)
        for version, why in lost.items():
            self._attempts.complain(("lost checkpoint", version), why)
        facts = _read_facts(task)
        self._attempts.report.alarms += find_stale_service(state, facts)
        for action in plan_shard(state, facts, self._fingerprint(state), self._rewrite_share, lost):
            what = f"{_TOLD_AS[type(action)]} version {action.version}, shard {action.shard}"
            self._attempts.attempt(what, functools.partial(self._perform, state, task, action))
        if state.init is None:
            return
        if not task.admitted:
            self._admit(state, task)
        if task.admitted and not self._jobs.has(key := (task.number, SNAPSHOT)):
            self._attempts.attempt(f"snapshot of shard {task.number}", functools.partial(self._begin_snapshot, key, task, state.init))

    def seal_again(self, task: OwnedShard, wanted: Revision) -> None:
        """A revision that the shard has sealed, and whose seal the store has damaged or lost before there was a manifest."""
        known = _read_facts(task).versions.get(wanted.version)
        if known is not None and known.sealed_revision == wanted.revision:
            on_shard(task, lambda shard: shard.update_version(wanted.version, sealed_revision=wanted.revision - 1))

    def drop_lost(self, owned: set[int]) -> None:
        """Give up running work for shards that this process no longer owns."""
        self._jobs.drop_lost(owned)
        self._seal_points = {seal: point for seal, point in self._seal_points.items() if seal.shard in owned}

    def close(self) -> None:
        """Give up running work; the next owner of the shards does it again."""
        self._jobs.close()

    # --- what the plan says --------------------------------------------------------------------------------------------

    def _fingerprint(self, state: ControlState) -> str:
        """This process's encoder fingerprint, asked for only when a version needs it, because asking loads the kernels."""
        return self._encoders.fingerprint if state.receiving else ""

    def _attach_encoders(self, state: ControlState, task: OwnedShard) -> None:
        """After a shard was opened. A version of another encoder (this process runs on another machine than the last owner) is marked behind; one whose
        checkpoint the store has lost stays without."""
        for version in on_shard(task, Shard.needs_encoders):
            if version.version > state.newest_decided:
                self._attempts.complain(
                    ("unknown version", task.number, version.version),
                    f"shard {task.number} has version {version.version}, which the control log does not: another index store?",
                )
            elif version.encoder_fingerprint != self._encoders.fingerprint:
                self._perform(state, task, MarkBehind(task.number, version.version))
            elif version.version in {s.version for s in state.receiving}:
                with contextlib.suppress(Corrupted):
                    encoder = self._encoders.get(version.version, version.checkpoint_sha256)
                    on_shard(task, lambda shard, encoder=encoder: shard.attach_encoder(encoder))  # type: ignore[misc] # mypy: a lambda with a default

    def _admit(self, state: ControlState, task: OwnedShard) -> None:
        """Let batches in, unless a version could not be started. Not even one that is only being built may start later: the former owner's seal may be
        published. Servers would continue from it without the changes until then."""
        facts, unready = _read_facts(task), {v.version for v in on_shard(task, Shard.needs_encoders)}
        missing = [s.version for s in state.receiving if s.version not in facts.versions or s.version in unready]
        if missing:
            self._attempts.report.alarms.append(f"shard {task.number} stays paused: versions {missing} are not started")
            return
        task.admit()
        self._attempts.report.count("admitted")

    def _perform(self, state: ControlState, task: OwnedShard, action: ShardAction) -> None:
        match action:
            case Start(_, version, behind):
                self._start(state.versions[version], task, behind)
            case Stop(shard, version):
                if self._may_be_published(state, action):
                    return
                self._jobs.abandon((shard, version))
                remove_slices(self._slices, shard, version)
                on_shard(task, lambda s: s.stop_version(version))
                self._attempts.announce("stopped", version, shard=shard)
            case MarkBehind(shard, version):
                on_shard(task, lambda s: s.update_version(version, behind=True))
                self._attempts.announce("behind", version, shard=shard, reason=self._encoders.why_none(version))
            case Build(shard, version) | Rewrite(shard, version):
                if not self._jobs.has((shard, version)):
                    self._begin_build(state.versions[version], task, action)
            case SealShard(shard, version):
                if not self._jobs.has((shard, version)) and self._has_reached_its_point(task, action):
                    self._begin_seal(state.versions[version], task, action)

    def _may_be_published(self, state: ControlState, stop: Stop) -> bool:
        """Whether a version that is behind in a shard, and would start again there, has a seal of that shard. Then it stays behind: servers that follow it
        from that seal would never have the changes in between."""
        status = state.versions.get(stop.version)
        if status is None or status not in state.receiving:
            return False
        wanted = status.wanted_revision
        return wanted is not None and stop.shard in self._publication.read_seals(status, Revision(stop.version, wanted))

    def _start(self, status: VersionStatus, task: OwnedShard, foreign: bool) -> None:
        version, sha256, ends = status.version, status.checkpoint_sha256, self._log_ends.sources_end(task.number)
        why_behind = self._encoders.why_none(version) if foreign else ""
        if not foreign and self._publication.starts_late(status, task.number, on_shard(task, lambda shard: shard.next_offsets)):
            why_behind = _STORE_IS_OLDER
        if why_behind:
            on_shard(task, lambda shard: shard.start_behind(version, sha256, self._encoders.fingerprint, ends))
        else:
            encoder = self._encoders.get(version, sha256)
            on_shard(task, lambda shard: shard.start_version(encoder, ends))
        self._attempts.announce("behind" if why_behind else "building", version, shard=task.number, reason=why_behind)

    def _has_reached_its_point(self, task: OwnedShard, action: SealShard) -> bool:
        """Whether the shard has applied what the topics held when the seal's delta position was read; if not, a later step asks again."""
        if action not in self._seal_points:
            self._seal_points[action] = read_seal_point(self._log_ends, action.shard)
        return self._seal_points[action].is_reached(on_shard(task, lambda shard: shard.next_offsets))

    # --- jobs for builders ---------------------------------------------------------------------------------------------

    def _begin_build(self, status: VersionStatus, task: OwnedShard, action: Build | Rewrite) -> None:
        known = on_shard(task, lambda s: s.versions[action.version])

        def prepare(directory: Path) -> Job:
            create_checkpoint(task, directory)
            return self._build_job(status, action, known, directory)

        self._jobs.begin((action.shard, action.version), task, prepare)
        self._attempts.report.count("build_begun")

    def _build_job(self, status: VersionStatus, action: Build | Rewrite, known: ShardVersion, directory: Path) -> BuildJob:
        """A build takes over rows that still hold from the last published parts, a rewrite from the shard's own full part."""
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

    def _begin_seal(self, status: VersionStatus, task: OwnedShard, action: SealShard) -> None:
        known = on_shard(task, lambda s: s.versions[action.version])

        def prepare(directory: Path) -> Job:
            assert known.full is not None, action
            common = (status.checkpoint_sha256, status.encoder_fingerprint, known.full)
            unprepared = SealJob(action.version, action.revision, action.shard, *common, built=known.built)
            return prepare_seal(unprepared, self._seal_points.pop(action), functools.partial(create_checkpoint, task), directory)

        self._jobs.begin((action.shard, action.version), task, prepare)
        self._attempts.report.count("seal_begun")

    def _begin_snapshot(self, key: JobKey, task: OwnedShard, init: Init) -> None:
        def prepare(directory: Path) -> Job:
            create_checkpoint(task, directory)
            return SnapshotJob(task.number, encode_identity(task.number, init).decode(), str(directory))

        if self._snapshots.is_due(task):
            self._jobs.begin(key, task, prepare)

    def _collect(self, task: OwnedShard, building: int | None) -> None:
        """Takes in what builders have finished for this shard, and raises an alarm for jobs without progress (B4)."""
        for running in self._jobs.take_finished(task):
            self._attempts.attempt(f"result of the {describe_job(running.ticket.job)}", functools.partial(self._take_in, running))
        self._attempts.report.alarms += self._jobs.stalled(task, self._build_stall_s_max, building)

    def _take_in(self, running: RunningJob) -> None:
        job, task = running.ticket.job, running.task
        if running.ticket.future.cancelled():
            return
        try:
            result = running.ticket.future.result()
        except AifError as error:
            if isinstance(job, SealJob) and error.code in _PART_IS_LOST:
                on_shard(task, lambda shard: _forget_full(shard, job))
            if error.code == "database_corrupted" and str(running.directory) in error.message:  # the checkpoint has the shard's own files
                mark_damaged(on_shard(task, lambda shard: shard.database.path), error)
                raise Corrupted(error.code, f"{error.message}; the next start of this worker does so with shard {task.number}") from error
            raise
        match job, result:
            case BuildJob(), BuildResult():
                self._take_full(running, job, result)
            case SealJob(), Seal():
                on_shard(task, lambda shard: _accept_seal(shard, job, result))
                self._attempts.announce("sealed", job.version, job.revision, job.shard)
            case SnapshotJob(), ShardSnapshot():
                self._snapshots.taken(result)
                self._attempts.report.count("snapshot")

    def _take_full(self, running: RunningJob, job: BuildJob, result: BuildResult) -> None:
        if on_shard(running.task, lambda shard: _accept_full(shard, job, result)):
            self._attempts.report.build_seconds.append(self._clock.monotonic() - running.began)
            kept = f"{result.reused} of {result.part.rows} rows taken over" if result.reused else ""
            self._attempts.announce("rewritten" if job.rewrite else "built", job.version, shard=job.shard, reason=kept)
            _forget_covered(running.task, job.version, result.source_offsets)
        remove_slices(self._slices, job.shard, job.version)


def _read_facts(task: OwnedShard) -> ShardFacts:
    return on_shard(task, lambda shard: ShardFacts(shard.number, shard.next_offsets, shard.versions))


def _accept_full(shard: Shard, job: BuildJob, result: BuildResult) -> bool:
    """Records a full part, unless the version was stopped or its increments began after the part's checkpoint (B6). They begin at that checkpoint now, because
    those that the part holds may be forgotten: no later part may be older."""
    known: ShardVersion | None = shard.versions.get(job.version)
    if known is None or known.behind or (known.full is not None) != job.rewrite:
        return False
    if any(result.source_offsets[topic] < began for topic, began in known.building_from_offsets.items()):
        return False
    built = {BUILD_COMPUTED: result.part.rows - result.reused, BUILD_TAKEN_OVER: result.reused}
    began = dict(result.source_offsets)
    shard.update_version(job.version, full=result.part, sealed_increments=0, built=built, building_from_offsets=began)
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


def _forget_covered(task: OwnedShard, version: int, before: Mapping[str, int]) -> None:
    """Removes increments that the full part holds, a few at a time between two micro-batches."""
    key: bytes | None = b""
    while key is not None:
        key = on_shard(task, lambda shard, key=key: shard.forget_increments(version, before, key, _FORGET_ROWS))  # type: ignore[misc] # mypy: a lambda with a default
