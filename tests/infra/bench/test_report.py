"""The figures: one JSON object, of the agreed form, that any JSON reader accepts."""

import json
import math
from types import SimpleNamespace

import pytest

from infra.bench.report import Figures


def test_a_run_is_one_json_object_of_the_agreed_form(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures("demo", {"items": 100})
    figures.add("hr_at_100", 0.5, "ratio")
    figures.add("flips", 3, "count")
    figures.print_json()
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    data = json.loads(out)
    assert set(data) == {"command", "machine", "versions", "config", "figures"}
    assert data["figures"] == {"hr_at_100": {"value": 0.5, "unit": "ratio"}, "flips": {"value": 3, "unit": "count"}}
    assert data["config"] == {"items": 100}
    assert data["machine"]["cores"] >= 1


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_could_not_be_measured_is_named_with_the_value_null(value: float | None) -> None:
    figures = Figures("demo")
    figures.add("rank_p50_ms", value, "ms")
    assert figures.value("rank_p50_ms") is None
    json.dumps(figures.as_dict(), allow_nan=False)


def test_a_figure_is_given_once() -> None:
    figures = Figures("demo")
    figures.add("flips", 1, "count")
    with pytest.raises(AssertionError, match="twice"):
        figures.add("flips", 2, "count")


def test_a_ratio_without_a_base_is_null_and_an_interval_is_three_figures() -> None:
    figures = Figures("demo")
    for name, value, base in (("half", 1.0, 2.0), ("no_base", 1.0, 0.0), ("no_value", None, 2.0)):
        figures.add_ratio(name, value, base)
    assert [figures.value(name) for name in ("half", "no_base", "no_value")] == [0.5, None, None]
    figures.add_interval("gauc", SimpleNamespace(value=0.7, low=0.6, high=0.8), "")
    assert [figures.value(f"gauc{end}") for end in ("", "_low", "_high")] == [0.7, 0.6, 0.8]
