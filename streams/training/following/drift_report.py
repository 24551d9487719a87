"""The picture of `aif eval online`: HR@K over time of a model that follows and of the same model frozen.

Here: drawing. Not here: the numbers (drift.py).
"""

from pathlib import Path

from streams.training.following.drift import DriftCurves, K


def write_picture(path: Path, curves: DriftCurves) -> None:
    """Writes the PNG, and the folder if it does not exist."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, of_TU, colour in (("followed", curves.followed_TU, "tab:blue"), ("frozen", curves.frozen_TU, "tab:red")):
        axes.plot(of_TU.mean(1), marker="o", color=colour, label=name)
    axes.axhline(float(curves.frozen_TU[0].mean()), color="grey", linestyle=":", label="before anything moved")
    axes.set(xlabel="periods of the moving world", ylabel=f"HR@{K}", ylim=(0, None), title="A model that follows, and the same one frozen")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
