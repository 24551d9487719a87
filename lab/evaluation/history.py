"""`aif eval history`: the worth of a longer history and the cost of serving it; and the quality by rung of the serving ladder.

For each length a model is trained that reads so many of a user's latest behaviours, and is measured reading as many. The skew is measured too: the
shortest of these models reads whole histories, as servers did when only training was bounded. Times are of the served engine on random rows: they depend
on the length and not on values.

Arrays: U users.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.command import say
from infra.figures import Figures
from lab.catalogues.world import KUAIRAND_1K, LIGHT, WorldSize
from lab.evaluation.cells import Cell, CellPlan, measure_model, run_cells, train_model
from lab.evaluation.data_section import rung_blocks
from lab.evaluation.family.variant import AIF
from lab.evaluation.plan import SIGNALS, SOFT, SPEC, WORLD_SEED
from lab.evaluation.rungs import RUNGS, add_rung_figures
from lab.evaluation.tables import average_seeds
from lab.figures.declared import read_bench
from lab.figures.markdown import Lookup, heading, paragraph, table
from lab.serving.world import engine_case, open_rank_world, time_in_turns
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.spec import ModelSpec
from streams.training.bootstrap import Bootstrap

HISTORY = read_bench("eval history")
HISTORY_RUNGS = read_bench("eval history --rungs")

MEASURES = ("gauc", "hr_at_100")
_OF_RUNGS = {"gauc": "GAUC", "hr_at_100": "HR@100"}
_RUNG_SEEDS, _WORLD = 3, "long_histories"
_ITEMS, _CANDIDATES = 100_000, 10_000  # of the engine whose time is measured
_TURNS, _CALLS = 5, 10


@dataclasses.dataclass(frozen=True)
class HistoryPlan:
    """The world, the lengths that are read (ascending), and the steps of each training."""

    size: WorldSize
    lengths: tuple[int, ...]
    steps: int

    def cell(self, length: int, reads: int | None = None, seed: int = 0) -> CellPlan:
        """The served model that reads `length` behaviours, or `reads` when it is measured."""
        train = dataclasses.replace(SOFT, steps=self.steps, seed=seed)
        return CellPlan(
            AIF, self.size, (*SPEC, ("behaviours_max", length), ("sim_behaviours", length)), train, SIGNALS, WORLD_SEED, reads=reads
        )

    def config(self, quick: bool) -> dict[str, int]:
        """The config of a run."""
        shape = self.size.history
        median = int(shape.lengths_of(np.zeros(1))[0])
        return {"quick": quick, "steps": self.steps, "users": self.size.users, "median": median, "longest": shape.longest}

    @property
    def cells(self) -> list[CellPlan]:
        """A model for each length; the shortest again, reading everything."""
        return [*map(self.cell, self.lengths), self.cell(self.lengths[0], BEHAVIOURS_PER_USER_MAX)]


def plan_history(quick: bool) -> HistoryPlan:
    """A world with a median of 300 behaviours, or one with the lengths of KuaiRand-1K and fewer users."""
    if quick:
        size = WorldSize(items=4_000, users=600, held_out=200, requests_per_user=10, history=LIGHT)
        return HistoryPlan(size, (64, 256, 1_000, 3_000), 600)
    size = WorldSize(items=4_000, users=300, held_out=200, requests_per_user=20, history=KUAIRAND_1K)
    return HistoryPlan(size, (256, 1_000, 10_000, BEHAVIOURS_PER_USER_MAX), 500)


def run_history(out: Path, quick: bool, processes: int) -> Figures:
    """Trains the missing cells, measures the engine, and returns the figures."""
    plan = plan_history(quick)
    figures = Figures(HISTORY, plan.config(quick))
    cells = run_cells(plan.cells, out / "cells", processes)
    add_quality(figures, plan.lengths, cells)
    figures.add("users", len(plan.cells[0].truth.held_out))
    say("times of the engine ...")
    _add_times(figures, plan.lengths)
    return figures


def run_rungs(quick: bool) -> Figures:
    """Trains the model with the served number of behaviours, and measures it on each rung of the ladder; a user's value is the mean over the seeds."""
    torch.set_num_threads(1)
    plan = plan_history(quick)
    figures = Figures(HISTORY_RUNGS, plan.config(quick) | {"seeds": _RUNG_SEEDS})
    measured = list[Cell]()
    for seed in range(_RUNG_SEEDS):
        cell = plan.cell(ModelSpec.behaviours_max, seed=seed)
        say(f"training, seed {seed} ...")
        network, data, _ = train_model(cell)
        for rung in RUNGS:
            users, _ = measure_model(cell.truth, network, data, rung)
            measured.append(Cell(rung, seed, {name: users[name] for name in _OF_RUNGS}, {}))
    add_rung_figures(figures, _WORLD, average_seeds(measured))
    figures.add("users", len(plan.cells[0].truth.held_out))
    return figures


def add_quality(figures: Figures, lengths: Sequence[int], cells: Sequence[Cell]) -> None:
    """Measures by length, and what the skew loses. The last cell is the first one's model, reading everything."""
    longest = cells[len(lengths) - 1]
    bootstrap = Bootstrap(len(cells[0].users["gauc"].value_U))
    for length, cell in zip(lengths, cells, strict=False):
        for name in MEASURES:
            figures.add_interval(f"{name}_{length}", bootstrap.interval(cell.users[name]))
    for name in MEASURES:
        figures.add_interval(f"{name}_skewed", bootstrap.interval(cells[-1].users[name]))
        figures.add_interval(f"{name}_lost_by_skew", bootstrap.difference(longest.users[name], cells[-1].users[name]))
        figures.add_interval(f"{name}_gain", bootstrap.difference(longest.users[name], cells[0].users[name]))


def _add_times(figures: Figures, lengths: Sequence[int]) -> None:
    """Medians of both calls for users with histories of these lengths."""
    with open_rank_world(_ITEMS, simtier_behaviours=1_000) as world:
        histories = {length: world.history(length) for length in lengths}
        for call, case in (
            ("call1", {length: (lambda h=history: world.user(h)) for length, history in histories.items()}),
            ("call2", {length: engine_case(world, world.user(h), world.requests(_CANDIDATES)) for length, h in histories.items()}),
        ):
            taken = time_in_turns({str(length): of for length, of in case.items()}, _TURNS, _CALLS)
            for length, times in taken.items():
                figures.add(f"{call}_ms_{length}", np.median(times))


def history_section(raw: Mapping[str, Any]) -> list[str]:
    """The report's blocks of a saved `aif eval history --json`."""
    found, asked = Lookup(raw), raw["config"]
    lengths, told = [int(name.removeprefix("call1_ms_")) for name in found.values if name.startswith("call1_ms_")], found.interval
    rows = [[f"{n:,}", *(told(f"{m}_{n}") for m in MEASURES), *(found.text(f"call{call}_ms_{n}", 2) for call in (1, 2))] for n in lengths]
    gain = f"""The longest history gains {told("gauc_gain")} of GAUC and {told("hr_at_100_gain")} of HR@100 over the shortest."""
    text = f"""Written by `aif eval history`: the world of seed {WORLD_SEED}, {asked["users"]} users in training, {found.text("users", 0)} measured. Histories
    have {asked["median"]:,} behaviours in the median and {asked["longest"]:,} at most. A model is trained for each length ({asked["steps"]:,} steps), and reads
    as much when it is measured. With one seed, differences between neighbouring lengths contain its chance. Labels are the true click probability. Times
    are of the engine with {_CANDIDATES:,} candidates, medians."""
    skew = f"""A model must read as much as in training. The model that is trained with {lengths[0]:,} behaviours has a GAUC of {told("gauc_skewed")} when it
    reads whole histories. Against the model that is trained with them, it loses {told("gauc_lost_by_skew")} of GAUC and {told("hr_at_100_lost_by_skew")} of
    HR@100. A server honours the bound in the checkpoint (`behaviours_max`)."""
    header = ("behaviours read", "GAUC", "HR@100", "call 1, ms", "call 2, ms")
    return [heading("Long histories"), paragraph(gain), paragraph(text), table(header, rows), paragraph(skew)]


def history_rungs_section(raw: Mapping[str, Any]) -> list[str]:
    """The report's blocks of a saved `aif eval history --rungs --json`."""
    found, asked = Lookup(raw), raw["config"]
    text = f"""Written by `aif eval history --rungs`: histories of {asked["median"]:,} behaviours in the median, {asked["users"]} users in training,
    {found.text("users", 0)} measured, {asked["steps"]:,} steps, means over {asked["seeds"]} seeds. The model reads {ModelSpec.behaviours_max} behaviours."""
    return [heading("Long histories: rungs"), paragraph(text), *rung_blocks(found, _WORLD, _OF_RUNGS)]
