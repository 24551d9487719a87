"""The peers' part of `aif bench rank`, without the peers: their input, their questions, and null for one that cannot be installed."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from infra.figures import Figures
from lab.serving import peer_runs
from lab.serving.peer_runs import PEERS, measure_peers, write_arrays
from lab.serving.rank import RANK
from lab.serving.world import Plan

STAND_IN = """
import json, sys
print("a line of somebody's log")
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps([7.0] * int(line)), flush=True)
"""


PLAN = Plan((5,), turns=2, calls=3)


def small_world(items: int = 40) -> Any:
    rng = np.random.default_rng(1)
    ids = rng.permutation(np.arange(1000, 1000 + items))
    columns = {"vector": ids[:, None].repeat(4, 1).astype(np.float16), "bid": ids.astype(np.float32)}
    head = SimpleNamespace(first=nn.Linear(9, 6), rest=nn.Sequential(nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1)))
    return SimpleNamespace(
        ids=ids,
        tables=SimpleNamespace(columns=columns),
        network=SimpleNamespace(head=head),
        scorer=SimpleNamespace(weights=SimpleNamespace(inputs=8)),
        requests=lambda count: [rng.choice(ids, count, replace=False) for _ in range(16)],
    )


def test_the_peers_get_the_same_rows_for_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_runs, "_ITEMS_MAX", 30)
    write_arrays(small_world(), 3, tmp_path)
    ids, requests, bids = (np.load(tmp_path / f"{name}.npy") for name in ("ids", "requests", "column_bid"))
    assert len(ids) == len(set(ids.tolist())) and set(requests.ravel().tolist()) <= set(ids.tolist())
    assert np.array_equal(bids, ids.astype(np.float32))
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), np.load(tmp_path / "column_vector.npy"))
    assert [np.load(tmp_path / f"layer_{place}.npy").shape for place in range(3)] == [(8, 6), (6, 3), (3, 1)]


def test_a_peer_is_asked_over_its_pipes_and_one_that_dies_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "triton_peer.py").write_text(STAND_IN)
    (tmp_path / "qdrant_peer.py").write_text("raise SystemExit('no room for it here')")
    (tmp_path / "redis_peer.py").write_text("import os\nos.close(0)\nprint('ready', flush=True)")
    monkeypatch.setattr(peer_runs, "SCRIPTS", tmp_path)
    monkeypatch.setattr(peer_runs, "make_environment", lambda: Path(sys.executable))
    figures = Figures(RANK)
    measure_peers(small_world(), PLAN, figures)
    assert [figures.value(f"{peer}_p50_ms_5") for peer in PEERS] == [7.0, None, None]
    told = capsys.readouterr().err
    assert "no room for it here" in told and "exit code 0 and did not answer the question '5'" in told


def test_a_peer_that_hangs_is_killed_and_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "triton_peer.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(peer_runs, "SCRIPTS", tmp_path)
    monkeypatch.setattr(peer_runs, "_READY_S_MAX", 0.3)
    monkeypatch.setattr(peer_runs, "make_environment", lambda: Path(sys.executable))
    monkeypatch.setattr(peer_runs, "PEERS", ("triton",))
    figures = Figures(RANK)
    measure_peers(small_world(), PLAN, figures)
    assert (
        figures.value("triton_p50_ms_5") is None
        and capsys.readouterr().err.count("ended with exit code -9 and did not answer its start") == 2
    )


def test_without_a_way_to_install_them_all_figures_are_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    figures = Figures(RANK)
    measure_peers(small_world(), PLAN, figures)
    assert [figures.value(f"{peer}_p50_ms_5") for peer in PEERS] == [None] * 3
