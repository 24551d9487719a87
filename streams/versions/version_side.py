"""Everything in a worker that has to do with versions, wired together: builders, reconciler, decisions on checkpoints, messages to Kafka.

With `build.warm`, the builder processes start in the constructor and kernels are loaded at once; without it, both wait until a version needs them. Neither
this process nor a builder loads torch. The dry run of a new checkpoint and its canary, which run a whole network, have a process of their own. It starts with
a checkpoint and ends when no other checkpoint comes for a while.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.clock import Clock
from infra.fork_server import Template
from infra.index.control_log import ControlLog
from infra.index.delta_tail import fetch_lag
from infra.index.store import StoreClock
from infra.kafka.reader import SourceRecord
from schemas.index.retention import RetentionRules
from streams.builders.checkpoint_judge import judge_checkpoint
from streams.builders.pool import BuilderPool
from streams.builders.running_jobs import OwnedShard
from streams.builders.template import start_from
from streams.encoder import EncoderCache
from streams.kernels import load_kernels
from streams.settings import BuildSection, WorkerSettings
from streams.shard.log_ends import LogEnds
from streams.versions.attempts import StepReport
from streams.versions.checkpoints import CheckpointGate, handle_checkpoints
from streams.versions.keepers import SnapshotTimes
from streams.versions.reconcile import Reconciler, ReconcileSettings
from streams.versions.server_reports import ServerReports
from streams.versions.version_messages import VersionMessages

_JUDGE_LINGER_S = 60.0  # a checkpoint's canary comes soon after its dry run, and often the next checkpoint
_log = logging.getLogger("aif.streams.versions")


class VersionSide:
    """One per worker. The agent of model-checkpoints calls `handle_checkpoints`, the reconciling thread `step`; `close` comes when both have ended.

    owned     the shards that this worker has now
    folder    the worker's data directory
    stopping  set while the worker gives its partitions away, also for its stop
    by        who writes the entries of the control log
    template  the process that builders are forked from; None: they are started as programs
    """

    def __init__(
        self,
        settings: WorkerSettings,
        control_log: ControlLog,
        clock: Clock,
        *,
        owned: Callable[[], Sequence[OwnedShard]],
        folder: Path,
        stopping: threading.Event,
        by: str,
        template: Template | None,
    ) -> None:
        store, build, rollback = control_log.store, settings.build, settings.rollback.rules
        bootstrap, prefix = settings.connection(), settings.kafka.topic_prefix
        start = start_from(template, store.url)
        self.builders = BuilderPool(start, folder / "logs", build.processes, warm=build.warm)
        # A pool of its own, so that a new checkpoint does not wait for a build.
        self._judge = BuilderPool(start, folder / "logs", warm=False, name="judge", linger_s=_JUDGE_LINGER_S)
        self._scratch = folder / "scratch"
        self.messages = VersionMessages(bootstrap, prefix)
        self.reports = ServerReports(bootstrap, prefix, clock)
        if rollback.enabled:
            self.reports.start()
        self.encoders = EncoderCache(store)
        if build.warm:  # so that the first version does not wait for them
            threading.Thread(target=load_kernels, name="load-kernels", daemon=True).start()
        store_clock = StoreClock(store, clock)  # what the log and the store's files are dated by
        self.gate = self._make_gate(build, control_log, store_clock, by, stopping)
        self.reconciler = Reconciler(
            control_log,
            store,
            store_clock,
            _reconcile_settings(settings),
            owned,
            self.builders,
            LogEnds(bootstrap, prefix),
            self._scratch,
            self.encoders,
            by=by,
            announce=self.messages.announce,
            slices=folder / "slices",
            reports=self.reports.history,
            judge=self._judge,
            lag=functools.partial(fetch_lag, bootstrap, prefix, store),
            reports_now_ms=self.reports.now_ms,
        )
        self._alarms: frozenset[str] = frozenset()

    def _make_gate(self, build: BuildSection, control_log: ControlLog, clock: Clock, by: str, stopping: threading.Event) -> CheckpointGate:
        return CheckpointGate(
            control_log,
            control_log.store,
            clock,
            encoder_fingerprint=lambda: self.encoders.fingerprint,
            roots=build.checkpoint_roots,
            fetch_s_max=build.checkpoint_fetch_s_max,
            send_dead_letter=self.messages.send_dead_letter,
            announce=self.messages.announce,
            by=by,
            stopping=stopping,
            dry_run=lambda data: judge_checkpoint(self._judge, self._scratch, data),
        )

    async def handle_checkpoints(self, records: Sequence[SourceRecord]) -> None:
        """Decides checkpoint records, off the event loop."""
        await handle_checkpoints(self.gate, records)

    def step(self) -> StepReport:
        """One step of reconciling. A fault is logged when it is new, not at every step."""
        report = self.reconciler.step()
        alarms = frozenset(report.alarms)
        for message in (*report.news, *sorted(alarms - self._alarms)):
            _log.error("%s", message)
        self._alarms = alarms
        return report

    def close(self) -> None:
        """Give up running work and end the builders."""
        self.reconciler.close()
        self.reports.close()
        self.builders.close()
        self._judge.close()
        self.messages.close()


def _reconcile_settings(settings: WorkerSettings) -> ReconcileSettings:
    build, index = settings.build, settings.index
    return ReconcileSettings(
        reseal_interval_s=build.revise_every_s,
        build_stall_s_max=build.stall_s_max,
        snapshots=SnapshotTimes(build.snapshot_every_s, build.snapshot_every_updates),
        keep=RetentionRules(index.keep_versions, int(index.remove_after_s * 1000)),
        canary=settings.canary.rules,
        reports=settings.rollback.rules,
    )
