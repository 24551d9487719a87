"""What a person sees while files are read: bars of rows and events on standard error, and what looks wrong about them.

Here: the bars and the words. Not here: any reading (tables.py), whether a column tells the future (telling_features.py).
"""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from infra.data.mapped_sources import MappedSources
from infra.data.tables import Tell
from infra.data.telling_features import find_telling_features

_KNOWN_SHARE_LEAST = 0.5
T = TypeVar("T")


def open_progress() -> Progress:
    """Bars in rows and events."""
    columns = (TextColumn("{task.description:<24}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(file=sys.stderr))


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


def find_doubts(sources: MappedSources) -> list[str]:
    """What can be imported but looks wrong, a sentence each."""
    found = []
    if sources.known_share < _KNOWN_SHARE_LEAST:
        found.append(
            f"only {sources.known_share:.0%} of what users did was with an item of [items]; "
            "do both files spell ids the same way, and in these columns?"
        )
    for name, correlation in find_telling_features(sources).items():
        found.append(
            f"features.{name} of [items] goes with what happens after the evaluation time more than what came before explains (partial rank "
            f"correlation {correlation:+.2f}); a column without a time counts as always known: if it sums up the whole period, leave it out, "
            "or take count_days or [item_history]"
        )
    return found
