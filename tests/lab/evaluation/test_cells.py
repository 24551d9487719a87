"""A cell: the same plan gives the same numbers, its file is the cell, and the questions it asks are the world's."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.catalogues.world_catalogue import FIRST_ITEM_ID, NOW_MS
from lab.evaluation.cells import Cell, CellPlan, measure_model, read_cell, run_cell, run_cells, train_model, write_cell
from lab.evaluation.family.variant import AIF, BASE, FULL, TEACHER
from lab.evaluation.plan import TWO_TASKS, Lesson, plan_tables
from lab.evaluation.rungs import RUNGS
from lab.evaluation.world_truth import join_world, measure_any, measure_near, open_truth, run_cascade
from schemas.model.lsh import make_w_hash
from schemas.train_choices import TrainChoices
from streams.training.impressions import join_events
from streams.training.measures import UserValues
from streams.training.model_file import default_spec
from streams.training.questions import teacher_ecpm
from tests.lab.evaluation.tiny import SIZE, tiny_plan
from tests.streams.training.test_trainer import logits_of, network_of, taste_world


def same(a: Cell, b: Cell) -> bool:
    return a.model == b.model and all(
        np.array_equal(a.users[n].value_U, b.users[n].value_U) and np.array_equal(a.users[n].weight_U, b.users[n].weight_U) for n in a.users
    )


@pytest.mark.parametrize("variant", [AIF, BASE, FULL], ids=lambda v: v.name)
def test_the_same_plan_gives_the_same_numbers(variant: object) -> None:
    plan = tiny_plan(variant)  # type: ignore[arg-type]
    assert same(run_cell(plan), run_cell(plan))


def test_a_cell_reads_back_as_it_was_written(tmp_path: Path) -> None:
    plan = tiny_plan()
    cell = run_cell(plan)
    assert read_cell(tmp_path, plan) is None
    write_cell(tmp_path, plan, cell)
    found = read_cell(tmp_path, plan)
    assert found is not None and same(found, cell) and found.numbers == cell.numbers
    assert {"gauc", "gauc_new", "hr_at_100", "ctr", "rpm", "ctr_more", "rpm_more"} == set(found.users)


@pytest.mark.parametrize(
    "change",
    [
        *({"train": TrainChoices(**made)} for made in ({"seed": 1}, {"steps": 5}, {"learning_rate": 1e-3})),
        {"variant": BASE},
        {"size": dataclasses.replace(SIZE, users=41)},
    ],
)
def test_whatever_decides_the_numbers_changes_the_files_name(change: dict[str, object]) -> None:
    plan = tiny_plan()
    assert dataclasses.replace(plan, **change).file_name != plan.file_name  # type: ignore[arg-type]


def test_a_taught_model_learns_the_order_of_a_teacher_who_saw_clicks_alone() -> None:
    train = tiny_plan().train.replaced({"copr": 1.0, "click": 0.0})
    plan = dataclasses.replace(tiny_plan(), train=train, taught_by=TEACHER)
    assert plan.teachers.train == train.replaced({"copr": 0.0, "click": 1.0, "soft_labels": False}) and plan.teachers.variant == TEACHER
    assert dataclasses.replace(plan, train=train.replaced({"seed": 1})).teachers == plan.teachers
    by_truth = dataclasses.replace(plan, taught_by=None)
    assert not same(run_cell(plan), run_cell(by_truth))


def test_the_teachers_ecpm_is_its_click_probability_times_the_bid_of_each_impression() -> None:
    data = taste_world(users=4)
    network = network_of(data).eval()
    ecpm = teacher_ecpm(network, data)
    clicks = torch.sigmoid(logits_of(network, data, range(len(data)))).numpy()
    expected = clicks * data.bid_QC * (data.row_QC >= 0)
    np.testing.assert_allclose(ecpm, expected, rtol=1e-5)


def test_a_model_of_two_tasks_learns_what_came_of_the_impressions() -> None:
    bought = run_cell(tiny_plan(TWO_TASKS))
    plan = tiny_plan(TWO_TASKS)
    assert not same(bought, run_cell(dataclasses.replace(plan, train=plan.train.replaced({"outcomes": 0.0}))))
    assert {name for name in bought.users if "buy" in name}


@pytest.mark.campaign
@pytest.mark.parametrize("lesson", plan_tables(quick=False).lessons, ids=lambda lesson: lesson[0].name)
def test_every_model_of_the_full_plan_learns_and_is_measured(lesson: Lesson) -> None:
    variant, differing, teacher = lesson
    plan = tiny_plan(variant, steps=1)
    cell = run_cell(dataclasses.replace(plan, train=plan.train.replaced(differing), taught_by=teacher))
    assert np.isfinite(cell.users["gauc"].value_U).all()


def test_a_title_decides_nothing() -> None:
    plan = tiny_plan()
    assert dataclasses.replace(plan, variant=dataclasses.replace(AIF, title="other")).file_name == plan.file_name


def test_a_stopped_run_goes_on_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [tiny_plan(seed=seed) for seed in (0, 1)]
    ran: list[int] = []

    def counted(plan: CellPlan) -> Cell:
        ran.append(plan.train.seed)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return Cell("aif", plan.train.seed, {"ctr": UserValues(np.ones(2), np.ones(2))}, {"wall_s": 1.0, "cpu_s": 1.0})

    monkeypatch.setattr("lab.evaluation.cells.run_cell", counted)
    with pytest.raises(KeyboardInterrupt):
        run_cells(plans, tmp_path, 1)
    assert [cell.seed for cell in run_cells(plans, tmp_path, 1)] == [0, 1] and ran == [0, 1, 1]


def test_histories_end_before_the_questions_time_and_shown_candidates_are_those_asked_for() -> None:
    truth = open_truth(0, SIZE)
    spec = default_spec(truth.schema)
    data = join_events(spec, make_w_hash(0, spec.hash_bits, spec.schema.mm_width), truth.events, every_item=True)
    questions = truth.questions(data, truth.near)
    assert len(questions) == len(truth.held_out) and questions.row_QC.shape == truth.near.shape and (questions.row_QC >= 0).all()
    last = questions.history_end_Q - 1
    assert (data.histories.time_H[last] < NOW_MS).all() and (questions.history_end_Q > data.histories.begin_U[questions.user_Q]).all()
    bids = truth.bids(truth.near)
    np.testing.assert_allclose(questions.bid_QC, bids, atol=1e-4)


def test_the_truth_as_score_is_not_beaten_and_chance_is_one_half() -> None:
    truth = open_truth(0, SIZE)
    near, everywhere = (np.log(p / (1 - p)) for p in (truth.probabilities(truth.near), truth.probabilities(truth.anywhere)))
    best, best_any = measure_near(truth, near), measure_any(truth, everywhere)
    chance = np.random.default_rng(0).standard_normal(near.shape)
    assert best["gauc"].mean() > 0.85 and abs(measure_near(truth, chance)["gauc"].mean() - 0.5) < 0.05
    assert best_any["hr_at_100"].mean() == 1.0
    worse = measure_any(truth, -everywhere)
    assert worse["rpm"].mean() < best_any["rpm"].mean()


def test_the_cascade_shows_the_teachers_best_of_our_hundred() -> None:
    chance = np.random.default_rng(1)
    scores, p, bids = chance.random((3, 300)), chance.random((3, 300)), 1 + chance.random((3, 300))
    clicks, revenue = run_cascade(scores, p, bids)
    for u in range(3):
        ours = sorted(range(300), key=lambda i: -scores[u, i])[:100]
        shown = sorted(ours, key=lambda i: -p[u, i] * bids[u, i])[:10]
        assert clicks[u] == pytest.approx(np.mean(p[u, shown])) and revenue[u] == pytest.approx(np.mean((p * bids)[u, shown]))


def test_new_candidates_are_those_that_the_user_has_not_met() -> None:
    truth = open_truth(0, SIZE)
    for user, near, new in zip(truth.user_ids, truth.near, truth.near_is_new, strict=True):
        met = {b.item_id for b in truth.events.behaviours if b.user_id == user}
        assert new.tolist() == [FIRST_ITEM_ID + item not in met for item in near.tolist()]


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_ends_early_leaves_what_it_has_and_no_process(tmp_path: Path, killed: bool) -> None:
    """Ctrl-C goes to every process of the terminal: one line about the kept cells, and no traceback of the others.
    A kill goes to the first only."""
    program = f"""
from pathlib import Path
from streams.training.model_file import default_spec
from streams.training.questions import teacher_ecpm
from lab.evaluation.cells import run_cells
from tests.lab.evaluation.tiny import tiny_plan
run_cells([tiny_plan(), *(tiny_plan(seed=n, steps=100_000) for n in (1, 2, 3))], Path({str(tmp_path)!r}), 2)
"""
    ours = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not list(tmp_path.glob("*.json")):
            assert ours.poll() is None
            time.sleep(0.05)
        os.kill(ours.pid, signal.SIGKILL) if killed else os.killpg(ours.pid, signal.SIGINT)
        _, told = ours.communicate(timeout=60)  # ends when no process can write any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ours.pid, signal.SIGKILL)
    assert killed or f"1 of 4 cells are in {tmp_path}; the same command goes on with the others" in told
    assert told.count("Traceback") == (not killed) and read_cell(tmp_path, tiny_plan()) is not None


def test_a_world_is_joined_from_its_columns_as_from_its_events() -> None:
    truth = open_truth(0, SIZE)
    spec = default_spec(truth.schema)
    w_hash = make_w_hash(0, spec.hash_bits, spec.schema.mm_width)
    ours, theirs = join_world(truth.catalogue, spec, w_hash), join_events(spec, w_hash, truth.events, every_item=True)
    assert ours.digest == theirs.digest and ours.histories.index == theirs.histories.index
    assert (ours.histories.begin_U == theirs.histories.begin_U).all() and (ours.histories.end_U == theirs.histories.end_U).all()


def test_a_cell_may_read_another_length_than_it_was_trained_with() -> None:
    plan = tiny_plan()
    bounded = dataclasses.replace(plan, spec=(*plan.spec, ("behaviours_max", 4)))
    cells = [run_cell(p) for p in (bounded, dataclasses.replace(bounded, reads=4), dataclasses.replace(bounded, reads=96))]
    gaucs = [cell.users["gauc"].mean() for cell in cells]
    assert gaucs[0] == gaucs[1] != gaucs[2]


def test_the_rungs_of_one_model_differ_and_the_first_is_the_cell() -> None:
    plan = tiny_plan()
    network, data, _ = train_model(plan)
    fresh, *others = (measure_model(plan.truth, network, data, rung)[0]["gauc"].mean() for rung in RUNGS)
    assert fresh == run_cell(plan).users["gauc"].mean() and len({fresh, *others}) == len(RUNGS)
