"""Where a replay begins and ends, for every shard. Pure.

Invariants (protocol B15): a replay that begins after offset 0 begins with a snapshot that holds everything before. What retention has removed is named,
topic by topic, and never skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.errors import Incompatible
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.topics import SHARD_TOPICS

Offsets = Mapping[str, int]  # next offset by source topic


@dataclass(frozen=True, slots=True)
class ShardLog:
    """What there is for one shard: the retained range of each topic, and its usable snapshots, those with the least to replay first."""

    shard: int
    start: Offsets
    end: Offsets
    snapshots: Sequence[ShardSnapshot] = ()


@dataclass(frozen=True, slots=True)
class ShardReplay:
    """One shard's part of a replay. `snapshot` is the unique name of its base, "" = none, from offset 0."""

    shard: int
    start: Offsets
    end: Offsets
    snapshot: str = ""

    @property
    def records(self) -> int:
        """Records to read."""
        return sum(self.end[topic] - self.start[topic] for topic in SHARD_TOPICS)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a replay is to begin. `not_after`: by shard, offsets at or before which the base must lie; None: it must only lie before the end."""

    from_log_start: bool
    not_after: Mapping[int, Offsets] | None = None


def plan_shard_replay(log: ShardLog, begin: Begin, end: Offsets) -> ShardReplay:
    """Where one shard begins and ends. Raises Incompatible: `offset_gone` (the end is not in the log), `log_start_gone`, `no_base`."""
    for topic in SHARD_TOPICS:
        if not 0 <= end[topic] <= log.end[topic]:
            raise Incompatible(
                "offset_gone",
                f"shard {log.shard}: {topic} is wanted up to {end[topic]}, the log ends at {log.end[topic]}; give an earlier --to",
            )
    gone = {topic: log.start[topic] for topic in SHARD_TOPICS if log.start[topic] > 0 and end[topic] > 0}
    if begin.from_log_start:
        if gone:
            raise Incompatible("log_start_gone", f"{_describe_gap(log.shard, gone)}; lengthen the retention, or give --from snapshot")
        return ShardReplay(log.shard, dict.fromkeys(SHARD_TOPICS, 0), end)
    limits = [end] if begin.not_after is None else [end, begin.not_after[log.shard]]
    for one in log.snapshots:
        at = one.next_offsets
        if all(log.start[t] <= at[t] <= limit[t] for t in SHARD_TOPICS for limit in limits):
            return ShardReplay(log.shard, dict(at), end, one.unique)
    if begin.not_after is not None and not gone:
        return ShardReplay(log.shard, dict.fromkeys(SHARD_TOPICS, 0), end)
    known = [dict(s.next_offsets) for s in log.snapshots]
    reason = _describe_gap(log.shard, gone) if gone else f"shard {log.shard} has its whole log: --from earliest is possible"
    raise Incompatible(
        "no_base", f"shard {log.shard}: no snapshot at or before {dict(limits[-1])} that the log completes; it has {known}; {reason}"
    )


def _describe_gap(shard: int, gone: Offsets) -> str:
    """Names what retention has removed."""
    parts = [f"{topic}: offsets 0 to {start - 1} are gone, the log begins at {{{shard}: {start}}}" for topic, start in gone.items()]
    return f"shard {shard}: " + "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long a replay will take, scaled up from a sample. Rows and seconds are estimates, records are counted."""

    records: int
    updates: int
    rows: int
    apply_s: float
    encode_s: float

    @property
    def total_s(self) -> float:
        """Both times together."""
        return self.apply_s + self.encode_s


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements: records and updates applied in `apply_s`, distinct items among them, rows encoded in `encode_s`."""

    records: int
    updates: int
    items: int
    apply_s: float
    rows: int
    encode_s: float


def plan_forecast(records: int, sample: Sample, known_rows: int | None, rate: float | None) -> Forecast:
    """Scales a sample up. known_rows: those of a live version, which may have been sealed long ago, so there are at least the sample's items. None: the share
    of distinct items in the sample is taken for all, which overestimates."""
    scale = records / sample.records if sample.records else 0.0
    rows = max(known_rows, sample.items) if known_rows is not None else round(sample.items * scale)
    apply_s = max(sample.apply_s * scale, records / rate if rate else 0.0)
    return Forecast(records, round(sample.updates * scale), rows, apply_s, sample.encode_s * rows / sample.rows if sample.rows else 0.0)
