"""The stage of the benches: an untrained model, a version that is not built, and memory of a child and of its processes."""

import sys
from pathlib import Path

import pytest

from infra.processes import start_child, wait_until
from lab.catalogues.open_catalogue import open_world
from lab.system.stage import BenchStage, peak_rss_mb, write_random_checkpoint
from schemas.errors import Unavailable
from schemas.ids import IdKind
from schemas.model.checkpoint import read_checkpoint


def test_a_random_model_passes_every_check_and_its_seed_decides_its_bytes(tmp_path: Path) -> None:
    catalogue = open_world(100)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_checkpoint(tmp_path / name, catalogue, seed)
    assert read_checkpoint(tmp_path / "a").spec.width == 32
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_a_worker_that_ends_ends_the_waiting_for_its_version(tmp_path: Path) -> None:
    worker = start_child("worker", [sys.executable, "-c", "raise SystemExit('its disk is full')"], tmp_path / "log")
    with pytest.raises(Unavailable, match=r"(?s)worker ended with exit code 1.*its disk is full"):
        BenchStage(tmp_path, IdKind.INT64).wait_live(1, worker)


def test_memory_is_told_apart_by_child_and_grandchildren(tmp_path: Path) -> None:
    grandchild = "x = bytearray(60 << 20); print('up', flush=True); import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    child = start_child("sleeper", [sys.executable, "-c", code], tmp_path / "log")
    try:
        wait_until(lambda: "up" in (tmp_path / "log").read_text(), 30, "the grandchild")
        peaks = peak_rss_mb(child)
    finally:
        child.kill()
    assert peaks["children"] > 60 > peaks["self"] > 0
