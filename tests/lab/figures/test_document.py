"""The runs that are kept, and docs/BENCHMARKS.md that is made of them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.figures import Figures
from lab.figures.declared import Bench, Figure, read_benches, read_summary
from lab.figures.document import render_benchmarks
from lab.figures.kept import KEPT_RUNS, differing, group_runs, keep_run, read_runs
from schemas.errors import Misconfigured

BENCHES = tuple(read_benches().values())
DOCS = Path(__file__).parents[3] / "docs"
SHOP = Bench(
    "bench shop",
    "A shop.",
    (Figure("ms_{items}", "ms", "time"), Figure("floor_ms_10", "ms", "floor"), Figure("share", "ratio", "share")),
    goals=("ms_10 <= 2 x floor_ms_10", "share >= 0.5"),
)


def printed(ms: float, share: float | None = 0.5, **config: object) -> str:
    figures = Figures(SHOP, {"items": [10, 20], **config})
    figures.add("ms_10", ms)
    figures.add("ms_20", 1_234.5)
    figures.add("floor_ms_10", 1.0)
    figures.add("share", share)
    return json.dumps(figures.as_dict())


def test_the_document_is_what_the_command_writes() -> None:
    assert (DOCS / "BENCHMARKS.md").read_text() == render_benchmarks(BENCHES, DOCS / "benchmarks"), "run `aif bench report`"


def test_every_kept_file_is_of_a_declared_bench_and_names_nothing_that_is_not_declared() -> None:
    benches = {f"{bench.name}.json": bench for bench in BENCHES}
    for path in (DOCS / "benchmarks").iterdir():
        for run in read_runs(DOCS / "benchmarks", benches[path.name]):
            assert [name for name in run.values if not benches[path.name].declares(name)] == []


def test_every_line_of_the_summary_has_declared_figures_and_kept_runs() -> None:
    benches = read_benches()
    for line in read_summary():
        bench = benches[line.command]
        assert [name for name in (line.figure, *line.beside.values()) if not bench.declares(name)] == []
        assert line.asked in differing(group_runs(read_runs(DOCS / "benchmarks", bench)))


def test_runs_that_were_asked_the_same_follow_each_other_and_the_oldest_goes(tmp_path: Path) -> None:
    for ms in range(KEPT_RUNS + 2):
        keep_run(tmp_path, [SHOP], printed(ms), "a.json")
    kept = [run.values["ms_10"] for run in read_runs(tmp_path, SHOP)]
    assert kept == list(range(KEPT_RUNS + 1, 1, -1))


def test_a_run_that_was_asked_something_else_replaces_none_and_says_so(tmp_path: Path) -> None:
    keep_run(tmp_path, [SHOP], printed(1.0, calls=600), "whole.json")
    said = keep_run(tmp_path, [SHOP], printed(3.0, calls=36), "quick.json")
    assert "calls 36" in said and "1 other" in said
    text = render_benchmarks([SHOP], tmp_path)
    assert "| figure | unit | meaning | goal | calls 36 | calls 600 |" in text
    assert "| `ms_10` | ms |  | <= 2 x `floor_ms_10` | 3 **missed** | 1 **met** |" in text
    assert "| `aif bench shop` | `ms_10` | <= 2 x `floor_ms_10` | calls 36: 3 **missed** |" in text


def test_a_table_has_the_last_runs_and_in_how_many_a_goal_was_met(tmp_path: Path) -> None:
    for ms, share in ((1.0, None), (2.5, 0.7), (2.0, None)):
        keep_run(tmp_path, [SHOP], printed(ms, share), "a.json")
    text = render_benchmarks([SHOP], tmp_path)
    assert "| `ms_{items}` | ms | time |  | 10: 2 [1, 2.5]; 20: 1,234 |" in text
    assert "| `ms_10` | ms |  | <= 2 x `floor_ms_10` | 2 [1, 2.5] **met in 2 of 3** |" in text
    assert "| `share` | ratio | share | >= 0.5 | 0.7 **met** |" in text


def test_a_bench_without_a_run_and_a_goal_that_nothing_measured_are_named(tmp_path: Path) -> None:
    text = render_benchmarks([SHOP], tmp_path)
    assert "No run is kept yet." in text and "| `aif bench shop` | `share` | >= 0.5 | not kept yet |" in text


def test_the_same_run_is_kept_once(tmp_path: Path) -> None:
    said = [keep_run(tmp_path, [SHOP], printed(1.0), "a.json") for _ in range(2)]
    assert "already" in said[1] and len(read_runs(tmp_path, SHOP)) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nothing", "not_figures"),
        ("[]", "not_figures"),
        ('{"command": "bench shop"}', "not_figures"),
        (printed(1.0).replace("bench shop", "bench stall"), "unknown_bench"),
        (printed(1.0).replace("share", "shares"), "undeclared_figures"),
    ],
)
def test_what_is_no_run_of_a_declared_bench_is_refused_and_nothing_is_written(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        keep_run(tmp_path, [SHOP], text, "a.json")
    assert refused.value.code == code and not list(tmp_path.iterdir())


def test_keep_takes_files_and_report_writes_the_document(tmp_path: Path) -> None:
    kept = json.loads((DOCS / "benchmarks" / "demo.json").read_text())
    run = kept["runs"][0]
    figures = {name: {"value": value, "unit": ""} for name, value in run.pop("values").items()}
    (tmp_path / "demo.json").write_text(json.dumps({"command": "demo", "figures": figures, **run}))
    asked = CliRunner().invoke(build_app(), ["bench", "keep", "-", "--docs", str(tmp_path)], input=(tmp_path / "demo.json").read_text())
    assert asked.exit_code == 0, asked.output
    for arguments, code in (("keep demo.json", 2), (f"keep {tmp_path / 'demo.json'}", 0), ("report", 0)):
        assert CliRunner().invoke(build_app(), ["bench", *arguments.split(), "--docs", str(tmp_path)]).exit_code == code
    assert CliRunner().invoke(build_app(), ["bench", "report", "--docs", str(tmp_path / "nowhere")]).exit_code == 2
    assert "## `aif demo`" in (tmp_path / "BENCHMARKS.md").read_text()
    assert len(json.loads((tmp_path / "benchmarks" / "demo.json").read_text())["runs"]) == 1
