"""The figures of a run: one JSON object, of the agreed form, that any JSON reader accepts."""

import json
import math
from types import SimpleNamespace

import pytest

from infra.figures import Figures, Measured

SHOP = Measured("shop", dict.fromkeys(("hr_at_100", "half", "no_base", "no_value", "base.gauc"), "ratio"))


def test_a_run_is_one_json_object_of_the_agreed_form(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures(SHOP, {"items": 100})
    figures.add("hr_at_100", 0.5)
    figures.add("half", 3)
    figures.print_json()
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    data = json.loads(out)
    assert set(data) == {"command", "date", "machine", "versions", "config", "figures"}
    assert data["figures"] == {"hr_at_100": {"value": 0.5, "unit": "ratio"}, "half": {"value": 3, "unit": "ratio"}}
    assert (data["command"], data["config"]) == ("shop", {"items": 100})
    assert data["machine"]["cores"] >= 1
    assert Figures.from_dict(SHOP, data).as_dict() == data


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_could_not_be_measured_is_named_with_the_value_null(value: float | None) -> None:
    figures = Figures(SHOP)
    figures.add("half", value)
    assert figures.value("half") is None
    json.dumps(figures.as_dict(), allow_nan=False)


def test_a_figure_is_declared_and_is_given_once() -> None:
    figures = Figures(SHOP)
    figures.add("half", 1)
    with pytest.raises(AssertionError, match="twice"):
        figures.add("half", 2)
    with pytest.raises(AssertionError, match="shop does not declare a figure third"):
        figures.add("third", 3)


def test_a_ratio_without_a_base_is_null_and_an_interval_is_three_figures() -> None:
    figures = Figures(SHOP)
    for name, value, base in (("half", 1.0, 2.0), ("no_base", 1.0, 0.0), ("no_value", None, 2.0)):
        figures.add_ratio(name, value, base)
    assert [figures.value(name) for name in ("half", "no_base", "no_value")] == [0.5, None, None]
    figures.add_interval("base.gauc", SimpleNamespace(value=0.7, low=0.6, high=0.8))
    assert [figures.value(f"base.gauc{end}") for end in ("", "_low", "_high")] == [0.7, 0.6, 0.8]
