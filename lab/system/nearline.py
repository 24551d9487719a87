"""`aif bench nearline`: rates of the nearline path on a catalogue, compared with the bare network on the same rows in the same process.

    full build      a shard's checkpoint in, the rows of its full part out (streams/builders/full_part.py), in this process
    floor           the item network alone, in the same blocks and arithmetic, on features that are tensors already
    increments      a real worker on a real broker: price changes of a live version, one update per record, and four times as many, 256 per record
    start           a worker with that catalogue in its shards: from the end of its imports to the first batch it applied

The rates of increments come from the offsets and times that the worker writes to index-deltas.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.clock import SystemClock
from infra.figures import Figures
from infra.garbage import settle_garbage_collection
from infra.kafka.reader import SourceRecord
from lab.catalogues.catalogue import Catalogue
from lab.catalogues.open_catalogue import open_world
from lab.figures.declared import read_bench
from lab.system.stage import (
    AppliedWatch,
    BenchStage,
    imported_at_s,
    open_bench_stage,
    peak_rss_mb,
    processor_s,
    tell,
    write_random_checkpoint,
)
from schemas.events import ItemFeaturesRecord, NewItemsRecord, encode_record
from schemas.features import FeatureBlock, encode_features
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.limits import UPDATES_PER_RECORD_MAX
from schemas.model.checkpoint import Checkpoint, read_checkpoint
from schemas.model.checkpoint_file import read_checkpoint_file
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.network import AifNetwork
from schemas.topics import ITEM_FEATURES, NEW_ITEMS, SHARD_TOPICS
from streams.builders.full_part import encode_blocks
from streams.encoder import RowEncoder
from streams.kernels import load_kernels
from streams.shard.shard import open_shard
from streams.shard.shard_reader import ShardReader, open_shard_reader

NEARLINE = read_bench("bench nearline")

_ROUNDS = 9  # floor and build in turns, the best of each: of 3, other processes may disturb all of one kind
_APPLY_RECORDS, _BLOCK_ROWS = 4, 256
_PACKED_TIMES = 4  # so many more packed updates than single ones: a worker takes thousands of them in one step, and a rate wants many steps


def measure_nearline(items: int, updates: int) -> Figures:
    """Every figure of the bench on a world of `items` items, with `updates` increments of each kind."""
    figures = Figures(NEARLINE, {"items": items, "updates": updates})
    catalogue = open_world(items)
    with tempfile.TemporaryDirectory(prefix="aif-bench-") as folder:
        _measure_build(Path(folder), catalogue, figures)
    with open_bench_stage() as stage:
        _measure_worker(stage, catalogue, updates, figures)
    return figures


# --- full build, in this process -------------------------------------------------------------------------------------------


def _measure_build(folder: Path, catalogue: Catalogue, figures: Figures) -> None:
    torch.set_num_threads(1)  # as in a builder process
    settle_garbage_collection()
    write_random_checkpoint(folder / "model.safetensors", catalogue)
    checkpoint = read_checkpoint(folder / "model.safetensors")
    began = tell("fill a shard")
    fill_shard(folder / "shard", catalogue, folder / "checkpoint")
    tell("shard filled", began)
    encoder, rates = RowEncoder(0, read_checkpoint_file(folder / "model.safetensors")), _Rates()
    with open_shard_reader(folder / "checkpoint") as reader:
        block = _read_inputs(checkpoint, reader)
    tensors, network = FeatureTensors.from_block(block), checkpoint.network.double()
    for _ in range(_ROUNDS):
        with open_shard_reader(folder / "checkpoint") as reader:
            rates.take("build", lambda reader=reader: _build(encoder, reader))  # type: ignore[misc] # mypy: a lambda with a default
        rates.take("floor", lambda: _run_network(network, tensors, catalogue.item_count))
    figures.add("full_items_per_s", rates.best["build"])
    figures.add("floor_items_per_s", rates.best["floor"])
    figures.add("full_over_floor", rates.best["build"] / rates.best["floor"])


def fill_shard(directory: Path, catalogue: Catalogue, checkpoint: Path) -> None:
    """One shard with the whole catalogue, without a version, and a checkpoint of it."""
    load_kernels()
    init = Init(1, 1, IdKind.INT64, {topic: topic for topic in SHARD_TOPICS})
    shard = open_shard(directory, 0, init, SystemClock())
    try:
        for topic, record_type, events in (
            (ITEM_FEATURES, ItemFeaturesRecord, catalogue.items()),
            (NEW_ITEMS, NewItemsRecord, catalogue.new_items()),
        ):
            records = _records(topic, record_type, events)
            while batch := list(itertools.islice(records, _APPLY_RECORDS)):
                shard.apply(batch)
        shard.create_checkpoint(checkpoint)
    finally:
        shard.close()


def _records(topic: str, record_type: Callable[..., Any], events: Iterable[Any]) -> Iterator[SourceRecord]:
    remaining = iter(events)
    for offset in itertools.count():
        updates = list(itertools.islice(remaining, UPDATES_PER_RECORD_MAX))
        if not updates:
            return
        yield SourceRecord(topic, 0, offset, b"", encode_record(record_type(updates=updates)), (), 0)


class _Rates:
    """The best rate of each thing that was measured in turns, per second of processor time: other processes share the machine."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    def take(self, name: str, work: Callable[[], int]) -> None:
        began = time.process_time()
        rows = work()
        self.best[name] = max(self.best.get(name, 0.0), rows / (time.process_time() - began))


def _build(encoder: RowEncoder, reader: ShardReader) -> int:
    """The work of a builder up to the bytes of its file, which are written at disk speed."""
    return sum(len(block) for block in encode_blocks(encoder, reader.scan_blocks()))


def _read_inputs(checkpoint: Checkpoint, reader: ShardReader) -> FeatureBlock:
    """The input of the network alone."""
    schema = checkpoint.spec.schema
    items = [item for block in reader.scan_blocks() for item in zip(block.features, block.embeddings, strict=True)]
    vectors = {schema.multimodal: np.stack([np.frombuffer(values or b"", "<f4") for _, values in items])} if schema.multimodal else {}
    return encode_features(schema.item_half_inputs, [features for features, _ in items], vectors)


@torch.inference_mode()
def _run_network(network: AifNetwork, tensors: FeatureTensors, rows: int) -> int:
    """Computes all rows, in blocks as rows are encoded; returns their number."""
    for at in range(0, rows, _BLOCK_ROWS):
        network.item_rows(map_tensors(tensors, lambda t, at=at: t[at : at + _BLOCK_ROWS]))  # type: ignore[misc] # mypy: a lambda with a default
    return rows


# --- increments and start, a real worker -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a worker over records that waited for it."""

    updates_per_s: float
    start_s: float
    start_processor_s: float
    update_processor_us: float
    peak_rss_mb: float


def _measure_worker(stage: BenchStage, catalogue: Catalogue, updates: int, figures: Figures) -> None:
    began = tell("publish the catalogue")
    stage.publish_catalogue(catalogue)
    version = stage.publish_model(catalogue)
    began = tell("worker: full build of a version", began)
    with AppliedWatch(stage) as watch:
        worker = stage.start_worker()
        stage.wait_live(version, worker)
        watch.wait(stage.source_ends(), meanwhile=worker.check)
    peaks = peak_rss_mb(worker)
    stage.stop_worker(worker)
    began = tell("worker: one update per record", began)
    single = _run_worker(stage, lambda: _publish_single(stage, catalogue, updates))
    began = tell("worker: 256 updates per record", began)
    batched = _run_worker(stage, lambda: _publish_batched(stage, catalogue, _PACKED_TIMES * updates))
    tell("done", began)
    figures.add("single_events_per_s", single.updates_per_s)
    figures.add("single_processor_us", single.update_processor_us)
    figures.add("batched_items_per_s", batched.updates_per_s)
    figures.add("batched_processor_us", batched.update_processor_us)
    figures.add("peak_rss_mb", max(peaks["self"], single.peak_rss_mb, batched.peak_rss_mb))
    figures.add("builder_peak_rss_mb", peaks["children"] or None)  # none runs any more
    figures.add("start_s", single.start_s)
    figures.add("start_processor_s", single.start_processor_s)


def _publish_single(stage: BenchStage, catalogue: Catalogue, updates: int) -> int:
    with stage.publisher() as publisher:
        for update in catalogue.price_changes(updates, 1):
            publisher.publish_update(update)
    return updates


def _publish_batched(stage: BenchStage, catalogue: Catalogue, updates: int) -> int:
    with stage.publisher() as publisher:
        return publisher.publish_items(catalogue.price_changes(updates, 2))


def _run_worker(stage: BenchStage, publish: Callable[[], int]) -> _Run:
    """Publishes while no worker runs, then lets one catch up."""
    before, updates = stage.source_ends(), publish()
    after = stage.source_ends()
    with AppliedWatch(stage) as watch:
        worker, spent_s = stage.start_worker(), list[float]()

        def note_start() -> None:
            worker.check()
            if watch.seen and not spent_s:
                spent_s.append(processor_s(worker))

        watch.wait(after, meanwhile=note_start)
        note_start()
        caught_up_s = processor_s(worker)
        peaks = peak_rss_mb(worker)
        stage.stop_worker(worker)
        watch.poll()
    per_record = updates / sum(after[shard][0] - before[shard][0] for shard in after)
    moments = [(a.at_ms, a.shard, a.next_offsets[0]) for a in watch.seen if a.next_offsets[0] > before[a.shard][0]]
    rate = _rate(moments, {shard: offsets[0] for shard, offsets in before.items()}) * per_record
    start_s = min(at_ms for at_ms, _, _ in moments) / 1000 - imported_at_s(worker)
    return _Run(rate, start_s, spent_s[0], (caught_up_s - spent_s[0]) / updates * 1e6, peaks["self"])


def _rate(moments: list[tuple[int, int, int]], before: dict[int, int]) -> float:
    """Records per second between the first moment told and the first at which all is applied; records that were applied by the first do not count."""
    told, ends = dict(before), {shard: max(n for _, s, n in moments if s == shard) for shard in {s for _, s, _ in moments}}
    first: tuple[int, int] | None = None
    for at_ms, shard, offset in sorted(moments):
        told[shard] = max(told[shard], offset)
        first = first or (at_ms, sum(told.values()))
        if all(told[s] >= end for s, end in ends.items()):
            return float(np.divide(sum(told.values()) - first[1], max(at_ms - first[0], 1))) * 1_000
    raise AssertionError("the ends were told, so the loop returned")
