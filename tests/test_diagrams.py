"""The chart in README shows the runs that are kept."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_chart_of_peers_is_drawn_from_the_kept_runs() -> None:
    """If this fails, run `python docs/diagrams/peers.py` and change the figures in README."""
    peers = runpy.run_path(str(ROOT / "docs/diagrams/peers.py"))
    chart, readme = (ROOT / "docs/diagrams/peers.svg").read_text(), (ROOT / "README.md").read_text()
    for times in peers["read_times"]().values():
        assert peers["describe"](times) in chart
        assert peers["describe"](times).split()[0] in readme
