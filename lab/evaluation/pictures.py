"""The pictures of the report: gains and the paper's, quality and cost by number of bridges, loss by number of bits; and those of
`aif eval online` and `aif eval allocation`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.figures.markdown import Span

_PANELS = {
    "value": ("cost, share of full work", "true value, share of full work"),
    "drop": ("requests dropped, share", "true value lost, share"),
    "ttl": ("TTL of cached answers, s", "share, or ratio"),
}


def _open_axes(width: float, height: float) -> tuple[Any, Any]:
    """A figure that needs no display, and its axes; the size is in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def draw_gains(path: Path, rows: Sequence[tuple[str, float, float | None]]) -> None:
    """Bars of the points of GAUC over Base; a row is (title of the model, ours, the paper's or None)."""
    figure, axes = _open_axes(8, 0.6 * len(rows) + 1.2)
    places = range(len(rows))
    axes.barh([p - 0.2 for p in places], [ours for _, ours, _ in rows], 0.4, label="this run, synthetic world")
    axes.barh([p + 0.2 for p in places], [paper or 0.0 for *_, paper in rows], 0.4, label="paper, its own data")
    axes.set_yticks(list(places), [title for title, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("GAUC over Base, points")
    axes.legend()
    figure.savefig(path, dpi=120)


def _error_bars(spans: Sequence[Span]) -> list[list[float]]:
    return [[value - low for value, low, _ in spans], [high - value for value, _, high in spans]]


def draw_bridges(
    path: Path, quality: Mapping[int, Span], cost_ms: Mapping[int, float], full_cross: Span | None, full_ms: float | None
) -> None:
    """GAUC (left) and milliseconds for 10,000 candidates (right) by number of bridges; Full-Cross as lines across."""
    figure, axes = _open_axes(7, 4.2)
    counts = sorted(quality)
    spans = [quality[n] for n in counts]
    axes.errorbar(counts, [value for value, *_ in spans], yerr=_error_bars(spans), marker="o", capsize=3, color="C0", label="BEA, GAUC")
    if full_cross is not None:
        axes.axhline(full_cross[0], linestyle="--", color="C0", label="Full-Cross, GAUC")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bridges n")
    axes.set_ylabel("GAUC")
    costs = axes.twinx()
    if cost_ms:
        costs.plot(counts, [cost_ms[n] for n in counts], marker="s", color="C1", label="BEA, ms")
        costs.set_yscale("log")
    if full_ms is not None:
        costs.axhline(full_ms, linestyle="--", color="C1", label="Full-Cross, ms")
    costs.set_ylabel("ms for 10,000 candidates, one thread")
    lines = [handle for of in (axes, costs) for handle in of.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], loc="center right", fontsize="small")
    figure.savefig(path, dpi=120)


def draw_bits(path: Path, losses: Mapping[int, Span], law_pt: float) -> None:
    """Points of GAUC lost by bits of a signature, and the law law_pt / bits fitted to them."""
    figure, axes = _open_axes(6, 4)
    bits = sorted(losses)
    spans = [losses[b] for b in bits]
    axes.errorbar(bits, [value for value, *_ in spans], yerr=_error_bars(spans), marker="o", capsize=3, linestyle="", label="measured")
    axes.plot(bits, [law_pt / b for b in bits], label=f"{law_pt:.0f} / bits")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(bits, [str(b) for b in bits])
    axes.set_xlabel("bits of a signature")
    axes.set_ylabel("GAUC lost against exact cosine, points")
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_drift(path: Path, frozen_T: np.ndarray, followed_T: np.ndarray, k: int) -> None:
    """HR@k over the periods of a moving world, of a model that follows and of the same model frozen."""
    figure, axes = _open_axes(7, 4)
    for name, of_T, colour in (("followed", followed_T, "tab:blue"), ("frozen", frozen_T, "tab:red")):
        axes.plot(of_T, marker="o", color=colour, label=name)
    axes.axhline(float(frozen_T[0]), color="grey", linestyle=":", label="before anything moved")
    axes.set(xlabel="periods of the moving world", ylabel=f"HR@{k}", ylim=(0, None), title="A model that follows, and the same one frozen")
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_curves(path: Path, curves: Mapping[str, tuple[list[float], list[float]]]) -> None:
    """`aif eval allocation`: curves by name, `PANEL: LEGEND`, as SVG. Equal curves give equal bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, (panel, (x_label, y_label)) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        for name, (x, y) in curves.items():
            if name.startswith(f"{panel}: "):
                axes.plot(x, y, label=name.removeprefix(f"{panel}: "), marker="o" if len(x) < 20 else None)
        axes.set(xlabel=x_label, ylabel=y_label)
        if panel == "value":
            axes.set(
                xscale="log",
                xlim=(0.1, 1.0),
                ylim=(0.5, 1.02),
                xticks=[0.1, 0.15, 0.3, 0.5, 1.0],
                xticklabels=["0.1", "0.15", "0.3", "0.5", "1"],
            )
        if panel == "ttl":
            axes.set(xscale="log", ylim=(0, None))
        axes.legend(fontsize="small")
    with mpl.rc_context({"svg.hashsalt": "aif", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
