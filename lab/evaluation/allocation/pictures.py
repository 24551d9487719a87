"""The picture of `aif eval allocation`: value against cost, value lost against requests dropped, and what the TTL of cached answers decides."""

from collections.abc import Mapping
from pathlib import Path

_PANELS = {
    "value": ("cost, share of full work", "true value, share of full work"),
    "drop": ("requests dropped, share", "true value lost, share"),
    "ttl": ("TTL of cached answers, s", "share, or ratio"),
}


def draw_curves(path: Path, curves: Mapping[str, tuple[list[float], list[float]]]) -> None:
    """Curves by name, `PANEL: LEGEND`, as SVG. Equal curves give equal bytes."""
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
