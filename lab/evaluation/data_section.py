"""A section of the report about data that `aif eval data` has measured, made from its saved output.

shop.json         the output of `aif eval data --json`: every score by every measure, and the model's gain over the plain scores
shop.trials.toml  optional, written by hand, in the same folder: the trial log (`header` and `rows`) and the `findings` from it.
              It is a separate file because the next run replaces the JSON file
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.evaluation.rungs import MISSED
from lab.figures.markdown import Lookup, heading, paragraph, table
from schemas.errors import Misconfigured

_GAUCS = {"gauc": "GAUC, all pairs", "gauc_new": "GAUC, items new to the user"}
COMMANDS = ("eval data", "eval history", "eval history --rungs")  # whose saved output is a section of the report
_AT_K = re.compile(r"recall_(new_)?at_(\d+)")


def read_data_figures(path: Path) -> Mapping[str, Any]:
    """Return a saved output of one of `COMMANDS`; under "trials" the content of the `.trials.toml` file in the same folder, if any.

    Raises Misconfigured (`not_data_figures`, `bad_trial_log`).
    """
    try:
        raw = json.loads(path.read_text())
        assert raw["command"] in COMMANDS and raw["figures"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        expected = " or ".join(f"`aif {command} --json`" for command in COMMANDS)
        raise Misconfigured("not_data_figures", f"{path} is no saved output of {expected}: {error!r}") from error
    trials = path.with_suffix(".trials.toml")
    return {**raw, "trials": {**_read_trials(trials), "file": trials.name}} if trials.exists() else raw


def _read_trials(path: Path) -> Mapping[str, Any]:
    """Return the content of a `.trials.toml` file. Raises Misconfigured (`bad_trial_log`)."""
    try:
        trials = tomllib.loads(path.read_text())
        assert {"findings", "header", "rows"} == set(trials)
        assert all(len(row) == len(trials["header"]) for row in trials["rows"])
    except (OSError, ValueError, TypeError, AssertionError) as error:
        raise Misconfigured(
            "bad_trial_log",
            f"{path} is no trial log: {error!r}; it needs findings, header, and rows as long as the header, and nothing else",
        ) from error
    return trials


def data_section(raw: Mapping[str, Any]) -> list[str]:
    """Return the section's blocks: a table of every score by every measure, the rungs of the ladder, and the findings of trials.

    `raw` comes from `read_data_figures`.
    """
    found = Lookup(raw)
    values, interval = found.values, found.interval
    data = next(iter(values)).rsplit(".", 2)[0]  # the name of the data may have dots of its own
    named = [name.removeprefix(f"{data}.").partition(".") for name in values]
    titles = {measure: title for _, _, measure in named if (title := _title(measure)) is not None}
    scores = list(dict.fromkeys(score for score, _, measure in named if measure in titles and score != "rung"))
    rows = [[score, *(interval(f"{data}.{score}.{measure}") for measure in titles)] for score in scores]
    gains = {score: [interval(f"{data}.{score}.{measure}_gain", sign="+") for measure in titles] for score in scores}
    rows += [[f"{score}, paired gain over the best plain score", *told] for score, told in gains.items() if set(told) != {"-"}]
    told = ", ".join(f"{name} {value}" for name, value in raw["config"].items() if value is not None)
    users = values.get(f"{data}.users")
    text = "Written by `aif eval data`" + (f" for {users:,.0f} held-out users" if users else "") + f". Asked: `{told}`."
    blocks = [heading(data), paragraph(text), table(("score", *titles.values()), rows)]
    if rungs := rung_blocks(found, data, titles):
        blocks += [heading("Rungs", 3), *rungs]
    if trials := raw.get("trials"):
        log = f"Findings from {len(trials['rows'])} trials; `{trials['file']}` has the log."
        blocks += [heading("Findings", 3), paragraph(log), *(paragraph(finding) for finding in trials["findings"])]
    return blocks


def rung_blocks(found: Lookup, data: str, titles: Mapping[str, str]) -> list[str]:
    """A table of the quality by rung of the serving ladder, with the loss against `fresh`; no block where it was not measured. `titles`: of measures."""
    prefix = f"{data}.rung."
    rungs = list(dict.fromkeys(name.removeprefix(prefix).partition(".")[0] for name in found.values if name.startswith(prefix)))
    if not rungs:
        return []
    text = f"""A server that has less of the user answers from a lower rung of the ladder (docs/PROTOCOL.md), with the same model and candidates. The rung
    `fresh` stands for each one with the whole history: `carried`, `cached`, `waited` or `inline`. The rung `last_cached` misses the newest {MISSED}
    behaviours, `profile_only` all of them, and `item_prior` knows nothing of the user. Losses are paired over users."""
    rows = [[rung, *(found.interval(f"{prefix}{rung}.{measure}{end}") for measure in titles for end in ("", "_lost"))] for rung in rungs]
    return [paragraph(text), table(("rung", *(head for title in titles.values() for head in (title, "lost"))), rows)]


def _title(measure: str) -> str | None:
    """How a measure is headed; None for a bound of one, a gain, or anything else."""
    at_k = _AT_K.fullmatch(measure)
    return f"R@{at_k[2]}{', items new to the user' if at_k[1] else ''}" if at_k else _GAUCS.get(measure)
