"""The output of the demo on standard error: one bar for each step, then one ranking, the figures, and commands to try next."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from infra.figures import Figures
from lab.catalogues.catalogue import Evaluation
from lab.demo.one_ranking import Change, Line, OneRanking
from schemas.ids import Id
from serving.core.relay_rungs import FinalRung
from streams.training.comparison import Gain, doubt_few

_WIDTH_MAX = 120
_HR = "share of each user's 10 truly best items among the server's top {k}; mean of {users} users unknown to training"
_RECALL = "share of the items that {users} held-out users took, among the server's top {k}"
_ROWS = (
    ("hr_at_100", "{measure} of the model", "{:.3f}", "{meaning}"),
    ("plain_hr_at_100", "{measure} of the best plain score", "{:.3f}", "the same for {best_plain}, which needs no learning"),
    ("popularity_hr_at_100", "{measure} of popularity", "{:.3f}", "the same for the most clicked or taken items"),
    ("random_hr_at_100", "{measure} of chance", "{:.3f}", "the same for candidates in random order"),
    ("aif_hr_at_10", "{measure_10} of AIF's order", "{:.3f}", "the same 10 among the server's first 10"),
    ("final_hr_at_10", "{measure_10} of the final order", "{:.3f}", "the same after the ranker has ordered AIF's best 300"),
    (
        "resident_share",
        "resident prefixes",
        "{:.2f}",
        "share of final rankings whose history was computed before their candidates came",
    ),
    ("rank_p50_ms", "one ranking", "{:.1f} ms", "median over HTTP with JSON, as the client sees it"),
    ("update_visible_ms", "changed price", "{:.0f} ms", "median from publishing a price to the first answer with another score"),
    ("new_item_visible_ms", "new item", "{:.0f} ms", "median from publishing an item to the first answer that scores it"),
    ("flips", "version switches", "{:.0f}", "new models that went live while requests were answered"),
    ("answers_during_switch", "answers meanwhile", "{:,.0f}", "each recomputed afterwards by the reference model"),
    ("slowest_during_switch_ms", "slowest of them", "{:.0f} ms", "the longest wait for an answer; other processes share the cores"),
    ("mixed_versions", "answers of mixed versions", "{:.0f}", "answers that do not equal exactly one version; 0 is promised"),
    ("digest_equal", "replay equal", "{:.0f}", "1: reading the topics again gives the same index, byte for byte"),
    ("items", "items", "{:,.0f}", "in the index"),
    ("seconds_total", "the whole demo", "{:.0f} s", "from an empty directory"),
)


class Steps:
    """Progress of the demo. A step has a bar; where its length is not known the bar pulses."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        if not self._console.is_terminal or self._console.width > _WIDTH_MAX:
            self._console = Console(file=sys.stderr, width=_WIDTH_MAX)
        columns = (TextColumn("{task.description:<40}"), BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
        # Without a terminal, a line at the end of each step says the same.
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
            self._console.print(f"{title}: {step.result} ({time.monotonic() - started:.1f} s)", highlight=False)

    def say(self, text: str) -> None:
        """A line between the bars."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def print_ranking(self, shown: OneRanking) -> None:
        """The user's recent items, the best items before and after, and what happened in between."""
        self.say(f"\nOne ranking: user {shown.user_id}, {shown.candidates:,} candidates, {shown.took_ms:.1f} ms\n\nRecently the user did:")
        for kind, title in shown.recent:
            self.say(f"  {kind:<6} {title}")
        self.say("\nThe best items for this user:")
        self._print_best(shown.best)
        if shown.final_rung != FinalRung.AIF_ORDER:
            self.say(f"\nAIF's best 300 in the ranker's order (rung: {shown.final_rung}; was: rank in AIF's order, if it changed):")
            self._print_best(shown.final, changed=True)
        for change in shown.changes:
            self.say(f"\n{_spell(change)}")
        self.say("\nThe best items now:")
        self._print_best(shown.best_after, changed=True)

    def _print_best(self, lines: tuple[Line, ...], changed: bool = False) -> None:
        table = Table(box=None, pad_edge=True, header_style="")
        for name in ("rank", "was", "score") if changed else ("rank", "score"):
            table.add_column(name, justify="right")
        table.add_column("item", justify="right")
        table.add_column("title")
        for line in lines:
            was = "" if line.rank_before == line.rank else "new" if line.rank_before is None else str(line.rank_before)
            table.add_row(str(line.rank), *([was] if changed else []), f"{line.score:.3f}", str(line.item_id), line.title)
        self._console.print(table, highlight=False, markup=False)

    def print_figures(self, figures: Figures, evaluation: Evaluation, gain: Gain) -> None:
        """The figures with their meaning, and whether the model beats the best plain score."""
        known = {name: figure["value"] for name, figure in figures.as_dict()["figures"].items()}
        meaning = (_HR if evaluation.measure == "HR" else _RECALL).format(k=evaluation.k, users=len(evaluation.users))
        table = Table(box=None, show_header=False, pad_edge=True)
        for name, title, form, what in _ROWS:
            if name not in known:  # a model without a ranker has one order
                continue
            value = "not measured" if known[name] is None else form.format(known[name])
            table.add_row(
                title.format(measure=gain.measure, measure_10=f"{evaluation.measure}@10"),
                value,
                what.format(meaning=meaning, best_plain=gain.best),
            )
        self.say("\nMeasured:")
        self._console.print(table, highlight=False)
        self.say("\n" + "\n".join([str(gain), *doubt_few([gain])]))

    def print_next(self, environment: Path | None, user: Id) -> None:
        """Three commands to try."""
        if environment is None:
            self.say(
                "\nEverything is stopped and removed. Try next:\n"
                "  aif demo --keep            the same, left running: then ask it yourself\n"
                "  aif doctor                 check this machine before you run your own system\n"
                "  aif demo --help            other sizes, or your own files"
            )
            return
        self.say(
            f"\nEverything keeps running in the background; `aif demo stop` ends it. Try next, after `. {environment}`:\n"
            f"  {f'aif query {user} --trace':27}one ranking in two calls, and where its time went\n"
            "  aif index diff             what differs between the two newest versions\n"
            "  aif status --watch         shards, versions and freshness, live"
        )


def _spell(change: Change) -> str:
    when = "the score stayed the same" if change.visible_ms is None else f"visible {change.visible_ms:.0f} ms after the event was published"
    return f"{change.what}\n  {change.before} -> {change.after}; {when}"


class Step:
    """One running step."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self.result = "done"  # what the step's last line says

    def advance(self, amount: float = 1) -> None:
        """Moves the bar on."""
        self._progress.advance(self._task, amount)

    def tell(self, note: str) -> None:
        """Set the note next to the bar."""
        self._progress.update(self._task, note=note)
