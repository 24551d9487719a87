"""Runs the cells of a plan that have no file yet, in several processes, with a progress bar; the others are read.

Here: processes and progress. Not here: the work of a cell (cells.py). Each process computes with one thread of torch, because two processes of one
thread get more done than one process of two.
"""

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from streams.training.evaluation.cells import Cell, CellPlan, read_cell, run_cell, write_cell


def run_cells(plans: Sequence[CellPlan], folder: Path, processes: int) -> list[Cell]:
    """Runs the missing cells and returns all of them in the order of the plans. A run that was interrupted continues with what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [plan for plan in plans if read_cell(folder, plan) is None]
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("cells", total=len(plans), completed=len(plans) - len(missing))
        told = _Told(progress, task, len(missing), max(1, min(processes, len(missing))))
        try:
            if told.processes > 1:
                _run_beside(missing, folder, told)
            else:
                for plan in missing:
                    told.finish(plan, _run_and_write(plan, folder))
        except KeyboardInterrupt:
            told.say(f"{len(read_cells(plans, folder))} of {len(plans)} cells are in {folder}; the same command goes on with the others")
            raise
    return read_cells(plans, folder)


def read_cells(plans: Sequence[CellPlan], folder: Path) -> list[Cell]:
    """The cells of the plans that have a file, in the order of the plans."""
    found = [read_cell(folder, plan) for plan in plans]
    return [cell for cell in found if cell is not None]


@dataclass
class _Told:
    """The progress bar, and a line for each finished cell: its time, and an estimate for the remaining ones."""

    progress: Progress
    task: TaskID
    left: int
    processes: int
    seconds: float = 0.0
    done: int = 0

    def finish(self, plan: CellPlan, cell: Cell) -> None:
        """Counts and prints a finished cell."""
        numbers = cell.numbers
        self.left, self.done, self.seconds = self.left - 1, self.done + 1, self.seconds + numbers["wall_s"]
        left_min = self.left * self.seconds / self.done / self.processes / 60
        self.say(
            f"{plan.file_name}: {numbers['wall_s']:.0f} s, {numbers['cpu_s']:.0f} s of processor; {self.left} left, about {left_min:.0f} min"
        )
        self.progress.update(self.task, advance=1, description=plan.variant.title[:28])

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self.progress.console.print(line, highlight=False, soft_wrap=True)


def _run_beside(missing: Sequence[CellPlan], folder: Path, told: _Told) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(told.processes, mp_context=context) as pool:
        with _interrupts_ignored():  # the processes inherit it: who presses Ctrl-C hears of it from this one, once
            plans = {pool.submit(_run_and_write, plan, folder): plan for plan in missing}
        try:
            for done in as_completed(plans):
                told.finish(plans[done], done.result())
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
