"""What a person sees of the demo: one bar for each long step on standard error, and the table at the end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from infra.figures import Figures

_ROWS = (
    ("items", "items in the index", "{:,.0f}"),
    ("hr_at_100", "{measure} of the model", "{:.3f}"),
    ("popularity_hr_at_100", "{measure} of popularity", "{:.3f}"),
    ("random_hr_at_100", "{measure} of chance", "{:.3f}"),
    ("rank_p50_ms", "one ranking over HTTP, median (ms)", "{:.1f}"),
    ("update_visible_ms", "changed price to changed score, median (ms)", "{:.0f}"),
    ("new_item_visible_ms", "new item to its first score, median (ms)", "{:.0f}"),
    ("flips", "versions switched under load", "{:.0f}"),
    ("answers_during_switch", "answers meanwhile, each recomputed by the reference", "{:,.0f}"),
    ("slowest_during_switch_ms", "slowest of them (ms)", "{:.0f}"),
    ("mixed_versions", "answers that mix versions", "{:.0f}"),
    ("digest_equal", "replay of the topics gives the same digest (1 = yes)", "{:.0f}"),
    ("seconds_total", "the whole demo (s)", "{:.1f}"),
)


class Steps:
    """Progress of the demo. A step has a bar; where its length is not known the bar pulses."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description:<46}"), BarColumn(bar_width=28), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        # Where nobody watches, a line at the end of each step says the same.
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, title: str, total: float | None = None) -> Iterator["Step"]:
        """One step; on a console that is no terminal its end is one line."""
        task = self._progress.add_task(title, total=total, note="")
        started = time.monotonic()
        step = Step(self._progress, task)
        yield step
        self._progress.update(task, total=1, completed=1)
        if not self._console.is_terminal:
            self._console.print(f"{title}: {step.note or 'done'} ({time.monotonic() - started:.1f} s)", highlight=False)

    def say(self, text: str) -> None:
        """A line between the bars."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def print_figures(self, figures: Figures, measure: str) -> None:
        """The final table; `measure` is what the data allows: HR@100 with a teacher, recall@100 without."""
        known = figures.as_dict()["figures"]
        table = Table(title="aif demo", show_header=False)
        for name, title, form in _ROWS:
            value = known[name]["value"]
            table.add_row(title.format(measure=measure), "not measured" if value is None else form.format(value))
        self._console.print(table)


class Step:
    """One running step."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self.note = ""

    def advance(self, amount: float = 1) -> None:
        """Moves the bar on."""
        self._progress.advance(self._task, amount)

    def tell(self, note: str) -> None:
        """What stands beside the bar."""
        self.note = note
        self._progress.update(self._task, note=note)
