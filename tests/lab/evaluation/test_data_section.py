"""Saved figures of other data as a section of the report."""

import json
from pathlib import Path

import pytest

from lab.evaluation.data_section import data_section, read_data_figures
from lab.figures.markdown import heading, paragraph, table
from schemas.errors import Misconfigured


def saved(folder: Path) -> Path:
    figures: dict[str, float | None] = {}
    for score, level in (("popularity", 0.7), ("aif", 0.8)):
        for end, by in (("", 0.0), ("_low", -0.01), ("_high", 0.01)):
            figures[f"shop.v2.{score}.gauc{end}"] = level + by
        figures[f"shop.v2.{score}.recall_at_20"] = level
    figures |= {f"shop.v2.{name}": value for name, value in (("aif.gauc_gain", 0.1), ("aif.gauc_gain_low", 0.09), ("users", 1002))}
    figures["shop.v2.aif.gauc_gain_high"] = None
    entries = {name: {"value": value, "unit": ""} for name, value in figures.items()}
    path = folder / "shop.json"
    path.write_text(json.dumps({"command": "eval data", "config": {"loss": "softmax", "out": None}, "figures": entries}))
    return path


def test_every_score_has_a_row_and_the_model_its_gain(tmp_path: Path) -> None:
    title, text, measured = data_section(read_data_figures(saved(tmp_path)))
    assert title == heading("shop.v2") and "loss softmax" in text and "1,002" in text and "None" not in text
    rows = [
        ["popularity", "0.7000 [0.6900, 0.7100]", "0.7000"],
        ["aif", "0.8000 [0.7900, 0.8100]", "0.8000"],
        ["aif, paired gain over the best plain score", "+0.1000", "-"],
    ]
    assert measured == table(("score", "GAUC, all pairs", "R@20"), rows)


def test_recall_of_new_items_stands_where_a_plain_score_may_win(tmp_path: Path) -> None:
    path = saved(tmp_path)
    raw = json.loads(path.read_text())
    raw["figures"] |= {"shop.v2.ease.recall_new_at_20": {"value": 0.9}, "shop.v2.aif.recall_new_at_20": {"value": 0.4}}
    path.write_text(json.dumps(raw))
    *_, measured = data_section(read_data_figures(path))
    assert measured.splitlines()[0] == "| score | GAUC, all pairs | R@20 | R@20, items new to the user |"
    assert "| ease | - | - | 0.9000 |" in measured and measured.endswith("| aif, paired gain over the best plain score | +0.1000 | - | - |")


def test_rungs_have_a_table_of_their_own_with_losses(tmp_path: Path) -> None:
    path = saved(tmp_path)
    raw = json.loads(path.read_text())
    measured_by = {"fresh.gauc": 0.8, "item_prior.gauc": 0.7, "item_prior.gauc_lost": 0.1}
    raw["figures"] |= {f"shop.v2.rung.{name}": {"value": value} for name, value in measured_by.items()}
    path.write_text(json.dumps(raw))
    *_, scores, title, _, rungs = data_section(read_data_figures(path))
    assert title == heading("Rungs", 3) and "rung" not in scores
    rows = [["fresh", "0.8000", "-", "-", "-"], ["item_prior", "0.7000", "0.1000", "-", "-"]]
    assert rungs == table(("rung", "GAUC, all pairs", "lost", "R@20", "lost"), rows)


@pytest.mark.parametrize("content", ["", "{}", '{"command": "eval tables", "figures": {"x": 1}}', "[1]"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(Misconfigured, match="not_data_figures"):
        read_data_figures(path)


def test_the_findings_of_a_trial_log_follow_the_figures(tmp_path: Path) -> None:
    path = saved(tmp_path)
    log = tmp_path / "shop.trials.toml"
    log.write_text('findings = ["On June.", "No more."]\nheader = ["change", "GAUC"]\nrows = [["longer", ".82"]]')
    assert data_section(read_data_figures(path))[3:] == [
        heading("Findings", 3),
        paragraph("Findings from 1 trials; `shop.trials.toml` has the log."),
        paragraph("On June."),
        paragraph("No more."),
    ]
    log.write_text('findings = ["On June."]\nheader = ["change", "GAUC"]\nrows = [["longer"]]')
    with pytest.raises(Misconfigured, match="bad_trial_log"):
        read_data_figures(path)
