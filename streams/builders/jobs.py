"""The messages between a worker and its builder processes. Only values, and no torch, so that a process can be started without it.

A worker sends a job. Its builder answers with the number of rows done, now and then, and in the end with the result or an AifError. The socket between the
two belongs to them alone, so its messages may be pickled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import Unavailable
from schemas.index.control import VersionStatus
from schemas.index.manifest import Part, Seal
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.limits import BUILD_ROWS_AT_ONCE
from streams.core.canary import CanaryFigures

_MACHINE_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class BuildBase:
    """Parts whose rows may be taken over for items whose inputs are still the same. `incremental` None: the increments in the checkpoint."""

    full: Part
    incremental: Part | None = None


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Build the full part of a shard of a version from a private checkpoint directory. `slice_rows` is a multiple of a file block.

    base              rows that need not be computed; None: all are computed
    rewrite           the result replaces a full part that the shard has
    slices_directory  folder of finished slices for the next attempt, "" = none. A slice counts only if its checkpoint was not before `from_offsets`
    """

    version: int
    shard: int
    checkpoint_sha256: str
    encoder_fingerprint: str
    checkpoint_directory: str = ""
    slice_rows: int = BUILD_ROWS_AT_ONCE
    base: BuildBase | None = None
    rewrite: bool = False
    slices_directory: str = ""
    from_offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The full part; the shard's next offsets at the (oldest) checkpoint that it was made from; how many rows were taken over from the base."""

    part: Part
    source_offsets: Mapping[str, int]
    reused: int = 0


@dataclass(frozen=True, slots=True)
class SealJob:
    """Seal a shard of a revision. `delta_position` was read before the checkpoint directory was made (sealer.py).

    built: rows of the full part by cause, for the seal's counts.
    """

    version: int
    revision: int
    shard: int
    checkpoint_sha256: str
    encoder_fingerprint: str
    full: Part
    delta_position: int = -1
    checkpoint_directory: str = ""
    built: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """Put the checkpoint of a shard into the store as a snapshot. `identity` is what the shard belongs to."""

    shard: int
    identity: str
    checkpoint_directory: str


@dataclass(frozen=True, slots=True)
class CanaryJob:
    """Compare a published version with the live one (None: no version is live) on a sample of so many users and items."""

    status: VersionStatus
    live: VersionStatus | None
    users: int
    items: int


@dataclass(frozen=True, slots=True)
class DryRunJob:
    """Run the network of a checkpoint file. There is no result; a bad file is RejectedInput."""

    path: str
    sha256: str


Job = BuildJob | SealJob | SnapshotJob | CanaryJob | DryRunJob
Result = BuildResult | Seal | ShardSnapshot | CanaryFigures | None


def describe_job(job: Job) -> str:
    """A job in words, for people."""
    if isinstance(job, CanaryJob):
        return f"canary of version {job.status.version}"
    if isinstance(job, DryRunJob):
        return f"dry run of checkpoint {job.sha256[:12]}"
    if isinstance(job, SnapshotJob):
        return f"snapshot of shard {job.shard}"
    doing = f"seal of revision {job.revision}" if isinstance(job, SealJob) else "build"
    return f"{doing} of version {job.version}, shard {job.shard}"


def machine_error(job: Job, error: OSError) -> Unavailable:
    """The error for a job that failed by the machine and not by its input. The disk has a fault, or processes, open files or memory are too few."""
    text = f"{describe_job(job)} met an error of this machine: {error!r}; look at its disk, memory, open files and processes"
    return Unavailable("builder_machine", text, _MACHINE_RETRY_S)
