"""What a person sees while files are read: bars of rows and events on standard error.

Here: the bars. Not here: any reading (tables.py), what looks wrong about what was read (doubts.py).
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from infra.data.tables import Tell

T = TypeVar("T")


def open_progress() -> Progress:
    """Bars in rows and events, where a person watches."""
    columns = (TextColumn("{task.description:<24}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty())


def tell_rows(progress: Progress) -> Tell:
    """One bar for each section that is read."""
    tasks: dict[str, TaskID] = {}

    def tell(section: str, rows: int, total: int | None) -> None:
        if section not in tasks:
            tasks[section] = progress.add_task(f"rows of [{section}]", total=total)
        progress.update(tasks[section], completed=rows, total=total)

    return tell


def counted(events: Iterable[T], progress: Progress, name: str) -> Iterator[T]:
    """The same events; a bar counts them."""
    task, number = progress.add_task(name, total=None), 0
    for number, event in enumerate(events, 1):
        yield event
        if number % 1_000 == 0:
            progress.update(task, completed=number)
    progress.update(task, total=number, completed=number)
