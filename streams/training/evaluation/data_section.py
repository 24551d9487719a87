"""What `aif eval data --json` said of other data, as a section of the report.

    shop.json         a saved output: the scores, and what the model gains
    shop.tried.toml   beside it, if somebody wrote one: what was tried before, as `text`, `header`, `rows` and `notes`. No run makes it
                      anew, so it is kept apart from what the next run replaces

Here: the section, from the saved files alone. Not here: any measuring (mapped_data.py).
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import Misconfigured
from streams.training.evaluation.document import Block, Heading, Paragraph, Table

MEASURES = {"gauc": "GAUC, all pairs", "gauc_new": "GAUC, items new to the user", "recall_at_100": "R@100", "hr_at_100": "HR@100"}


def read_data_figures(path: Path) -> Mapping[str, Any]:
    """One saved output of `aif eval data --json`, and under "tried" what lies beside it. Raises Misconfigured (`not_data_figures`,
    `not_what_was_tried`)."""
    try:
        raw = json.loads(path.read_text())
        assert raw["command"] == "eval data" and raw["figures"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise Misconfigured("not_data_figures", f"{path} is no saved output of `aif eval data --json`: {error!r}") from error
    tried = path.with_suffix(".tried.toml")
    return {**raw, "tried": _read_tried(tried)} if tried.exists() else raw


def _read_tried(path: Path) -> Mapping[str, Any]:
    """What was tried. Raises Misconfigured (`not_what_was_tried`)."""
    try:
        tried = tomllib.loads(path.read_text())
        assert {"text", "header", "rows", "notes"} == set(tried)
        assert all(len(row) == len(tried["header"]) for row in tried["rows"])
    except (OSError, ValueError, TypeError, AssertionError) as error:
        raise Misconfigured(
            "not_what_was_tried", f"{path} needs text, header, rows as long as the header, and notes, and nothing else: {error!r}"
        ) from error
    return tried


def data_section(raw: Mapping[str, Any]) -> list[Block]:
    """Every score of the data by every measure, what the model gains over the best plain score, and what was tried."""
    values = {name: entry["value"] for name, entry in raw["figures"].items()}
    data = next(iter(values)).split(".")[0]
    scores = list(dict.fromkeys(name.split(".")[1] for name in values if name.endswith(tuple(f".{m}" for m in MEASURES))))
    measures = [m for m in MEASURES if any(f"{data}.{score}.{m}" in values for score in scores)]
    rows = [[score, *(_told(values, f"{data}.{score}.{m}") for m in measures)] for score in scores]
    gains = {score: [_told(values, f"{data}.{score}.{m}_gain", "+") for m in measures] for score in scores}
    rows += [[f"{score}, paired gain over the best plain score", *told] for score, told in gains.items() if set(told) != {"-"}]
    told = ", ".join(f"{name} {value}" for name, value in raw["config"].items() if value is not None)
    users = values.get(f"{data}.users")
    text = f"Written by `aif eval data` ({told})" + (f", {users:,.0f} held-out users." if users else ".")
    return [Heading(data), Paragraph(text), Table(("score", *(MEASURES[m] for m in measures)), rows), *_tried(raw.get("tried"))]


def _tried(tried: Mapping[str, Any] | None) -> list[Block]:
    return [] if tried is None else [Paragraph(tried["text"]), Table(tried["header"], tried["rows"]), Paragraph(tried["notes"])]


def _told(values: Mapping[str, float], name: str, sign: str = "") -> str:
    if values.get(name) is None:
        return "-"
    value, low, high = (values.get(f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{value:{sign}.4f}" + (f" [{low:{sign}.4f}, {high:{sign}.4f}]" if low is not None and high is not None else "")
