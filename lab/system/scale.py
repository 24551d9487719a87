"""`aif bench scale`: what a version costs as the catalogue grows: time of a full build, bytes on disk, memory.

    build_s_N               from the announcement of a checkpoint to the live version, over N items that the shards hold already
    disk_bytes_per_item_N   files of the version in the index store, all parts of its manifest
    raw_bytes_per_item_N    the bare rows: id and columns, nothing around them
    rss_mb_N, builder_rss_mb_N   peak memory of the worker and of its builder

Every size has a stage of its own.
"""

import time
from collections.abc import Sequence
from itertools import chain

from infra.figures import Figures
from infra.index.parts import read_manifest
from lab.catalogues.open_catalogue import open_world
from lab.figures.declared import read_bench
from lab.system.stage import AppliedWatch, BenchStage, open_bench_stage, peak_rss_mb, tell
from schemas.index.manifest import Manifest

SCALE = read_bench("bench scale")

_ID_BYTES = 8
_APPLIED_S_MAX = 6 * 3_600.0


def measure_scale(sizes: Sequence[int]) -> Figures:
    """All figures of every size, the smallest first."""
    figures = Figures(SCALE, {"sizes": list(sizes)})
    for items in sorted(sizes):
        with open_bench_stage() as stage:
            _measure_size(stage, items, figures)
    return figures


def _measure_size(stage: BenchStage, items: int, figures: Figures) -> None:
    catalogue = open_world(items)
    began = tell(f"{items} items: publish")
    stage.publish_catalogue(catalogue)
    began = tell("apply", began)
    applied_from = time.monotonic()
    with AppliedWatch(stage) as watch:
        worker = stage.start_worker()
        watch.wait(stage.source_ends(), _APPLIED_S_MAX, worker.check)
    fill_s = time.monotonic() - applied_from
    began = tell("full build", began)
    announced = time.monotonic()
    version = stage.publish_model(catalogue)
    stage.wait_live(version, worker)
    build_s = time.monotonic() - announced
    tell("built", began)
    peaks, manifest = peak_rss_mb(worker), read_manifest(stage.control.store, stage.control_state().versions[version])
    figures.add(f"build_s_{items}", build_s)
    figures.add(f"fill_s_{items}", fill_s)
    figures.add(f"disk_bytes_per_item_{items}", _part_bytes(manifest) / items)
    figures.add(f"raw_bytes_per_item_{items}", manifest.layout.row_bytes + _ID_BYTES)
    figures.add(f"rss_mb_{items}", peaks["self"])
    figures.add(f"builder_rss_mb_{items}", peaks["children"] or None)  # none runs any more


def _part_bytes(manifest: Manifest) -> int:
    parts = chain.from_iterable((seal.full, seal.incremental) for seal in manifest.seals)
    return sum(file.size_bytes for part in parts for file in part.files)
