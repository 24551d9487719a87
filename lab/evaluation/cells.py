"""A cell of the tables: one model, trained once with one seed, and its measures for every held-out user; and many cells in several processes.

A cell whose file exists is not computed again, so an interrupted run can be resumed. Each process computes with one thread of torch, because two processes
of one thread get more done than one process of two.
Invariants: a file's name contains a digest of everything that determines its content, so a changed plan never finds an old cell. A file is
written whole or not at all.

Arrays: U users, Q requests or questions, C candidates of each, T tasks.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.files import write_file_durably
from infra.garbage import collector_paused
from infra.processes import die_with_parent
from infra.progress import open_progress
from lab.catalogues.world import WorldSize
from lab.evaluation.family.codes import with_codes
from lab.evaluation.family.network import build_network, variant_spec
from lab.evaluation.family.variant import Variant
from lab.evaluation.rungs import FRESH, on_rung
from lab.evaluation.world_truth import CHEAP_FEATURES, WorldTruth, join_world, measure_any, measure_near, measure_purchases, open_truth
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet
from streams.training.measures import UserValues, calibration
from streams.training.questions import score_tasks, teacher_ecpm
from streams.training.trainer import TrainReport, fit

FORM = 3  # of the file and of the measures; part of the digest: raise it when either changes, so that no old cell is read


@dataclass(frozen=True)
class CellPlan:
    """Everything that determines a cell's numbers on one machine.

    spec           fields of the ModelSpec of the family, by name; the variant may change some
    train          how it is trained; its seed is that of weights and batches
    signals        weights of the world's signals that differ from its defaults
    taught_by      the model whose eCPM replaces the true one as the teacher's; None: the true one
    reads          how many behaviours it reads when it is measured; None: as many as in training
    """

    variant: Variant
    size: WorldSize
    spec: tuple[tuple[str, Any], ...]
    train: TrainChoices
    signals: tuple[tuple[str, float], ...] = ()
    world_seed: int = 0
    taught_by: Variant | None = None
    reads: int | None = None

    @property
    def truth(self) -> WorldTruth:
        """The world and its held-out users. It does not depend on the training's seed: all seeds of a model see the same data."""
        return open_truth(self.world_seed, self.size, self.signals)

    @property
    def teachers(self) -> "CellPlan":
        """The plan by which `taught_by` is trained: on drawn clicks, because a teacher outside of a simulation has nothing else; the same for all seeds."""
        assert self.taught_by is not None
        of_clicks = dataclasses.replace(self.train, copr=0.0, click=1.0, softmax=0.0, outcomes=1.0, soft_labels=False, seed=0)
        return dataclasses.replace(self, variant=self.taught_by, taught_by=None, train=of_clicks)

    @property
    def digest(self) -> str:
        """16 hex digits over all fields but the titles of the models, which are only printed."""
        told = asdict(self) | {"form": FORM}
        for variant in (told["variant"], told["taught_by"]):
            if variant is not None:
                variant.pop("title")
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def file_name(self) -> str:
        """The name of the cell's file."""
        return f"world.{self.variant.name}.{self.train.seed}.{self.digest}.json"


@dataclass(frozen=True)
class Cell:
    """The result of a cell: `users` has the measures per user by name, `numbers` has plain values (seconds, steps, parameters, calibration)."""

    model: str
    seed: int
    users: Mapping[str, UserValues]
    numbers: Mapping[str, float]


def run_cell(plan: CellPlan) -> Cell:
    """Trains the model and measures it. The same plan gives the same numbers on one machine, apart from the times."""
    began, began_cpu = time.monotonic(), time.process_time()
    network, data, report = train_model(plan)
    users, calibrated = measure_model(plan.truth, network, data)
    numbers = {
        "calibration": calibrated,
        "steps": report.steps,
        "fit_s": report.seconds,
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time() - began_cpu,
        "parameters": sum(p.numel() for p in network.parameters()),
    }
    return Cell(plan.variant.name, plan.train.seed, users, numbers)


def train_model(plan: CellPlan) -> tuple[AifNetwork, TrainingSet, TrainReport]:
    """The trained network, and its training set; both read as many behaviours as the plan measures with."""
    data = _data_of(plan)
    if plan.taught_by is not None:
        data = dataclasses.replace(data, teacher_QC=_taught(plan.teachers))
    network, report = _train(plan, data)
    if plan.reads is not None:
        network.spec = dataclasses.replace(network.spec, behaviours_max=plan.reads)
        data = dataclasses.replace(data, spec=dataclasses.replace(data.spec, behaviours_max=plan.reads))
    return network, data, report


def _train(plan: CellPlan, data: TrainingSet) -> tuple[AifNetwork, TrainReport]:
    torch.manual_seed(plan.train.seed)
    network = build_network(plan.variant, data.spec, _w_hash(data.spec))
    return network, fit(network, data, plan.train)


@functools.lru_cache(1)
def _taught(plan: CellPlan) -> np.ndarray:
    """The eCPM that the teacher of this plan gives every impression, float32 [Q, C]."""
    data = _data_of(plan)
    teacher, _ = _train(plan, data)
    return teacher_ecpm(teacher, data)


def measure_model(truth: WorldTruth, network: AifNetwork, data: TrainingSet, rung: str = FRESH) -> tuple[dict[str, UserValues], float]:
    """Every measure of the held-out users by name, as ranked on a rung of the ladder, and predicted over expected clicks."""
    near_UCT = score_tasks(network, on_rung(truth.questions(data, truth.near), rung))
    near_UC = near_UCT[..., 0]
    predicted_UC = 1 / (1 + np.exp(-near_UC.astype(np.float64)))
    any_UC = score_tasks(network, on_rung(truth.questions(data, truth.anywhere), rung))[..., 0]
    found = measure_near(truth, near_UC) | measure_any(truth, any_UC)
    found |= measure_purchases(truth, near_UCT) if near_UCT.shape[-1] > 1 else {}
    return found, calibration(predicted_UC.ravel(), truth.probabilities(truth.near).ravel())


def _w_hash(spec: ModelSpec) -> np.ndarray:
    """float32 [K, M], the same for every cell whatever its seed, because models are compared under the same hashing. The planes of fewer bits are the
    first of those of more. So no interval and no `gauc_seed_sd` contains what another draw of W_hash would change; tables.py draws many.
    """
    return make_w_hash(0, spec.hash_bits, spec.schema.mm_width)


def _data_of(plan: CellPlan) -> TrainingSet:
    """The training set in the form that the variant reads: with its own features, and with packed signatures or float codes."""
    family = ModelSpec(plan.truth.schema, **dict(plan.spec))
    spec = variant_spec(plan.variant, family, CHEAP_FEATURES)
    # The joined columns depend only on features, bits and tasks, so models that differ in other sizes share one join.
    neutral = ModelSpec(spec.schema, hash_bits=spec.hash_bits, tasks=spec.tasks)
    joined = _joined(plan.truth, neutral)
    data = dataclasses.replace(joined, spec=spec)
    return data if plan.variant.is_served else with_codes(data, moments=plan.variant.tiers == "clusters")


@functools.lru_cache(4)
def _joined(truth: WorldTruth, neutral: ModelSpec) -> TrainingSet:
    with collector_paused():
        return join_world(truth.catalogue, neutral, _w_hash(neutral))


def write_cell(folder: Path, plan: CellPlan, cell: Cell) -> Path:
    """Writes the cell's file, whole or not at all, and returns its path."""
    users = {name: {"value": v.value_U.tolist(), "weight": v.weight_U.tolist()} for name, v in cell.users.items()}
    content = {"plan": asdict(plan), "model": cell.model, "seed": cell.seed, "numbers": dict(cell.numbers), "users": users}
    path = folder / plan.file_name
    write_file_durably(path, json.dumps(content, default=str).encode())
    return path


def read_cell(folder: Path, plan: CellPlan) -> Cell | None:
    """The cell of a plan; None if its file does not exist."""
    path = folder / plan.file_name
    if not path.exists():
        return None
    raw = json.loads(path.read_text())
    users = {name: UserValues(np.array(v["value"]), np.array(v["weight"])) for name, v in raw["users"].items()}
    return Cell(raw["model"], raw["seed"], users, raw["numbers"])


# --- many of them ---------------------------------------------------------------------------------------------------------


def run_cells(plans: Sequence[CellPlan], folder: Path, processes: int) -> list[Cell]:
    """Runs the missing cells, with a line for each, and returns all of them in the order of the plans. An interrupted run can be continued so."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [plan for plan in plans if read_cell(folder, plan) is None]
    processes, seconds = max(1, min(processes, len(missing))), 0.0
    with open_progress() as progress, contextlib.closing(_run_each(missing, folder, processes)) as finished:
        say = functools.partial(progress.console.print, highlight=False, soft_wrap=True)
        task = progress.add_task("cells", total=len(plans), completed=len(plans) - len(missing))
        try:
            for done, (plan, cell) in enumerate(finished, 1):
                took, seconds, left = cell.numbers["wall_s"], seconds + cell.numbers["wall_s"], len(missing) - done
                left_min = left * seconds / done / processes / 60
                say(f"{plan.file_name}: {took:.0f} s, {cell.numbers['cpu_s']:.0f} s of processor; {left} left, about {left_min:.0f} min")
                progress.update(task, advance=1, description=plan.variant.title[:28])
        except KeyboardInterrupt:
            say(f"{len(read_cells(plans, folder))} of {len(plans)} cells are in {folder}; the same command goes on with the others")
            raise
    return read_cells(plans, folder)


def read_cells(plans: Sequence[CellPlan], folder: Path) -> list[Cell]:
    """The cells of the plans that have a file, in the order of the plans."""
    found = [read_cell(folder, plan) for plan in plans]
    return [cell for cell in found if cell is not None]


def _run_each(missing: Sequence[CellPlan], folder: Path, processes: int) -> Generator[tuple[CellPlan, Cell]]:
    """Each cell when it is finished; its file is written."""
    if processes == 1:
        yield from ((plan, _run_and_write(plan, folder)) for plan in missing)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        with _interrupts_ignored():  # the processes inherit it: who presses Ctrl-C hears of it from this one, once
            plans = {pool.submit(_run_and_write, plan, folder): plan for plan in missing}
        try:
            for done in as_completed(plans):
                yield plans[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_and_write(plan: CellPlan, folder: Path) -> Cell:
    """Computes a cell and writes its file, in the process that is called."""
    torch.set_num_threads(1)
    cell = run_cell(plan)
    write_cell(folder, plan, cell)
    return cell
