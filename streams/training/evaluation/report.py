"""The report of a run: tables in Markdown beside the paper's numbers, and pictures. Only figures of that run are in it.

Here: text and pictures. Not here: any number's arithmetic (tables.py), the paper's numbers (paper.py).
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from infra.bench.report import Figures, describe_machine, library_versions
from streams.training.evaluation.hash_law import BITS
from streams.training.evaluation.paper import TABLE_2 as PAPER_2
from streams.training.evaluation.paper import TABLE_3 as PAPER_3
from streams.training.evaluation.plan import OTHER_LOSSES, TablesPlan
from streams.training.family.variant import AIF, BASE, BRIDGES, TABLE_2, TABLE_3, Variant

RESULTS = "RESULTS.md"


class Lookup:
    """Figures by name as text; a figure that a run does not have is a dash."""

    def __init__(self, figures: Figures) -> None:
        self._values = {name: entry["value"] for name, entry in figures.as_dict()["figures"].items()}

    def number(self, name: str) -> float | None:
        """The figure, None if the run does not have it."""
        value: float | None = self._values.get(name)
        return value

    def text(self, name: str, digits: int, scale: float = 1.0) -> str:
        """The figure alone."""
        value = self.number(name)
        return "-" if value is None else f"{scale * value:.{digits}f}"

    def interval(self, name: str, digits: int, scale: float = 1.0) -> str:
        """The figure with its interval."""
        if self.number(name) is None:
            return "-"
        return f"{self.text(name, digits, scale)} [{self.text(f'{name}_low', digits, scale)}, {self.text(f'{name}_high', digits, scale)}]"

    def gain_pt(self, model: str, measure: str) -> float | None:
        """Points over Base."""
        ours, base = self.number(f"world.{model}.{measure}"), self.number(f"world.{BASE.name}.{measure}")
        return None if ours is None or base is None else 100 * (ours - base)


def write_report(folder: Path, figures: Figures, plan: TablesPlan) -> Path:
    """RESULTS.md and its pictures in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Lookup(figures)
    sections = [_head(plan), _table_2(found), _table_3(found), _bridges(found), _losses(found), _hash_law(found), _rest(found)]
    path = folder / RESULTS
    path.write_text("\n".join(section for section in sections if section))
    _draw_gains(folder / "table2.png", found)
    if found.number(f"world.{BRIDGES[0].name}.gauc") is not None:
        _draw_bridges(folder / "bridges.png", found)
    return path


def _head(plan: TablesPlan) -> str:
    machine, versions = describe_machine(), library_versions()
    kind = shlex.join(
        ["aif", "eval", "tables", *(["--quick"] if plan.quick else []), "--steps", str(plan.steps), "--seeds", str(plan.seeds)]
    )
    size = plan.size
    return f"""# Results

Written by `{kind}` on {machine["cores"]} cores of {machine["processor"]}, torch {versions["torch"]}, Python {versions["python"]}.
Synthetic world: {size.items:,} items, {size.users:,} users, {size.users * size.requests_per_user:,} requests of {size.shown_per_request}
shown items; {size.held_out} users kept out of training are measured, against the true click probability. {plan.steps:,} steps, {plan.seeds}
seed(s); [low, high] is the 95% interval of a paired bootstrap over users, 1,000 resamples. The paper's numbers are of other data: order and
sign can agree, sizes need not. Intervals are over users; what another seed of a training changes is not in them.
"""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _table_2(found: Lookup) -> str:
    rows = []
    for variant in TABLE_2:
        name, paper = variant.name, PAPER_2[variant.name]
        prefix = f"world.{name}"
        lifts = [found.interval(f"{prefix}.{m}_lift_pct", 2) for m in ("ctr", "rpm")]
        gains = [_points(found.gain_pt(name, m)) for m in ("hr_at_100", "gauc")]
        theirs = [_points(value) for value in (paper.hr_pt, paper.gauc_pt, paper.ctr_pct, paper.rpm_pct)]
        drop = found.interval(f"{prefix}.gauc_drop_pt", 2)
        rows.append(
            [variant.title, found.interval(f"{prefix}.gauc", 4), found.text(f"{prefix}.hr_at_100", 4), *gains, drop, *lifts, *theirs]
        )
    header = ("Model", "GAUC", "HR@100", "HR, pt", "GAUC, pt", "lost against AIF, pt", "CTR, %", "RPM, %")
    paper_header = ("paper: HR", "GAUC", "CTR", "RPM")
    return f"""## Table 2: what each part is worth

{_table([*header, *paper_header], rows)}
Gap between Base and Base(full features): {found.interval("gauc_gap_pt", 2)} points of GAUC (paper 7.83); AIF closes
{found.interval("aif_share_of_gap", 1, 100)} % of it (paper 93.1 %). CTR and RPM are of a cascade: the model's hundred best of 2,000, of them the
ten best of a ranking stage that knows the truth; lifts compare the same users. Split by a hash of the user, 50/50, as an A/B test sees it:
CTR {found.interval("world.ab.aif.ctr_lift_pct", 2)} %, RPM {found.interval("world.ab.aif.rpm_lift_pct", 2)} %.

![Gains over Base](table2.png)
"""


def _table_3(found: Lookup) -> str:
    rows = []
    for variant in TABLE_3:
        if found.number(f"world.{variant.name}.gauc") is None:
            continue
        lost = found.interval(f"world.{variant.name}.gauc_loss_pt", 2)
        costs = [found.text(f"{variant.name}_{kind}_saved_pct", 1) for kind in ("counted", "time")]
        paper = PAPER_3.get(variant.name)
        theirs = [f"{value:.2f}" for value in paper] if paper else ["-", "-"]
        rows.append([variant.title, found.interval(f"world.{variant.name}.gauc", 4), lost, *costs, *theirs])
    header = ("Model", "GAUC", "lost, pt", "counted cost saved, %", "time saved, %", "paper: lost", "saved")
    return f"""## Table 3: similarity, exact and hashed

{_table(header, rows)}
All without bridges, so that nothing but the similarity differs. Time is of the two modules for 500 candidates and 4,000 behaviours of one
user, vectors of 256, signatures of 256 bits, one thread, each in the best form we know; the factored forms do not grow with the history.
"""


def _bridges(found: Lookup) -> str:
    rows = [_bridge_row(variant, found) for variant in BRIDGES if found.number(f"world.{variant.name}.gauc") is not None]
    if not rows:
        return ""
    return f"""## Bridges

{_table(("Model", "GAUC", "HR@100", "seconds of the fit"), rows)}
![GAUC by number of bridges](bridges.png)
"""


def _bridge_row(variant: Variant, found: Lookup) -> list[str]:
    prefix = f"world.{variant.name}"
    return [variant.title, found.interval(f"{prefix}.gauc", 4), found.text(f"{prefix}.hr_at_100", 4), found.text(f"{prefix}.fit_s", 0)]


def _losses(found: Lookup) -> str:
    if not any(found.number(f"world.{name}.gauc") is not None for name in OTHER_LOSSES):
        return ""
    titles = {AIF.name: "the teacher's probability (all other tables)"} | {name: title for name, (title, _) in OTHER_LOSSES.items()}
    names = ("gauc", "hr_at_100", "calibration")
    rows = [[title, *(found.text(f"world.{model}.{name}", 4) for name in names)] for model, title in titles.items()]
    return f"""## Losses

{_table(("AIF trained with", "GAUC", "HR@100", "predicted / expected clicks"), rows)}"""


def _hash_law(found: Lookup) -> str:
    rows = [[str(bits), found.text(f"hash_sigma_ratio_{bits}", 3)] for bits in BITS]
    return f"""## Bits of a signature

The spread of similarity over its law sqrt(p (1 - p) / bits); 1 = the law holds.

{_table(("bits", "measured / law"), rows)}"""


def _rest(found: Lookup) -> str:
    return f"""
## Training

Request-grouped batches learn {found.text("grouped_speedup", 1)} times as many impressions a second as one row per impression (same model,
same step, one thread).
"""


def _draw_gains(path: Path, found: Lookup) -> None:
    """Points of GAUC over Base, ours beside the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(v.title, found.gain_pt(v.name, "gauc"), PAPER_2[v.name].gauc_pt) for v in TABLE_2 if v is not BASE]
    shown = [(title, ours, paper) for title, ours, paper in rows if ours is not None]
    figure = Figure(figsize=(8, 0.6 * len(shown) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(shown))
    axes.barh([p - 0.2 for p in places], [ours for _, ours, _ in shown], 0.4, label="this run, synthetic world")
    axes.barh([p + 0.2 for p in places], [paper or 0.0 for *_, paper in shown], 0.4, label="paper, its own data")
    axes.set_yticks(list(places), [title for title, *_ in shown])
    axes.invert_yaxis()
    axes.set_xlabel("GAUC over Base, points")
    axes.legend()
    figure.savefig(path, dpi=120)


def _draw_bridges(path: Path, found: Lookup) -> None:
    """GAUC by number of bridges, Full-Cross as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    counted = [v for v in BRIDGES if v.bridges is not None]
    axes.plot([v.bridges for v in counted], [found.number(f"world.{v.name}.gauc") for v in counted], marker="o", label="BEA")
    if (full_cross := found.number("world.full_cross.gauc")) is not None:
        axes.axhline(full_cross, linestyle="--", label="Full-Cross")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bridges n")
    axes.set_ylabel("GAUC")
    axes.legend()
    figure.savefig(path, dpi=120)
