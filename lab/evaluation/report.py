"""The report of a run: RESULTS.md, with the run's figures next to the paper's, and its pictures.

Invariant: apart from the sections of other data (data_section.py), every number is a figure of the run; one that the run does not have is a dash.
Source: AIF, Tables 2 and 3.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infra.figures import Figures
from infra.files import write_file_durably
from lab.evaluation.costs import USER_ROWS
from lab.evaluation.data_section import data_section
from lab.evaluation.family.codes import CLUSTERS, MOMENT_WIDTH
from lab.evaluation.family.variant import AIF, BASE, BITS, BRIDGE_COUNTS, BRIDGES, TABLE_2, TABLE_3, Variant
from lab.evaluation.history import history_rungs_section, history_section
from lab.evaluation.pictures import draw_bits, draw_bridges, draw_gains
from lab.evaluation.plan import OTHER_LABELS, SPEC, TRAIN, TWO_TASKS, UPPER_BOUND, WORLD_SEED, TablesPlan, plan_tables
from lab.evaluation.tables import ALLOWED_PT
from lab.evaluation.world_truth import ANY_CANDIDATES, CHEAP_FEATURES
from lab.figures.markdown import Lookup, Span, heading, join_blocks, paragraph, picture, table
from schemas.features import Scope
from schemas.model.spec import ModelSpec

RESULTS, FIGURES = "RESULTS.md", "figures.json"
_GAINS, _BRIDGES, _BITS = "table2.png", "bridges.png", "bits.png"


# The figures that the paper prints, measured on production data that is not public: signs and order can be compared with ours, sizes cannot.
# Table 2: points of HR@100 and of GAUC, percent of CTR and of RPM over Base.
_PAPER_2: Mapping[str, tuple[float | None, ...]] = {
    "base": (0.0, 0.0, 0.0, 0.0),
    "full": (8.45, 7.83, None, None),
    "aif": (7.91, 7.29, 8.72, 5.80),
    "aif_without_async": (3.99, 3.71, 4.43, 3.36),
    "aif_without_sim": (5.97, 6.13, 6.11, 4.79),
    "aif_without_bea": (5.86, 6.09, 7.19, 4.02),
    "aif_without_long_term": (5.43, 5.98, 6.45, 3.71),
    "base_15_candidates": (None, None, 3.75, 1.69),
    "base_15_parameters": (None, None, 1.96, 1.07),
}
# Table 3: points of GAUC lost against DIN + SimTier, percent of the counted cost saved.
_PAPER_3 = {
    "din_simtier": (0.0, 0.0),
    "lsh_din_simtier": (0.28, 43.75),
    "din_lsh_simtier": (0.37, 43.75),
    "mm_din_simtier": (0.23, 50.0),
    "lsh_256": (0.45, 93.75),
}


def _gain_pt(found: Lookup, model: str, measure: str) -> float | None:
    """Points that a model's measure lies above Base's; None if the run does not have both."""
    ours, base = found.number(f"world.{model}.{measure}"), found.number(f"world.{BASE.name}.{measure}")
    return None if ours is None or base is None else 100 * (ours - base)


def write_report(folder: Path, figures: Figures, plan: TablesPlan, other_data: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Writes RESULTS.md, its pictures and the figures of all of it into `folder` and returns the path of the first.

    `other_data`: what `read_data_figures` returned; each has a section.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Lookup(figures.as_dict())
    sections = (
        _head(found, plan, figures),
        _compared(plan),
        _table_2(found),
        _table_3(found),
        _bridges(found),
        _bits(found),
        _teacher(found),
        _labels(found),
        _upper_bound(found),
        _tasks(found),
    )
    sections_of = {"eval data": data_section, "eval history": history_section, "eval history --rungs": history_rungs_section}
    others = (sections_of[raw["command"]](raw) for raw in other_data)
    blocks = [block for section in (*sections, _training(found), *others) for block in section]
    _draw(folder, found)
    path = folder / RESULTS
    path.write_text(join_blocks(blocks))
    write_file_durably(folder / FIGURES, (json.dumps(figures.as_dict(), indent=1) + "\n").encode())
    return path


def _head(found: Lookup, plan: TablesPlan, figures: Figures) -> list[str]:
    machine, versions, size, shape = figures.machine, figures.versions, plan.size, plan.size.history
    median = int(shape.lengths_of(np.zeros(1))[0])
    options = [*(["--quick"] if plan.quick else []), "--steps", str(plan.steps), "--seeds", str(plan.seeds)]
    kind = shlex.join(["aif", "eval", "tables", *options])
    made = f"""Written by `{kind}` on {machine["cores"]} cores of {machine["processor"]}, torch {versions["torch"]}, Python {versions["python"]}:
    {found.text("cells", 0)} of {found.text("cells_planned", 0)} trainings of the plan, {found.text("cells_cpu_s", 0)} seconds of processor time.
    Synthetic world {WORLD_SEED}: {size.items:,} items, {size.users:,} users, {size.users * size.requests_per_user:,} requests of
    {size.shown_per_request} shown items. Histories have {shape.lengths[0][1]:,} to {shape.longest:,} behaviours, {median:,} in the median (the paper's
    have about 100,000); models read the latest {ModelSpec.behaviours_max:,}. {plan.steps:,} steps, {plan.seeds} seed(s); a model's figure is the
    mean over its seeds, [low, high] the 95% interval of a paired bootstrap over users, 1,000 resamples. The interval does not cover differences between
    seeds. "seeds:" is their standard deviation."""
    labels = """As in the paper, models learn from drawn clicks and from a ranking teacher's order by COPR (Eq. 10). The teacher learnt from drawn clicks,
    too, with one seed for all models: a cascade has one ranking stage. Models that learnt the true click probability are in a table of their own."""
    if plan.quick:
        labels = "Models learn the true click probability, which no log has. The paper's labels, drawn clicks and a teacher's order, are in the full run."
    trust = f"""{size.held_out} users are kept out of training; {found.text("users", 0)} of them are measured here, against the true click probability (which
    reaches a GAUC of {found.text("world.truth.gauc", 4)}). The
    plan (weights of the world's signals, sizes, steps, learning rate) was chosen on another world, of seed 0. No choice used these users or items."""
    return [heading("Results", 1), paragraph(made), paragraph(labels), paragraph(trust), *([_full_plan(found, plan)] if plan.quick else [])]


def _compared(plan: TablesPlan) -> list[str]:
    """Each number of the paper: whether ours compares with it, and why not."""
    schema, size = plan.cells[0].truth.schema, plan.size
    median = int(size.history.lengths_of(np.zeros(1))[0])
    of_user, of_item = (
        f"{sum(f.name in CHEAP_FEATURES for f in schema.of(scope))} of {len(schema.of(scope))} {scope.value} features"
        for scope in (Scope.USER, Scope.ITEM)
    )
    times = plan.steps * TRAIN.batch_requests / (size.users * size.requests_per_user)
    rows = [
        (
            "Table 2, HR@100 and GAUC over Base",
            "sign and order",
            f"""Other data: the world has a signal for each part of AIF, and no other. Base reads {of_user} and {of_item}; the paper's AIF has up to 7 and 3
            times Base's. Relevant are ten of {ANY_CANDIDATES:,} candidates by true eCPM; in the paper ten of about 10,000 by its ranking model.""",
        ),
        (
            "Table 2, CTR and RPM over Base",
            "sign and order",
            """A simulated cascade, whose ranking stage knows the truth. The paper has an A/B test of 14 days with real users and its own ranking model.""",
        ),
        ("Share of the gap that AIF closes", "as a share", "Both are shares of one measure in one setting, but the settings differ."),
        (
            "Lengths of histories",
            "no",
            f"""The paper's are about 100,000 behaviours. Here the median is {median:,} and the longest {size.history.longest:,}, because a full run must end
            in hours on two cores. "Long histories" in docs/RESULTS.md has longer ones.""",
        ),
        (
            "Labels and training",
            "no" if plan.quick else "labels alone",
            f"""{"The true probability" if plan.quick else "Drawn clicks and COPR, as in the paper"}. The paper's model learns 7 days of logs once.
            Here {size.users * size.requests_per_user:,} requests are read {times:.1f} times.""",
        ),
        (
            "Spread over seeds",
            "no",
            "The paper gives none. Read a difference as real only if the interval and the spread over seeds both allow it.",
        ),
        (
            "Table 3, GAUC lost",
            "sign",
            "Other histories, widths and embeddings: ours are noisy views of one latent space.",
        ),
        ("Table 3, cost saved", "yes", "Counted by the same formula, so equal by construction. The time saved is ours alone."),
        ("Full-Cross, hundreds of times the cost", "no", 'It counts interactions, we count multiply-adds: see "Bridges".'),
        (
            "Tables 1 and 4",
            "see BENCHMARKS.md",
            "One engine on one machine against a production system: every figure is relative to a base of its own.",
        ),
    ]
    cells = [(number, verdict, " ".join(why.split())) for number, verdict, why in rows]
    return [heading("Compared with the paper"), table(("number of the paper", "ours compares", "why not more"), cells)]


def _full_plan(found: Lookup, plan: TablesPlan) -> str:
    """What the quick plan leaves out, and how long the full one would take at the speed of this run."""
    full = plan_tables(quick=False)
    measured = (found.number("cells_cpu_s") or 0.0) / max(1, found.number("cells") or 1) / plan.steps
    hours = measured * full.steps * len(full.cells) / 3_600
    return paragraph(f"""This is the quick plan. The full one (`aif eval tables`: {len(full.cells)} trainings of {full.steps:,} steps, {full.seeds} seeds) adds
    bridges from 1 to 32 and Full-Cross, bits from 32 to 256, two tasks and other labels; by the times of this run it takes {hours:.1f} hours of one core,
    and resumes where it was stopped.""")


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _table_2(found: Lookup) -> list[str]:
    header = ("Model", "GAUC", "seeds: GAUC", "HR@100", "seeds: HR", "HR, pt", "GAUC, pt", "lost against AIF, pt", "CTR, %", "RPM, %")
    paper_header = ("paper: HR", "GAUC", "CTR", "RPM")
    ab_ctr, ab_rpm = (found.interval(f"world.ab.aif.{name}_lift_pct", 2) for name in ("ctr", "rpm"))
    text = f"""Gap between Base and Base(full features): {found.interval("gauc_gap_pt", 2)} points of GAUC (paper 7.83); AIF closes
    {found.interval("aif_share_of_gap", 1, 100)} % of it (paper 93.1 %). CTR and RPM are of a cascade: the model selects its hundred best of
    2,000, then a ranking stage that knows the truth selects ten. Lifts compare the same users. An A/B test that splits users by a hash of their id,
    50/50, sees CTR {ab_ctr} %, RPM {ab_rpm} %."""
    rows = [_row_2(variant, found) for variant in TABLE_2]
    blocks = [heading("Table 2: what each part is worth"), table((*header, *paper_header), rows)]
    return [*blocks, paragraph(text), picture("Gains over Base", _GAINS)]


def _row_2(variant: Variant, found: Lookup) -> list[str]:
    name, prefix = variant.name, f"world.{variant.name}"
    lifts = [found.interval(f"{prefix}.{m}_lift_pct", 2) for m in ("ctr", "rpm")]
    gains = [_points(_gain_pt(found, name, m)) for m in ("hr_at_100", "gauc")]
    theirs = map(_points, _PAPER_2[name])
    quality = _quality(found, name)[:-1]
    return [variant.title, *quality, *gains, found.interval(f"{prefix}.gauc_drop_pt", 2), *lifts, *theirs]


def _table_3(found: Lookup) -> list[str]:
    rows = []
    for variant in TABLE_3:
        if found.number(f"world.{variant.name}.gauc") is None:
            continue
        lost = found.interval(f"world.{variant.name}.gauc_loss_pt", 2)
        costs = [found.text(f"{variant.name}_{kind}_saved_pct", 1) for kind in ("counted", "time")]
        paper = _PAPER_3.get(variant.name)
        theirs = [f"{value:.2f}" for value in paper] if paper else ["-", "-"]
        rows.append([variant.title, found.interval(f"world.{variant.name}.gauc", 4), lost, *costs, *theirs])
    header = ("Model", "GAUC", "lost, pt", "counted cost saved, %", "time saved, %", "paper: lost", "saved")
    text = f"""All models are without bridges, so only the similarity differs. Moments are the counts of behaviours in {CLUSTERS} clusters
    of the catalogue and their mean vector in {MOMENT_WIDTH} principal directions; expected tier counts follow from them. Against the
    histogram of cosines, with the same DIN, they lose {found.interval("moments_gauc_loss_pt", 2)} points. Time is
    that of the two modules for 500 candidates and 4,000 behaviours of one user, with vectors of 256 numbers and signatures of 256 bits. It uses one
    thread and the fastest form of `lab/evaluation/costs.py`. The factored forms and the moments do not grow with the history."""
    return [heading("Table 3: similarity, exact and hashed"), table(header, rows), paragraph(text)]


def _bridges(found: Lookup) -> list[str]:
    rows = [_bridge_row(variant, found) for variant in BRIDGES if found.number(f"world.{variant.name}.gauc") is not None]
    if not rows:
        return []
    ratio = (found.number("full_cross_madds") or 0) / (found.number("bridges_8_madds") or 1)
    text = f"""Costs are of one request with 10,000 candidates: multiply-adds for each candidate, and milliseconds on one thread. With bridges the
    user's vectors are computed once, so a candidate costs n weights. With Full-Cross it costs attention to every row of the user and the layers of f:
    {ratio:.0f} times as many multiply-adds as 8 bridges. The paper says hundreds of times. It counts interactions: 10,000 candidates against 8 bridges are
    1,250 times as many. Multiply-adds differ less, because the weighted sum of line 4 remains for each candidate,
    and because attention and f are small here: {USER_ROWS} rows of {dict(SPEC)["width"]} numbers, one hidden layer."""
    header = ("Model", "seeds", "GAUC", "seeds: GAUC", "HR@100", "multiply-adds", "ms")
    return [
        heading("Bridges"),
        table(header, rows),
        paragraph(text),
        *([picture("GAUC and cost by bridges", _BRIDGES)] if _bridge_spans(found) else []),
    ]


def _bridge_row(variant: Variant, found: Lookup) -> list[str]:
    prefix = f"world.{variant.name}"
    quality = [found.text(f"{prefix}.seeds", 0), found.interval(f"{prefix}.gauc", 4), found.text(f"{prefix}.gauc_seed_sd", 4)]
    costs = [found.text(f"{variant.name}_madds", 0), found.text(f"{variant.name}_ms", 3)]
    return [variant.title, *quality, found.text(f"{prefix}.hr_at_100", 4), *costs]


def _bridge_spans(found: Lookup) -> dict[int, Span]:
    spans = {n: found.span(f"world.bridges_{n}.gauc") for n in BRIDGE_COUNTS}
    return {n: span for n, span in spans.items() if span is not None}


def _bits(found: Lookup) -> list[str]:
    rows = [[str(b), found.text(f"hash_sigma_ratio_{b}", 3), found.interval(f"hash_loss_pt_{b}", 2)] for b in BITS]
    text = """The table has the spread of similarity over its law sqrt(p (1 - p) / bits), where 1 means that the law holds. It also has the points of GAUC
    that LSH-DIN and LSH-SimTier lose against the same modules over exact cosines. All models share one W_hash, in which fewer bits are the first of more.
    The intervals do not cover another draw of it."""
    blocks = [heading("Bits of a signature"), paragraph(text), table(("bits", "measured / law", "GAUC lost, pt"), rows)]
    if found.number("hash_law_pt") is None:
        return blocks
    names = [(allowed, f"hash_bits_for_{allowed}") for allowed in ALLOWED_PT]
    advice = [[f"{allowed:g}", found.text(name, 0), found.text(f"{name}_by_law", 0)] for allowed, name in names]
    told = f"""Choose the fewest bits whose loss, and that of all greater numbers measured, has an upper bound below the allowed loss (a dash: none
    has). The last column uses the fitted law, loss = {found.text("hash_law_pt", 0)} / bits."""
    return [
        *blocks,
        paragraph(told),
        table(("allowed loss, pt", "bits, measured", "bits, by the law"), advice),
        picture("Loss by bits", _BITS),
    ]


def _teacher(found: Lookup) -> list[str]:
    if found.number("teacher_margin_pt") is None:
        return []
    text = f"""The ranking teacher (every feature crossed with every candidate, attention to all of the history, exact similarity, vectors twice as wide)
    has a GAUC of {found.interval("world.teacher.gauc", 4)}: {found.interval("teacher_margin_pt", 2)} points above AIF, and
    {found.interval("teacher_click_margin_pt", 2)} above AIF with its own labels, drawn clicks alone."""
    return [heading("Ranking teacher"), paragraph(text)]


def _labels(found: Lookup) -> list[str]:
    names = [AIF.name, *(variant.name for variant, *_ in OTHER_LABELS)]
    if not any(found.number(f"world.{name}.gauc") is not None for name in names[1:]):
        return []
    titles = ["drawn clicks, and COPR in the teacher's order (all other tables)", *(variant.title for variant, *_ in OTHER_LABELS)]
    rows = [[title, *_quality(found, name)] for name, title in zip(names, titles, strict=True)]
    gains = f"""COPR gains {found.interval("copr_hr_gain_pt", 2)} points of HR@100 and {found.interval("copr_gauc_gain_pt", 2)} of GAUC over drawn clicks
    alone."""
    return [heading("Labels and COPR"), table(("AIF trained with", *_QUALITY), rows), paragraph(gains)]


def _upper_bound(found: Lookup) -> list[str]:
    rows = [[v.title, *_quality(found, v.name)] for v, *_ in UPPER_BOUND if found.number(f"world.{v.name}.gauc") is not None]
    if not rows:
        return []
    text = "The same models with the true click probability as label, which no log has: noise of drawn clicks and errors of a teacher are left out."
    return [heading("Upper bound: the true probability as label"), paragraph(text), table(("Model", *_QUALITY), rows)]


_QUALITY = ("GAUC", "seeds: GAUC", "HR@100", "seeds: HR", "predicted / expected clicks")


def _quality(found: Lookup, model: str) -> list[str]:
    """The cells of `_QUALITY`."""
    prefix = f"world.{model}"
    measures = (
        text for m in ("gauc", "hr_at_100") for text in (found.interval(f"{prefix}.{m}", 4), found.text(f"{prefix}.{m}_seed_sd", 4))
    )
    return [*measures, found.text(f"{prefix}.calibration", 3)]


def _tasks(found: Lookup) -> list[str]:
    prefix = f"world.{TWO_TASKS.name}"
    if found.number(f"{prefix}.gauc_buy") is None:
        return []
    text = f"""One network for clicks and purchases: GAUC of clicks {found.interval(f"{prefix}.gauc", 4)} (AIF alone
    {found.interval("world.aif.gauc", 4)}), of purchases {found.interval(f"{prefix}.gauc_buy", 4)} by its second task, and
    {found.interval(f"{prefix}.gauc_buy_by_click", 4)} by its click."""
    return [heading("Two tasks"), paragraph(text)]


def _training(found: Lookup) -> list[str]:
    text = f"""Request-grouped batches learn {found.text("grouped_speedup", 1)} times as many impressions a second as one row per impression (same model,
    same step, one thread)."""
    return [heading("Training"), paragraph(text)]


def _draw(folder: Path, found: Lookup) -> None:
    """Draws the pictures for which the run has figures."""
    gains = [(v.title, _gain_pt(found, v.name, "gauc"), _PAPER_2[v.name][1]) for v in TABLE_2 if v is not BASE]
    draw_gains(folder / _GAINS, [(title, ours, paper) for title, ours, paper in gains if ours is not None])
    if spans := _bridge_spans(found):
        costs = {n: ms for n in spans if (ms := found.number(f"bridges_{n}_ms")) is not None}
        draw_bridges(folder / _BRIDGES, spans, costs, found.span("world.full_cross.gauc"), found.number("full_cross_ms"))
    law_pt = found.number("hash_law_pt")
    losses = {bits: span for bits in BITS if (span := found.span(f"hash_loss_pt_{bits}")) is not None}
    if law_pt is not None:
        draw_bits(folder / _BITS, losses, law_pt)
