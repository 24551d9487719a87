"""The version side of a worker, wired: builder processes, reconciler, the desk of the checkpoint agent, messages to Kafka.

Here: only wiring and log lines, for streams/worker.py. Builders are forked in the constructor, from the template that the worker left behind. Where
nothing is warm, kernels are loaded by the first version that receives rows, and builders start with their first job. Torch is loaded by none of them: what
runs a whole network, the dry run of a new checkpoint and then its canary, has a process of its own that ends when no other comes.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.clock import Clock
from infra.fork_server import Template
from infra.index.control_log import ControlLog
from infra.index.store import IndexStore
from infra.kafka.reader import SourceRecord
from streams.agents.checkpoints import CheckpointDesk, handle_checkpoints
from streams.builders.checkpoint_judge import judge_checkpoint
from streams.builders.pool import BuilderPool
from streams.builders.running_jobs import OwnedShard
from streams.builders.template import start_from
from streams.core.canary import CanaryRules
from streams.core.misbehaviour import ReportRules
from streams.encoders import LazyEncoders
from streams.settings import BuildSection
from streams.versions.log_ends import KafkaLogEnds
from streams.versions.messages import VersionMessages
from streams.versions.reconcile import Reconciler, ReconcileSettings, StepReport
from streams.versions.server_reports import ServerReports
from streams.versions.snapshot_keeper import SnapshotTimes
from streams.versions.store_keeper import KeepSettings

_JUDGE_LINGER_S = 60.0  # a checkpoint's canary comes soon after its dry run, and often the next checkpoint
_log = logging.getLogger("aif.streams.versions")


class VersionSide:
    """One per worker. `handle_checkpoints` is for the agent of model-checkpoints, `step` for the reconciling thread; `close` after both ended.

    owned: the shards this worker has now; folder: its data directory; stopping: set when the worker is asked to stop; template: where builders are
    forked from, None = they are programs of their own.
    """

    def __init__(
        self,
        settings: BuildSection,
        bootstrap: str,
        prefix: str,
        control_log: ControlLog,
        store: IndexStore,
        clock: Clock,
        owned: Callable[[], Sequence[OwnedShard]],
        folder: Path,
        stopping: threading.Event,
        by: str,
        keep: KeepSettings,
        canary: CanaryRules,
        rollback: ReportRules,
        template: Template | None = None,
    ) -> None:
        start = start_from(template, store.url)
        self.builders = BuilderPool(start, folder / "logs", settings.processes, warm=settings.warm)
        # A new checkpoint does not wait for a build.
        self._judge = BuilderPool(start, folder / "logs", warm=False, name="judge", linger_s=_JUDGE_LINGER_S)
        self._scratch = folder / "scratch"
        self.messages = VersionMessages(bootstrap, prefix)
        self.reports = ServerReports(bootstrap, prefix, clock)
        if rollback.enabled:
            self.reports.start()
        self.encoders = LazyEncoders(store)
        if settings.warm:
            self.encoders.preload()
        self.desk = self._make_desk(settings, control_log, store, clock, by, stopping)
        self.reconciler = Reconciler(
            control_log,
            store,
            clock,
            ReconcileSettings(
                settings.revise_every_s,
                settings.stall_s_max,
                snapshots=SnapshotTimes(settings.snapshot_every_s, settings.snapshot_every_updates),
                keep=keep,
                canary=canary,
                reports=rollback,
            ),
            owned,
            self.builders,
            KafkaLogEnds(bootstrap, prefix),
            self._scratch,
            self.encoders,
            by,
            self.messages.announce,
            folder / "slices",
            self.reports.book,
            self._judge,
        )
        self._said: frozenset[str] = frozenset()

    def _make_desk(
        self, settings: BuildSection, control_log: ControlLog, store: IndexStore, clock: Clock, by: str, stopping: threading.Event
    ) -> CheckpointDesk:
        return CheckpointDesk(
            control_log,
            store,
            clock,
            lambda: self.encoders.fingerprint,
            settings.checkpoint_roots,
            settings.checkpoint_fetch_s_max,
            self.messages.send_dead_letter,
            self.messages.announce,
            by,
            stopping,
            dry_run=lambda data: judge_checkpoint(self._judge, self._scratch, data),
        )

    async def handle_checkpoints(self, records: Sequence[SourceRecord]) -> None:
        """Decides checkpoint records, off the event loop."""
        await handle_checkpoints(self.desk, records)

    def step(self) -> StepReport:
        """One round of reconciling; what is wrong is logged when it is new, not every round."""
        report = self.reconciler.step()
        wrong = frozenset((*report.errors, *report.alarms))
        for message in sorted(wrong - self._said):
            _log.error("%s", message)
        self._said = wrong
        return report

    def close(self) -> None:
        """Gives up what is running and ends the builders."""
        self.reconciler.close()
        self.reports.close()
        self.builders.close()
        self._judge.close()
        self.messages.close()
