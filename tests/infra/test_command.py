"""What a command prints for people: a figure and its interval are one line, a time is a date; programs get figures and milliseconds."""

import json
from typing import Any

import pytest

from infra.command import print_figures, print_parts, print_table, say


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


def test_a_time_is_a_date_for_people_and_milliseconds_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    data, rows = {"ended_at_ms": 0, "kind": "x"}, {"letters": [{"offset": 4, "rejected_at_ms": 1_795_385_913_813}]}
    print_parts(data, rows, as_json=False)
    assert capsys.readouterr().out == "ended_at\nkind      x\n\noffset  rejected_at\n4       2026-11-22T22:18:33Z\n"
    print_parts(data, rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == data | rows


def test_what_an_id_holds_neither_ends_a_line_nor_speaks_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a\nb", "kind": "ü"}, {"id": "\x1b[2J\u202e", "kind": 7}]
    print_parts({"label": "x\ty"}, {"items": rows}, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["label  x\\ty", "", "id             kind", "a\\nb           ü", "\\x1b[2J\\u202e  7"]
    print_parts({}, {"items": rows}, as_json=True)
    assert json.loads(capsys.readouterr().out)["items"] == rows


def test_a_table_is_folded_to_the_terminal_and_never_in_its_first_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    name = "a_name_that_is_long_enough_to_be_folded"
    print_table("rows", [{"name": name, "digest": "0" * 64, "reason": "why " * 20}], False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[1].startswith(name)
    assert sum(line.count("why") for line in lines) == 20


def test_a_table_that_goes_elsewhere_has_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("rows", [{"name": "a", "digest": "0" * 300}], False)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_progress_that_quotes_a_file_keeps_its_lines_and_escapes_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    say("no column 'sku'; there is: \x1b[2J\0a\nsecond line, ü")
    assert capsys.readouterr().err == "no column 'sku'; there is: \\x1b[2J\\x00a\nsecond line, ü\n"
