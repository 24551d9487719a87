"""Settings of `aif worker`, its builders, and `aif statistics`. Nothing here changes bytes of an index. infra/settings.py has the shared sections."""

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

    data_dir: Path = Field(
        default_factory=lambda: user_data_dir() / "worker", description="One RocksDB directory per shard; belongs to one broker"
    )
    metrics_port: int = Field(0, ge=0, le=65_535, description="Port of the metrics page on loopback; 0: no page")
    apply_topics: bool = Field(True, description="Create missing topics at the start")
    within_ms: int = Field(10, ge=1, le=1_000, description="Wait of a micro-batch for more records")
    batch_records_max: int = Field(
        2_000, ge=1, le=MICRO_BATCH_RECORDS_MAX, description="Records of one topic in a micro-batch, of all shards of the worker"
    )
    session_timeout_s: float = Field(
        6.0,
        ge=6.0,
        le=60.0,
        description="Kafka's session timeout; partitions of a killed worker that does not start again stand still for so long",
    )
    reconcile_every_ms: int = Field(200, ge=10, le=60_000, description="Time between two comparisons of shards with the control log")


class BuildSection(Section):
    """Full builds and revisions."""

    processes: int = Field(1, ge=1, le=256, description="Builder processes of one worker")
    warm: bool = Field(True, description="Start builders and compile kernels at the start instead of with the first version")
    # Index-deltas keeps three times this, so that servers find the deltas that they need.
    revise_every_s: float = Field(
        RESEAL_INTERVAL_HOURS * 3600.0,
        ge=1.0,
        le=RESEAL_INTERVAL_HOURS * 3600.0,
        description="Age of a published version at which its next revision is wanted",
    )
    stall_s_max: float = Field(600.0, ge=1.0, description="Time without progress of a build before an alarm")
    # A snapshot is for an owner without the directory. The bound is half of the topics' retention.
    snapshot_every_s: float = Field(
        3600.0, ge=1.0, le=SNAPSHOT_INTERVAL_HOURS * 3600.0, description="Longest time between two snapshots of a shard"
    )
    snapshot_every_updates: int = Field(200_000, ge=1, description="Updates after which a shard is snapshotted sooner")
    checkpoint_roots: tuple[Path, ...] = Field(
        default_factory=lambda: (user_data_dir() / "checkpoints",), description="Folders from which announced checkpoints may be read"
    )
    checkpoint_fetch_s_max: float = Field(60.0, ge=0.1, description="Time to read a checkpoint before it is rejected")


class CanarySection(Section):
    """What a published version must show on a fixed sample before it is promoted by itself; `aif index approve` overrules it.

    The defaults stop broken versions and let through merely different ones. CanaryRules (streams/core/canary.py) has the measurements.
    """

    enabled: bool = Field(True, description="Run a canary before a version is promoted")
    users: int = Field(_CANARY.users, ge=1, le=1_000, description="Users of the sample")
    items: int = Field(_CANARY.items, ge=1, le=20_000, description="Items of the sample, scored for every user")
    bad_share_max: float = Field(_CANARY.bad_share_max, ge=0.0, le=1.0, description="Share of scores that may be not finite")
    distance_max: float = Field(_CANARY.distance_max, ge=0.0, description="Median difference of click logits from the live version")
    overlap_min: float = Field(
        _CANARY.overlap_min, ge=0.0, le=1.0, description="Share of each user's best tenth that both versions must have in common; 0: any"
    )
    allow_uncompared: bool = Field(_CANARY.allow_uncompared, description="Promote a version that could not be compared with the live one")

    @property
    def rules(self) -> CanaryRules:
        """As the canary wants them."""
        return CanaryRules(**self.model_dump())


class RollbackSection(Section):
    """When servers' reports roll the live version back: what counts is in ReportRules (streams/core/misbehaviour.py)."""

    enabled: bool = Field(True, description="Roll the live version back when servers report trouble")
    window_s: float = Field(_REPORTS.window_s, ge=1.0, le=600.0, description="Age up to which reports of the live version count")
    answers_min: int = Field(_REPORTS.answers_min, ge=1, description="Requests of a server in the window before its report counts")
    quorum: float = Field(_REPORTS.quorum, ge=0.0, lt=1.0, description="Share of the working servers of which more must have a fault")
    bad_share_max: float = Field(
        _REPORTS.bad_share_max, ge=0.0, le=1.0, description="Share of requests that may fail or give scores that are not finite"
    )
    parity_share_max: float = Field(
        _REPORTS.parity_share_max, ge=0.0, le=1.0, description="Share of recomputed answers that may differ from the reference"
    )
    parity_min: int = Field(_REPORTS.parity_min, ge=1, description="Recomputed answers before their share counts")
    slower_max: float = Field(_REPORTS.slower_max, ge=1.0, description="Growth of a candidate's processor time over the previous version")
    slow_ms_min: float = Field(
        _REPORTS.slow_ms_min, ge=0.0, description="Processor time of an answer below which a version never counts as slow"
    )
    worse_by: float = Field(_REPORTS.worse_by, ge=1.0, description="Growth of a fault's share over the previous version before it counts")

    @property
    def rules(self) -> ReportRules:
        """As the rule wants them."""
        return ReportRules(**self.model_dump())


class StatisticsSection(Section):
    """The statistics that `aif statistics` keeps current."""

    data_dir: Path = Field(default_factory=lambda: user_data_dir() / "statistics", description="RocksDB directory of the counters")
    off: tuple[str, ...] = Field((), description="Names of statistics that are not kept, though a checkpoint names them")
    interval_s: float = Field(1.0, ge=0.1, le=3600.0, description="Least time between two updates of one item")
    updates_max: int = Field(3_000, ge=1, le=100_000, description="Items updated in one interval, hottest first")
    within_ms: int = Field(10, ge=1, le=1_000, description="Wait of a micro-batch for more records")
    batch_records_max: int = Field(2_000, ge=1, le=MICRO_BATCH_RECORDS_MAX, description="Records of one topic in a micro-batch")
    session_timeout_s: float = Field(
        6.0, ge=6.0, le=60.0, description="Kafka's session timeout; after a kill another process takes over then"
    )


class StatisticsSettings(ProcessSettings):
    """All settings of `aif statistics`."""

    statistics: StatisticsSection = Field(default_factory=StatisticsSection)


class WorkerSettings(ProcessSettings):
    """All settings of `aif worker`."""

    worker: WorkerSection = Field(default_factory=WorkerSection)
    build: BuildSection = Field(default_factory=BuildSection)
    canary: CanarySection = Field(default_factory=CanarySection)
    rollback: RollbackSection = Field(default_factory=RollbackSection)
