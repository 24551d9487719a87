"""What a person sees while something takes long: bars on standard error, or in a log file now and then a line."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from infra.command import say

T = TypeVar("T")
LINE_EVERY_S = 5.0


class _Lines(Progress):
    """No bars, but a line of what goes on, at most one in `every_s`."""

    def __init__(self, every_s: float) -> None:
        super().__init__(console=Console(file=sys.stderr), disable=True)
        self._every_s, self._told_s = every_s, time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As of bars; see there."""
        super().update(task_id, **changes)
        if time.monotonic() - self._told_s >= self._every_s:
            self._told_s, task = time.monotonic(), self._tasks[task_id]
            say(f"{task.description}: {task.completed:,.0f}{'' if task.total is None else f' of {task.total:,.0f}'}")


def open_progress(every_s: float | None = None) -> Progress:
    """Bars where a person watches, else lines."""
    if not sys.stderr.isatty():
        return _Lines(LINE_EVERY_S if every_s is None else every_s)
    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(file=sys.stderr))


def tell_parts(progress: Progress, form: str = "{}") -> Callable[[str, int, int | None], None]:
    """A function that takes (name of a part, how much is done, of how much); each part has a bar, called as `form` says."""
    tasks: dict[str, TaskID] = {}

    def tell(part: str, done: int, total: int | None) -> None:
        if part not in tasks:
            tasks[part] = progress.add_task(form.format(part), total=total)
        progress.update(tasks[part], completed=done, total=total)

    return tell


def counted(events: Iterable[T], progress: Progress, name: str) -> Iterator[T]:
    """The same events; a bar counts them."""
    task, number = progress.add_task(name, total=None), 0
    for number, event in enumerate(events, 1):
        yield event
        if number % 1_000 == 0:
            progress.update(task, completed=number)
    progress.update(task, total=number, completed=number)
