"""One step brings the owned shards and the published versions closer to the wishes of the control log.

    for every owned shard    shard_versions.py
    for the index            manifest -> publish -> canary -> promote; roll back; want a revision when the last publish is old; drop and remove
                             what is not to be kept

Invariants:
- A step keeps no state that matters. After a kill between any two actions the next worker makes the same plan again, and every action may be done
  twice. Several workers may step at the same time. No message carries a command; index-events are hints.
- While the log cannot be read, shards continue with their last state, and nothing is sealed, published or removed.
- An error of one version or shard is reported, tried again later, and never stops the others. A failed assertion is raised (attempts.py).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.clock import Clock
from infra.index.control_log import ControlLog
from infra.index.store import IndexStore, read_if_there
from schemas.events import IndexEvent
from schemas.index.control import ControlState, VersionStatus
from schemas.index.lifecycle import EntryKind
from schemas.index.manifest import manifest_path
from schemas.index.retention import RetentionRules
from schemas.topics import RESEAL_INTERVAL_HOURS
from streams.builders.running_jobs import Builders, OwnedShard, RunningJobs
from streams.core.canary import CanaryRules
from streams.core.misbehaviour import ReportHistory, ReportRules
from streams.core.version_plans import REWRITE_SHARE, Revision, plan_publications
from streams.encoder_protocol import Encoders
from streams.shard.log_ends import LogEnds
from streams.versions.attempts import Attempts, StepReport
from streams.versions.keepers import SnapshotKeeper, SnapshotTimes, StoreKeeper
from streams.versions.promotion import Promotion, RollbackWatch
from streams.versions.publication import Publication
from streams.versions.shard_versions import ShardVersions


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """When things are done; none of it changes the bytes of an index."""

    reseal_interval_s: float = RESEAL_INTERVAL_HOURS * 3600.0
    build_stall_s_max: float = 600.0
    retry_s: float = 2.0
    rewrite_share: float = REWRITE_SHARE
    snapshots: SnapshotTimes = field(default_factory=SnapshotTimes)
    keep: RetentionRules = field(default_factory=lambda: RetentionRules(keep_versions=5, grace_ms=24 * 3_600_000))
    canary: CanaryRules = field(default_factory=lambda: CanaryRules(enabled=False))
    reports: ReportRules = field(default_factory=ReportRules)


class Reconciler:
    """See the module. One thread calls `step`.

    owned     the shards that this process has now
    scratch   a folder of this process alone, on the disk of its shards; emptied here
    by        who writes the entries of the control log
    announce  gets an event for all that happened
    slices    where finished slices of builds are kept, None = nowhere
    reports   what servers have reported; reports_now_ms: the time by the clock that dates reports (server_reports.py), None = `clock`
    judge     processes for canaries, None = the builders
    lag       by shard, how many records that other versions have a version lacks (infra/index/delta_tail.py)
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
        by: str,
        announce: Callable[[IndexEvent], None],
        slices: Path | None = None,
        reports: Callable[[], ReportHistory] = dict,
        judge: Builders | None = None,
        lag: Callable[[VersionStatus], Mapping[int, int]] = lambda _: {},
        reports_now_ms: Callable[[], int | None] | None = None,
    ) -> None:
        self._control_log, self._settings, self._owned, self._encoders = control_log, settings, owned, encoders
        self._attempts = Attempts(clock, settings.retry_s, announce)
        self._publication = Publication(control_log, store, clock, by)
        self._promotion = Promotion(control_log, clock, judge or builders, settings.canary, by)
        self._watch = RollbackWatch(control_log, clock, settings.reports, reports, by, lag, reports_now_ms or clock.now_ms)
        self._keeper = StoreKeeper(control_log, store, clock, settings.keep, by)
        self._shards = ShardVersions(
            self._attempts,
            RunningJobs(builders, clock, scratch),
            SnapshotKeeper(store, clock, settings.snapshots),
            self._publication,
            encoders,
            log_ends,
            clock,
            slices=slices,
            retry_s=settings.retry_s,
            rewrite_share=settings.rewrite_share,
            build_stall_s_max=settings.build_stall_s_max,
        )

    def step(self) -> StepReport:
        """One step. Raises what reading the control log raises (Unavailable, Corrupted), and AssertionError; every other error is in the report."""
        report = self._attempts.begin_step()
        state = self._control_log.refresh()
        if state.unknown_entry:
            report.alarms.append(f"reconciling stopped: {state.unknown_entry}")
            return report
        self._shards.remove_old_slices(state)
        for task in self._owned():
            self._attempts.attempt(f"shard {task.number}", functools.partial(self._shards.step, state, task))
        self._shards.drop_lost({task.number for task in self._owned()})
        for wanted in plan_publications(state):
            self._attempts.attempt(f"publish {wanted.version}.{wanted.revision}", functools.partial(self._publish, state, wanted))
        self._attempts.attempt("rollback", self._roll_back)
        self._attempts.attempt("promote", self._promote)
        self._attempts.attempt("revise", self._revise)
        self._attempts.attempt("keep", self._keep)
        return report

    def _publish(self, state: ControlState, wanted: Revision) -> None:
        """Makes the manifest from a complete set of seals if absent yet, then writes its `publish` entry."""
        status = state.versions[wanted.version]
        manifest = read_if_there(self._publication.store, manifest_path(wanted.version, wanted.revision))
        if manifest is None:
            seals = self._publication.read_seals(status, wanted, self._attempts.complain)
            assert state.init is not None
            if len(seals) < state.init.shards:
                for task in self._owned():
                    if task.number not in seals:
                        self._shards.seal_again(task, wanted)
                return
            encoder = self._encoders.get(status.version, status.checkpoint_sha256)
            manifest = self._publication.create_manifest(status, wanted, encoder, seals)
        else:
            self._publication.check_manifest(status, wanted, self._encoders.get(status.version, status.checkpoint_sha256), manifest)
        if manifest is not None and self._publication.publish(wanted, manifest):
            self._attempts.announce("published", wanted.version, wanted.revision)

    def _promote(self) -> None:
        for entry in self._promotion.step():
            kind = {EntryKind.PROMOTE: "promoted", EntryKind.WITHHOLD: "withheld"}[entry.kind]
            revision = self._control_log.state.versions[entry.version].revision
            self._attempts.announce(kind, entry.version, revision, reason=entry.reason)

    def _roll_back(self) -> None:
        if (found := self._watch.step()) is not None:
            self._attempts.announce("rolled_back", found.version, reason=f"to {found.back_to}: {found.reason}")

    def _revise(self) -> None:
        for due in self._publication.revise(self._control_log.state, int(self._settings.reseal_interval_s * 1000)):
            self._attempts.announce("revised", due.version, due.revision)

    def _keep(self) -> None:
        for version in self._keeper.freeze():
            self._attempts.announce("frozen", version)
        for version in self._keeper.drop():
            self._attempts.announce("dropped", version)
        removed = self._keeper.remove([task for task in self._owned() if task.admitted])
        if removed:
            self._attempts.report.done["files_removed"] = removed

    def close(self) -> None:
        """Give up running work; the next owner of the shards does it again."""
        self._shards.close()
        self._promotion.close()
