"""Draw docs/diagrams/peers.svg from the kept runs of `aif bench rank`: time for 10,000 candidates, AIF and peers, median and range.

Run it after `aif bench keep`:  python docs/diagrams/peers.py
"""

import json
import statistics
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
RUNS = HERE.parent / "benchmarks" / "rank.json"
CHART = HERE / "peers.svg"
# (label, figure of `aif bench rank`): what each one returns is part of its label, because the peers do less.
BARS = [
    ("AIF over HTTP\nranked: network, history, user", "http_binary_p50_ms_10000"),
    ("AIF over gRPC\nthe same", "grpc_p50_ms_10000"),
    ("Triton over HTTP\nranked, without SimTier and user", "triton_p50_ms_10000"),
    ("Redis, one MGET\nrows only, not ranked", "redis_p50_ms_10000"),
    ("Qdrant in process\nranked by one dot product", "qdrant_p50_ms_10000"),
]


def read_times() -> dict[str, list[float]]:
    """Return for each label its times in ms, one for each kept run that measured it."""
    runs = [run["values"] for run in json.loads(RUNS.read_text())["runs"]]
    return {label: [run[figure] for run in runs if figure in run] for label, figure in BARS}


def describe(times: list[float]) -> str:
    """Return "median [min, max] ms" of some times in ms."""
    return f"{statistics.median(times):.1f} [{min(times):.1f}, {max(times):.1f}] ms"


def draw(path: Path = CHART) -> None:
    """Write the chart to `path`, with the same bytes for the same runs."""
    times = read_times()
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "aif", "font.family": "sans-serif", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8.4, 3.4))
    for place, (label, values) in enumerate(times.items()):
        middle = statistics.median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        axes.barh(
            place, middle, height=0.62, color="#2f6f9f" if label.startswith("AIF") else "#b8c4cc", xerr=spread, ecolor="#444444", capsize=3
        )
        axes.text(max(values) + 0.3, place, describe(values), va="center")
    axes.set_yticks(range(len(times)), list(times))
    axes.invert_yaxis()
    axes.set_xlim(0, 20)
    axes.set_xlabel("ms for 10,000 candidates, top 100, on two cores")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
