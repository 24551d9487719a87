"""What a command prints for people: a figure and its interval are one line; for programs they stay three figures."""

import json
from typing import Any

import pytest

from infra.command import print_figures


def figure(value: float | None) -> dict[str, Any]:
    return {"value": value, "unit": "ratio"}


def test_an_interval_stands_beside_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"gauc": figure(0.8), "gauc_low": figure(0.75), "gauc_high": figure(0.85), "lonely_low": figure(0.1), "nothing": figure(None)}
    print_figures({"figures": figures}, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["figure", "value", "unit", "interval"],
        ["gauc", "0.8", "ratio", "0.75", "to", "0.85"],
        ["lonely_low", "0.1", "ratio"],
        ["nothing", "-", "ratio"],
    ]
    print_figures({"figures": figures}, as_json=True)
    assert json.loads(capsys.readouterr().out)["figures"].keys() == figures.keys()


def test_without_intervals_there_is_no_column_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures({"figures": {"steps": {"value": 1_200, "unit": "count"}}}, as_json=False)
    assert capsys.readouterr().out == "figure  value  unit\nsteps   1,200  count\n"
