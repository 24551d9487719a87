"""One run of `aif eval online`: runs the seeds that have no file yet, and makes figures and the picture over all of them.

Here: the order of the work, and a file per seed, so that an interrupted run can be resumed. Not here: the experiment (drift.py).
"""

import hashlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from infra.bench.report import Figures
from infra.data.world import WorldSize
from infra.files import write_file_durably
from streams.training.evaluation.drift import ONLINE, DriftCurves, DriftPlan, K, add_drift_figures, run_drift
from streams.training.evaluation.pictures import draw_drift

SEEDS = 3
FORM = 2  # of the file and of the measures; part of the file's name: raise it when either changes, so that no old file is read

_CURVES = [f.name for f in fields(DriftCurves)]


def plan_drift(quick: bool) -> list[DriftPlan]:
    """The runs of the quick plan (one small world) or of the full one (larger worlds that change more, one for each seed)."""
    if quick:
        return [DriftPlan()]
    size = WorldSize(items=8_000, users=1_500, held_out=200, requests_per_user=3)
    return [DriftPlan(seed, size, periods=16, phase=1.0, steps=1_500) for seed in range(SEEDS)]


def run_online(out: Path, quick: bool) -> Figures:
    """Runs the missing seeds, writes online.png into `out`, and returns the figures over the users of all seeds together."""
    torch.set_num_threads(1)
    plans = plan_drift(quick)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        found = [_run_seed(plan, out / "online", progress) for plan in plans]
    curves = DriftCurves(**{name: np.concatenate([getattr(of, name) for of in found], axis=1) for name in _CURVES})
    figures = Figures(ONLINE, {"quick": quick, "seeds": len(plans), **asdict(plans[0])})
    add_drift_figures(figures, curves)
    out.mkdir(parents=True, exist_ok=True)
    draw_drift(out / "online.png", curves.frozen_TU.mean(1), curves.followed_TU.mean(1), K)
    return figures


def _run_seed(plan: DriftPlan, folder: Path, progress: Progress) -> DriftCurves:
    told = json.dumps({"form": FORM, **asdict(plan)}, sort_keys=True)
    path = folder / f"seed-{plan.seed}.{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
    if path.exists():
        raw = json.loads(path.read_text())
        return DriftCurves(**{name: np.array(raw[name]) for name in _CURVES})
    task = progress.add_task("", total=1.0)
    curves = run_drift(plan, lambda what, share: progress.update(task, description=f"seed {plan.seed}: {what}", completed=share))
    content = {"plan": asdict(plan)} | {name: getattr(curves, name).tolist() for name in _CURVES}
    write_file_durably(path, json.dumps(content).encode())
    return curves
