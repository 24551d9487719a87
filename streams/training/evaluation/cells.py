"""One cell of the tables: one model, trained on one data set with one seed, and what it was worth to every held-out user.

Here: the work of a cell, and its JSON file: a cell that is there is not computed again, so a run that was stopped goes on. Not here: which
cells (plan.py), what is made of them (tables.py). A file names everything that decides its content by a digest; another plan gives another
file.

Arrays: U users.
"""

import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.data.world import WorldSize
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from streams.training.evaluation.questions import score_questions
from streams.training.evaluation.world_truth import CHEAP_FEATURES, WorldTruth, measure_any, measure_near, open_truth
from streams.training.family.codes import with_codes
from streams.training.family.network import build_network, variant_spec
from streams.training.family.variant import Variant
from streams.training.impressions import TrainingSet, join_events
from streams.training.losses import LossWeights
from streams.training.metrics import UserValues, calibration
from streams.training.trainer import TrainOptions, fit

FORM = 1  # of a cell's file and of what is measured: another number, and nothing old is taken
Progress = Callable[[float], None]


@dataclass(frozen=True)
class CellPlan:
    """Everything that decides a cell's numbers on one machine."""

    variant: Variant
    seed: int
    size: WorldSize
    steps: int
    spec: tuple[tuple[str, Any], ...]
    loss: LossWeights
    learning_rate: float
    batch_requests: int = 32
    signals: tuple[tuple[str, float], ...] = ()
    data: str = "world"

    @property
    def truth(self) -> WorldTruth:
        """The world of the cell: one and the same for every seed of a model."""
        return open_truth(0, self.size, self.signals)

    @property
    def digest(self) -> str:
        """16 hex digits of all of it. Titles of models are left out: they decide nothing."""
        told = asdict(self) | {"form": FORM}
        told["variant"].pop("title")
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def file_name(self) -> str:
        """The cell's file."""
        return f"{self.data}.{self.variant.name}.{self.seed}.{self.digest}.json"


@dataclass(frozen=True)
class Cell:
    """What came out: per-user measures by name, and plain numbers (seconds, steps, parameters)."""

    model: str
    seed: int
    users: Mapping[str, UserValues]
    numbers: Mapping[str, float]


def run_cell(plan: CellPlan, progress: Progress = lambda _: None) -> Cell:
    """Trains and measures. The same plan gives the same numbers on one machine, but for the seconds."""
    torch.manual_seed(plan.seed)
    truth = plan.truth
    data = _data_of(plan)
    network = build_network(plan.variant, data.spec, _w_hash(data.spec))
    options = TrainOptions(
        steps_max=plan.steps, seed=plan.seed, loss=plan.loss, learning_rate=plan.learning_rate, batch_requests=plan.batch_requests
    )
    report = fit(network, data, options, lambda share: progress(0.85 * share))
    started = time.monotonic()
    users, numbers = _measure(truth, network, data, options.behaviours_max, progress)
    numbers |= {
        "steps": report.steps,
        "fit_s": report.seconds,
        "measure_s": time.monotonic() - started,
        "parameters": sum(p.numel() for p in network.parameters()),
        "trunk_parameters": sum(p.numel() for p in network.head.parameters()),
    }
    progress(1.0)
    return Cell(plan.variant.name, plan.seed, users, numbers)


def _measure(
    truth: WorldTruth, network: AifNetwork, data: TrainingSet, behaviours_max: int, progress: Progress
) -> tuple[dict[str, UserValues], dict[str, float]]:
    near_UC = score_questions(network, truth.questions(data, truth.near), behaviours_max)
    progress(0.88)
    any_UC = score_questions(network, truth.questions(data, truth.anywhere), behaviours_max, lambda share: progress(0.88 + 0.12 * share))
    predicted_UC = 1 / (1 + np.exp(-near_UC.astype(np.float64)))
    numbers = {"calibration": calibration(predicted_UC.ravel(), truth.probabilities(truth.near).ravel())}
    return measure_near(truth, near_UC) | measure_any(truth, any_UC), numbers


def _w_hash(spec: ModelSpec) -> np.ndarray:
    return make_w_hash(0, spec.hash_bits, spec.schema.mm_width)


def _data_of(plan: CellPlan) -> TrainingSet:
    """The training set as the variant reads it: its own features, packed signatures or codes."""
    family = ModelSpec(plan.truth.schema, **dict(plan.spec))
    spec = variant_spec(plan.variant, family, CHEAP_FEATURES)
    # No column of the join depends on the number of bridges: without it, models that differ in it share one join.
    data = dataclasses.replace(_joined(plan.size, plan.signals, dataclasses.replace(spec, bridges=1)), spec=spec)
    return data if plan.variant.is_served else with_codes(data)


@functools.lru_cache(2)
def _joined(size: WorldSize, signals: tuple[tuple[str, float], ...], neutral: ModelSpec) -> TrainingSet:
    return join_events(neutral, _w_hash(neutral), open_truth(0, size, signals).events, every_item=True)


def write_cell(folder: Path, plan: CellPlan, cell: Cell) -> Path:
    """The cell's file, whole or not at all."""
    users = {name: {"value": v.value_U.tolist(), "weight": v.weight_U.tolist()} for name, v in cell.users.items()}
    content = {"plan": asdict(plan), "model": cell.model, "seed": cell.seed, "numbers": dict(cell.numbers), "users": users}
    path = folder / plan.file_name
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, default=str))
    temporary.replace(path)
    return path


def read_cell(folder: Path, plan: CellPlan) -> Cell | None:
    """The cell if its file is there."""
    path = folder / plan.file_name
    if not path.exists():
        return None
    raw = json.loads(path.read_text())
    users = {name: UserValues(np.array(v["value"]), np.array(v["weight"])) for name, v in raw["users"].items()}
    return Cell(raw["model"], raw["seed"], users, raw["numbers"])
