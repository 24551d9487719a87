"""What a longer history is worth: one model for each length, the skew as the shortest model's loss, and the report's section."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from infra.figures import Figures
from lab.catalogues.world import LIGHT
from lab.evaluation.cells import Cell
from lab.evaluation.data_section import read_data_figures
from lab.evaluation.history import (
    HISTORY,
    HISTORY_RUNGS,
    MEASURES,
    HistoryPlan,
    add_quality,
    history_rungs_section,
    history_section,
    plan_history,
)
from lab.evaluation.rungs import FRESH, ITEM_PRIOR, add_rung_figures
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from streams.training.measures import UserValues
from tests.lab.evaluation.tiny import SIZE


def cell(value: float) -> Cell:
    users = np.linspace(-0.01, 0.01, 12)
    return Cell("aif", 0, {name: UserValues(value + users, np.ones(12)) for name in MEASURES}, {})


def test_every_length_has_a_model_and_the_shortest_reads_everything_once_more() -> None:
    for quick in (False, True):
        plan = plan_history(quick)
        bounds = [dict(one.spec)["behaviours_max"] for one in plan.cells]
        assert bounds == [*plan.lengths, plan.lengths[0]] and [one.reads for one in plan.cells] == [None] * 4 + [BEHAVIOURS_PER_USER_MAX]
        assert len({one.digest for one in plan.cells}) == 5


def test_the_section_states_lengths_gains_and_the_loss_by_skew(tmp_path: Path) -> None:
    plan = HistoryPlan(dataclasses.replace(SIZE, history=LIGHT), (64, 1_000), 3)
    figures = Figures(HISTORY, {"quick": True, "steps": 3, "users": 40, "median": 300, "longest": 3_000})
    add_quality(figures, plan.lengths, [cell(0.7), cell(0.75), cell(0.65)])
    figures.add("users", 12)
    for length in plan.lengths:
        figures.add(f"call1_ms_{length}", length / 100)
        figures.add(f"call2_ms_{length}", 1.0)
    assert (round(figures.value("gauc_lost_by_skew") or 0, 4), round(figures.value("gauc_gain") or 0, 4)) == (0.1, 0.05)
    saved = tmp_path / "history.json"
    saved.write_text(json.dumps(figures.as_dict()))
    text = "\n".join(history_section(read_data_figures(saved)))
    assert "300 behaviours in the median" in text and "| 1,000 | 0.7500" in text and "0.1000 [0.1000, 0.1000]" in text


def test_the_section_of_rungs_states_what_each_loses_against_the_whole_history() -> None:
    figures = Figures(HISTORY_RUNGS, {"quick": True, "steps": 3, "users": 40, "median": 300, "longest": 3_000, "seeds": 2})
    add_rung_figures(figures, "long_histories", {FRESH: cell(0.7).users, ITEM_PRIOR: cell(0.5).users})
    figures.add("users", 12)
    text = " ".join(" ".join(history_rungs_section(figures.as_dict())).split())
    assert "over 2 seeds" in text and "300 behaviours in the median" in text
    assert "| item_prior | 0.5000" in text and "| 0.2000 [0.2000, 0.2000] |" in text
