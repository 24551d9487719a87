"""The dry run of a replay: a small part of it is done in a temporary directory, and its times are scaled up. Nothing is kept."""

import itertools
import tempfile
from pathlib import Path

from infra.clock import Clock
from schemas.index.manifest import Manifest
from schemas.index.shard_snapshot import snapshot_manifest_path
from streams.builders.full_part import encode_blocks
from streams.core.replay_plan import Forecast, Sample, ShardReplay, plan_forecast
from streams.encoder import RowEncoder
from streams.replay.points import ReplayPlan, ReplaySource
from streams.replay.replay import ReplayPace, apply_shard, checkpoint_place
from streams.shard.shard_reader import open_shard_reader
from streams.shard.snapshot_files import decode_stored_snapshot

_SAMPLE_RECORDS = 2_000


def forecast_replay(
    source: ReplaySource, plan: ReplayPlan, encoder: RowEncoder, clock: Clock, pace: ReplayPace, like: Manifest | None
) -> Forecast:
    """How long the plan will take on this machine. `like`: a version of the same catalogue, which has the number of rows."""
    known_rows = None if like is None else sum(seal.rows for seal in like.seals)
    with tempfile.TemporaryDirectory(prefix="aif-replay-") as folder:
        sample = _measure(source, plan, encoder, clock, pace.batch_records, Path(folder))
    return plan_forecast(plan.records, sample, known_rows, pace.rate)


def _measure(source: ReplaySource, plan: ReplayPlan, encoder: RowEncoder, clock: Clock, batch_records: int, folder: Path) -> Sample:
    one = max(plan.shards, key=lambda s: s.records)
    before = clock.monotonic()
    apply_shard(source, one, folder, clock, ReplayPace(batch_records), lambda *_: None, _SAMPLE_RECORDS)
    apply_s = clock.monotonic() - before
    with open_shard_reader(checkpoint_place(folder, one.shard)) as reader:
        updates = sum(counts.consumed for counts in reader.state.counters.values()) - _updates_of_base(source, one)
        live = sum(map(len, reader.scan_blocks()))
        before = clock.monotonic()
        rows = sum(map(len, encode_blocks(encoder, itertools.islice(reader.scan_blocks(), 1))))
    return Sample(min(one.records, _SAMPLE_RECORDS), updates, live, apply_s, rows, clock.monotonic() - before)


def _updates_of_base(source: ReplaySource, one: ShardReplay) -> int:
    """The updates that the counters of the shard's snapshot hold already."""
    if not one.snapshot:
        return 0
    return decode_stored_snapshot(source.store, snapshot_manifest_path(one.shard, one.snapshot)).updates
