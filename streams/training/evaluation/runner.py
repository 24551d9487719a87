"""Runs the cells that are not there yet, in several processes, with a progress bar; what is there is read.

Here: processes and files. Not here: what a cell does (cells.py). A process computes with one thread of torch: two processes of one thread
do more than one of two.
"""

import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from streams.training.evaluation.cells import Cell, CellPlan, read_cell, run_cell, write_cell


def run_cells(plans: Sequence[CellPlan], folder: Path, processes: int) -> list[Cell]:
    """All cells in the order of the plans. Stopped and started again it goes on with the first that has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [plan for plan in plans if read_cell(folder, plan) is None]
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("cells", total=len(plans), completed=len(plans) - len(missing))
        if processes > 1 and len(missing) > 1:
            _run_beside(missing, folder, min(processes, len(missing)), progress, task)
        else:
            _run_here(missing, folder, progress, task)
    found = [read_cell(folder, plan) for plan in plans]
    return [cell for cell in found if cell is not None]


def _run_here(missing: Sequence[CellPlan], folder: Path, progress: Progress, task: TaskID) -> None:
    for plan in missing:
        progress.update(task, description=plan.variant.title[:28])
        _run_and_write(plan, folder)
        progress.advance(task)


def _run_beside(missing: Sequence[CellPlan], folder: Path, processes: int, progress: Progress, task: TaskID) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        names = {pool.submit(_run_and_write, plan, folder): plan.variant.title for plan in missing}
        try:
            for done in as_completed(names):
                done.result()
                progress.update(task, advance=1, description=names[done][:28])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_and_write(plan: CellPlan, folder: Path) -> None:
    """In whichever process: the cell computed and its file written."""
    torch.set_num_threads(1)
    write_cell(folder, plan, run_cell(plan))
