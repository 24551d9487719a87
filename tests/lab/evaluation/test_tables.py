"""Figures from cells: paired, averaged over seeds, named as promised; and a report that holds nothing but them."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from infra.figures import Figures
from lab.evaluation.cells import Cell
from lab.evaluation.costs import measure_costs
from lab.evaluation.family.variant import BRIDGES, MORE_CANDIDATES, TABLE_2, TABLE_3, TEACHER
from lab.evaluation.plan import OTHER_LABELS, TWO_TASKS, UPPER_BOUND, plan_tables
from lab.evaluation.program import run_tables
from lab.evaluation.report import RESULTS, write_report
from lab.evaluation.tables import TABLES, add_world_figures, average_seeds
from schemas.errors import Misconfigured
from schemas.ids import Id
from streams.training.measures import UserValues

USERS = 200
GAUCS = {"base": 0.70, "full": 0.80, "aif": 0.795, "aif_without_async": 0.75, "din_simtier": 0.8, "lsh_256": 0.797}


def cell(model: str, seed: int, gauc: float) -> Cell:
    """A model whose users share their noise with every other model's."""
    shared, own = (np.random.default_rng(s).standard_normal(USERS) for s in (0, 1 + seed))
    level = UserValues(gauc + 0.05 * shared + 0.001 * own, np.ones(USERS))
    names = ("gauc", "gauc_new", "hr_at_100", "ctr", "rpm", "ctr_more", "rpm_more")
    return Cell(model, seed, dict.fromkeys(names, level), dict.fromkeys(("fit_s", "cpu_s", "wall_s", "parameters", "calibration"), 1.0))


def cells() -> list[Cell]:
    return [cell(model, seed, gauc) for seed in range(2) for model, gauc in GAUCS.items()]


def figures_of(of: list[Cell], users: Sequence[Id] = range(USERS)) -> Figures:
    figures = Figures(TABLES)
    add_world_figures(figures, of, users)
    return figures


def test_the_share_of_the_gap_and_the_drops_are_paired_so_their_intervals_are_narrow() -> None:
    figures = figures_of(cells())
    assert figures.value("gauc_gap_pt") == pytest.approx(10, abs=0.1)
    assert figures.value("aif_share_of_gap") == pytest.approx(0.95, abs=0.01)
    assert 0.9 < figures.value("aif_share_of_gap_low") < figures.value("aif_share_of_gap_high") < 1.0  # type: ignore[operator]
    assert figures.value("world.aif_without_async.gauc_drop_pt") == pytest.approx(4.5, abs=0.1)
    assert figures.value("world.aif_without_async.gauc_drop_pt_low") > 4.3  # type: ignore[operator]
    assert figures.value("lsh_gauc_loss_pt") == pytest.approx(0.3, abs=0.1)
    width = figures.value("world.aif.gauc_high") - figures.value("world.aif.gauc_low")  # type: ignore[operator]
    assert width > 0.01  # of one model alone the users' own noise does not cancel


def test_every_measure_of_every_model_has_its_interval() -> None:
    names = figures_of(cells()).as_dict()["figures"]
    for model in GAUCS:
        for measure in ("gauc", "gauc_new", "hr_at_100"):
            assert {f"world.{model}.{measure}{suffix}" for suffix in ("", "_low", "_high")} <= names.keys()


def test_what_was_not_run_is_named_and_null_or_not_there() -> None:
    figures = figures_of(cells())
    assert figures.value("moments_gauc_loss_pt") is None
    assert "world.aif_without_bea.gauc_drop_pt" not in figures.as_dict()["figures"]


def test_a_models_users_are_means_over_its_seeds() -> None:
    models = average_seeds([cell("aif", 0, 0.5), cell("aif", 1, 0.7)])
    assert models["aif"]["gauc"].mean() == pytest.approx(0.6, abs=0.02)


def test_an_ab_test_sees_the_lift_with_a_wider_interval_than_the_same_users_under_both() -> None:
    figures = figures_of(cells())

    def width(name: str) -> float:
        return figures.value(f"{name}_high") - figures.value(f"{name}_low")  # type: ignore[operator]

    assert width("world.ab.aif.ctr_lift_pct") > 3 * width("world.aif.ctr_lift_pct") > 0
    assert figures.value("world.aif.ctr_lift_pct") == pytest.approx(100 * (0.795 / 0.7 - 1), abs=0.5)


def test_an_ab_test_splits_users_by_their_ids_wherever_they_stand() -> None:
    """Who is in which half is told by the id: the same users in another order are split alike, the same places with other ids are not."""
    rng, ids = np.random.default_rng(0), list(range(7_000, 7_000 + USERS))
    order = rng.permutation(USERS)

    def lift(users: list[int], order: np.ndarray) -> float:
        placed = [
            dataclasses.replace(c, users={name: UserValues(v.value_U[order], v.weight_U[order]) for name, v in c.users.items()})
            for c in cells()
        ]
        value = figures_of(placed, users).value("world.ab.aif.ctr_lift_pct")
        assert value is not None
        return value

    as_it_was = lift(ids, np.arange(USERS))
    assert lift([ids[n] for n in order], order) == pytest.approx(as_it_was)
    assert lift([user + USERS for user in ids], np.arange(USERS)) != pytest.approx(as_it_was)


def test_the_plans_hold_every_model_of_the_tables() -> None:
    quick, full = plan_tables(quick=True), plan_tables(quick=False)
    expected = {v.name for v in (*TABLE_2, *TABLE_3, *BRIDGES, TWO_TASKS)} - {MORE_CANDIDATES.name} | {
        v.name for v, *_ in (*OTHER_LABELS, *UPPER_BOUND)
    }
    assert {c.variant.name for c in full.cells} == expected and {c.train.seed for c in full.cells} == {0, 1, 2}
    assert {v.name for v in TABLE_2} - {MORE_CANDIDATES.name} <= {c.variant.name for c in quick.cells}
    assert len({c.file_name for c in full.cells}) == len(full.cells)
    assert all(c.taught_by is None and not c.train.copr and c.train.soft_labels for c in quick.cells)
    assert all(c.taught_by == TEACHER and c.train.copr for c in full.cells if c.variant in (*TABLE_2, *TABLE_3, *BRIDGES))
    assert len({c.teachers.digest for c in full.cells if c.taught_by}) == 1  # a cascade has one ranking stage


def test_the_spread_over_seeds_is_told_where_there_are_several() -> None:
    figures = figures_of([cell("aif", seed, gauc) for seed, gauc in enumerate((0.78, 0.80))])
    assert figures.value("world.aif.gauc_seed_sd") == pytest.approx(0.02 / 2**0.5, abs=1e-3) and figures.value("world.aif.seeds") == 2
    assert "world.aif.gauc_seed_sd" not in figures_of([cell("aif", 0, 0.78)]).as_dict()["figures"]


def test_bits_are_told_by_measured_losses_and_by_their_law() -> None:
    gaucs = {"mm_din_simtier": 0.8} | {f"lsh_{bits}": 0.8 - 0.62 / bits for bits in (64, 128, 256)}
    figures = figures_of([cell(name, 0, gauc) for name, gauc in gaucs.items()])
    assert figures.value("hash_loss_pt_64") == pytest.approx(0.62 / 0.64) and figures.value("hash_law_pt") == pytest.approx(62)
    assert figures.value("hash_bits_for_0.5") == figures.value("hash_bits_for_0.5_by_law") == 128
    assert figures.value("hash_bits_for_0.1") is None and figures.value("hash_bits_for_0.1_by_law") == 624


def test_the_teachers_margins_and_what_copr_gains() -> None:
    figures = figures_of([cell("aif", 0, 0.79), cell("teacher", 0, 0.80), cell("aif_click", 0, 0.77)])
    assert figures.value("teacher_margin_pt") == pytest.approx(1.0) and figures.value("teacher_click_margin_pt") == pytest.approx(3.0)
    assert figures.value("copr_gauc_gain_pt") == pytest.approx(2.0) and figures.value("copr_hr_gain_pt") == pytest.approx(2.0)


def test_the_report_stands_beside_the_paper_and_holds_pictures(tmp_path: Path) -> None:
    figures = figures_of(cells())
    figures.add("grouped_speedup", 3.5)
    text = write_report(tmp_path, figures, plan_tables(quick=True)).read_text()
    row = next(line for line in text.splitlines() if line.startswith("| AIF |"))
    assert "+7.29" in row and f"{figures.value('world.aif.gauc'):.4f}" in row
    assert "3.5 times" in text and (tmp_path / "table2.png").stat().st_size > 1_000
    assert not re.search(r"None|nan", text)


def test_sections_without_figures_are_left_out_and_those_with_them_are_there(tmp_path: Path) -> None:
    without = write_report(tmp_path, figures_of(cells()), plan_tables(quick=True)).read_text()
    more = [cell(name, 0, 0.79) for name in (v.name for v in (*(v for v, *_ in (*OTHER_LABELS, *UPPER_BOUND)), *BRIDGES))]
    text = write_report(tmp_path, figures_of([*(c for c in cells() if c.seed == 0), *more]), plan_tables(quick=False)).read_text()
    for section in ("## Labels and COPR", "## Upper bound", "## Bridges"):
        assert section in text and section not in without
    assert "BEA, n = 32" in text and (tmp_path / "bridges.png").exists()


def test_a_whole_run_on_a_tiny_world_writes_the_report_and_every_promised_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.evaluation import plan, program
    from tests.lab.evaluation.tiny import SIZE, SPEC

    monkeypatch.setattr(plan, "SIZE", SIZE)
    monkeypatch.setattr(plan, "SPEC", SPEC)
    monkeypatch.setattr(program, "SPEC", SPEC)
    monkeypatch.setattr(program, "measure_costs", lambda: measure_costs(20, 40))
    figures = run_tables(tmp_path, quick=True, processes=1, steps=2)
    for name in ("aif_share_of_gap", "lsh_gauc_loss_pt", "lsh_time_saved_pct", "moments_gauc_loss_pt", "grouped_speedup"):
        assert figures.value(name) is not None
    written = (tmp_path / RESULTS).read_text()
    (tmp_path / RESULTS).unlink()
    assert run_tables(tmp_path, quick=False, processes=1, saved=True).as_dict() == figures.as_dict()
    assert (tmp_path / RESULTS).read_text() == written
    with pytest.raises(Misconfigured, match="no_saved_figures"):
        run_tables(tmp_path / "elsewhere", quick=True, processes=1, saved=True)
    monkeypatch.setattr(program, "_add_hash_law", lambda *_: None)
    monkeypatch.setattr(program, "_measure_grouped", lambda _: 1.0)
    again = run_tables(tmp_path, quick=True, processes=1, steps=2, finished=True)
    assert again.value("world.aif.gauc") == figures.value("world.aif.gauc") and again.value("cells") == again.value("cells_planned")
    with pytest.raises(Misconfigured, match="no_cells"):
        run_tables(tmp_path, quick=True, processes=1, steps=3, finished=True)
