"""One run of `aif eval tables`: trains the cells, measures costs and the law of hashing, collects the figures and writes the report."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from infra.figures import Figures
from lab.catalogues.world import World
from lab.evaluation.cells import Cell, read_cells, run_cells
from lab.evaluation.costs import (
    bridges_ms,
    counted_bridges,
    counted_costs,
    counted_full_cross,
    full_cross_ms,
    grouped_speedup,
    measure_costs,
)
from lab.evaluation.data_section import read_data_figures
from lab.evaluation.family.variant import BITS, BRIDGE_COUNTS
from lab.evaluation.plan import SPEC, WORLD_SEED, TablesPlan, plan_tables
from lab.evaluation.report import FIGURES, write_report
from lab.evaluation.tables import TABLES, add_world_figures, sigma_ratio
from lab.evaluation.world_truth import measure_near
from schemas.errors import Misconfigured
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from streams.training.impressions import Events, join_events

_LAW_ITEMS = 4_096
_GROUPED_REQUESTS = 400


def run_tables(
    out: Path,
    quick: bool,
    processes: int,
    steps: int | None = None,
    seeds: int | None = None,
    finished: bool = False,
    saved: bool = False,
    data_figures: Sequence[Path] = (),
) -> Figures:
    """Trains the missing cells, measures, writes the report and its pictures into `out`, and returns the figures. The options are those of `aif eval tables`.

    With `saved`, only the report is written, from the figures that the last run left in `out`.
    Raises Misconfigured (`no_cells`, `no_saved_figures`, and those of `read_data_figures`).
    """
    torch.set_num_threads(1)
    others = [read_data_figures(path) for path in data_figures]
    if saved:
        figures = _read_saved(out / FIGURES)
        write_report(out, figures, plan_tables(*(figures.config[name] for name in ("quick", "steps", "seeds"))), others)
        return figures
    plan = plan_tables(quick, steps, seeds)
    figures = Figures(TABLES, {"quick": plan.quick, "steps": plan.steps, "seeds": plan.seeds, "processes": processes})
    folder = out / "cells"
    cells = read_cells(plan.cells, folder) if finished else run_cells(plan.cells, folder, processes)
    _add_progress(figures, plan, cells)
    add_world_figures(figures, cells, plan.cells[0].truth.user_ids)
    _add_truth(figures, plan)
    _add_costs(figures)
    _add_bridge_costs(figures, plan)
    _add_hash_law(figures, plan)
    figures.add("grouped_speedup", _measure_grouped(plan))
    write_report(out, figures, plan, others)
    return figures


def _read_saved(path: Path) -> Figures:
    try:
        figures = Figures.from_dict(TABLES, json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misconfigured(
            "no_saved_figures", f"{path} is not the file that `aif eval tables` writes ({error!r}); run it without --saved first"
        ) from error
    return figures


def _add_progress(figures: Figures, plan: TablesPlan, cells: Sequence[Cell]) -> None:
    """How many cells of the plan there are, and their processor time. Raises Misconfigured (`no_cells`) without any."""
    if not cells:
        raise Misconfigured(
            "no_cells", "no training of this plan is finished; run it without --finished, or with the --steps it was run with"
        )
    figures.add("cells", len(cells))
    figures.add("cells_planned", len(plan.cells))
    figures.add("cells_cpu_s", sum(cell.numbers["cpu_s"] for cell in cells))


def _add_truth(figures: Figures, plan: TablesPlan) -> None:
    """The GAUC of the true click probability as score, which no model can exceed."""
    truth = plan.cells[0].truth
    figures.add("users", len(truth.held_out))
    figures.add("world.truth.gauc", measure_near(truth, truth.probabilities(truth.near))["gauc"].mean())


def _add_costs(figures: Figures) -> None:
    """Counted and measured cost of the rows of Table 3, relative to DIN + SimTier."""
    measured, counted = measure_costs(), counted_costs()
    for name in list(measured)[1:]:
        figures.add(f"{name}_time_saved_pct", 100 * (1 - measured[name] / measured["din_simtier"]))
        figures.add(f"{name}_counted_saved_pct", 100 * (1 - counted[name] / counted["din_simtier"]))
    figures.add("lsh_time_saved_pct", figures.value("lsh_256_time_saved_pct"))


def _add_bridge_costs(figures: Figures, plan: TablesPlan) -> None:
    """Counted and measured cost of Algorithm 1 by number of bridges, and that of Full-Cross."""
    spec = ModelSpec(plan.cells[0].truth.schema, **dict(SPEC))
    for n in BRIDGE_COUNTS:
        figures.add(f"bridges_{n}_madds", counted_bridges(spec, n))
        figures.add(f"bridges_{n}_ms", bridges_ms(spec, n))
    figures.add("full_cross_madds", counted_full_cross(spec))
    figures.add("full_cross_ms", full_cross_ms(spec))


def _add_hash_law(figures: Figures, plan: TablesPlan) -> None:
    embeddings_RM = World(WORLD_SEED, plan.size).embeddings_of(0, min(_LAW_ITEMS, plan.size.items)).astype(np.float64)
    for bits in BITS:
        figures.add(f"hash_sigma_ratio_{bits}", sigma_ratio(embeddings_RM, bits))


def _measure_grouped(plan: TablesPlan) -> float:
    truth = plan.cells[0].truth
    spec = ModelSpec(truth.schema, **dict(SPEC))
    w_hash_KM = make_w_hash(0, spec.hash_bits, spec.schema.mm_width)
    events = truth.events
    few = Events(events.items, events.new_items, events.users, events.behaviours, events.impressions[:_GROUPED_REQUESTS])
    return grouped_speedup(AifNetwork(spec, w_hash_KM), join_events(spec, w_hash_KM, few))
