"""Settings of the nearline processes: `aif worker` and what it starts.

Here: sections `worker`, `build`, `canary` and `rollback`. Not here: sections that several processes share (infra/settings.py). Nothing here changes
bytes of an index.
"""

from pathlib import Path

from pydantic import Field

from infra.folders import user_data_dir
from infra.settings import ProcessSettings, Section
from schemas.limits import MICRO_BATCH_RECORDS_MAX
from schemas.topics import RESEAL_INTERVAL_HOURS, SNAPSHOT_INTERVAL_HOURS
from streams.core.canary import CanaryRules
from streams.core.misbehaviour import ReportRules

_CANARY, _REPORTS = CanaryRules(), ReportRules()


class WorkerSection(Section):
    """How a worker reads, and where its shards are."""

    data_dir: Path = Field(default_factory=lambda: user_data_dir() / "worker")  # one RocksDB directory a shard; belongs to one broker
    metrics_port: int = Field(0, ge=0, le=65_535)  # on loopback; 0 = no metrics page
    apply_topics: bool = True  # create missing topics at start; off where somebody else owns the broker's topics
    within_ms: int = Field(10, ge=1, le=1_000)  # how long a micro-batch waits for more records
    batch_records_max: int = Field(2_000, ge=1, le=MICRO_BATCH_RECORDS_MAX)  # of one topic, all shards of the worker together
    session_timeout_s: float = Field(10.0, ge=6.0, le=60.0)  # after a kill the partitions stand still about 1.7 times this
    reconcile_every_ms: int = Field(200, ge=10, le=60_000)  # how often shards are compared with the control log


class BuildSection(Section):
    """Full builds and revisions."""

    processes: int = Field(1, ge=1, le=256)  # builder processes of one worker; they stay alive between versions
    warm: bool = True  # kernels and builders are there from the start; false: with the first version and the first job, a second later
    # Age of a published version at which its next revision is wanted. Index-deltas keeps three of them, so that servers find what they need.
    revise_every_s: float = Field(RESEAL_INTERVAL_HOURS * 3600.0, ge=1.0, le=RESEAL_INTERVAL_HOURS * 3600.0)
    stall_s_max: float = Field(600.0, ge=1.0)  # a build without progress for so long raises an alarm
    # Snapshots of shards, for an owner without the directory: one an hour, sooner after so many updates. At most half of the topics' retention.
    snapshot_every_s: float = Field(3600.0, ge=1.0, le=SNAPSHOT_INTERVAL_HOURS * 3600.0)
    snapshot_every_updates: int = Field(200_000, ge=1)
    # Folders from which announced checkpoints may be read; nothing else on this machine is, and no link is followed.
    checkpoint_roots: tuple[Path, ...] = Field(default_factory=lambda: (user_data_dir() / "checkpoints",))
    checkpoint_fetch_s_max: float = Field(60.0, ge=0.1)  # a checkpoint that cannot be read for so long is rejected


class CanarySection(Section):
    """What a published version must show on a fixed sample before it is promoted by itself; `aif index approve` overrules it.

    The defaults stop what is broken and let through what is merely different: see CanaryRules (streams/core/canary.py) for what was measured.
    """

    enabled: bool = True
    users: int = Field(_CANARY.users, ge=1, le=1_000)
    items: int = Field(_CANARY.items, ge=1, le=20_000)  # times users: pairs that are scored in memory
    bad_share_max: float = Field(_CANARY.bad_share_max, ge=0.0, le=1.0)  # of scores that are not finite
    distance_max: float = Field(_CANARY.distance_max, ge=0.0)  # median difference of the click logits of the same user and item
    overlap_min: float = Field(_CANARY.overlap_min, ge=0.0, le=1.0)  # of each user's best tenth; 0 = any
    allow_uncompared: bool = _CANARY.allow_uncompared  # promote a version that could not be compared with the live one

    @property
    def rules(self) -> CanaryRules:
        """As the canary wants them."""
        return CanaryRules(**self.model_dump())


class RollbackSection(Section):
    """When servers' reports roll the live version back: what counts is in ReportRules (streams/core/misbehaviour.py)."""

    enabled: bool = True
    window_s: float = Field(_REPORTS.window_s, ge=1.0, le=600.0)  # how far back reports of the live version count
    answers_min: int = Field(_REPORTS.answers_min, ge=1)  # requests of a server in that time, before it is believed
    quorum: float = Field(_REPORTS.quorum, ge=0.0, lt=1.0)  # more than this share of the working servers must have a fault
    bad_share_max: float = Field(_REPORTS.bad_share_max, ge=0.0, le=1.0)  # of requests that failed or are not finite
    parity_share_max: float = Field(_REPORTS.parity_share_max, ge=0.0, le=1.0)  # of answers unlike the reference's
    parity_min: int = Field(_REPORTS.parity_min, ge=1)
    slower_max: float = Field(_REPORTS.slower_max, ge=1.0)  # times the 99th percentile on the former version
    slow_ms_min: float = Field(_REPORTS.slow_ms_min, ge=0.0)  # and above this
    worse_by: float = Field(_REPORTS.worse_by, ge=1.0)  # times what was there before

    @property
    def rules(self) -> ReportRules:
        """As the rule wants them."""
        return ReportRules(**self.model_dump())


class WorkerSettings(ProcessSettings):
    """All settings of `aif worker`."""

    worker: WorkerSection = Field(default_factory=WorkerSection)
    build: BuildSection = Field(default_factory=BuildSection)
    canary: CanarySection = Field(default_factory=CanarySection)
    rollback: RollbackSection = Field(default_factory=RollbackSection)
