"""`aif allocate fit`, `show` and `replay`. Only typer and the standard library at module level."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.clock import SystemClock
from infra.command import AsJson, group_of, print_data, print_parts, read_settings, say

if TYPE_CHECKING:
    from infra.index.store import IndexStore
    from schemas.allocation import ActionTable

_Version = Annotated[int, typer.Option("--version", min=0, help="The version of the model (`aif index list`).")]
_Budget = Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of full work's cost at which the gate judges the values.")]


def register(app: typer.Typer) -> None:
    """Registers the commands onto the `aif` application."""
    group = group_of(app, "allocate", "How much work each request gets: fit, look, explain.")
    group.command("fit", short_help="Fit a table of costs and values from outcomes.")(fit)
    group.command("show", short_help="The newest table of a version.")(show)
    group.command("replay", short_help="What a table would do at several budgets.")(replay)


def fit(
    version: _Version,
    budget: _Budget = 0.15,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the table to this file too.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Put it into the index store: servers of the version follow it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Join allocation-outcomes with impressions and fit costs, values, the drop rule and the gate. A table serves its values only if the gate is open.

    It reads all retained records of both topics. Of more than 300,000 outcomes it keeps those of some users, chosen by hash: `users_share` of all.
    """
    from infra.files import write_file_durably
    from infra.index.store import fetch_store_time_ms
    from schemas.allocation import encode_table
    from streams.allocation.join import join_outcomes
    from streams.allocation.program import actions_of, fit_cached, fit_table, publish_table, read_impressions, read_outcomes, say_removed

    settings = read_settings()
    say_removed(settings, say)
    say("reading allocation-outcomes and impressions")
    outcomes, users_share = read_outcomes(settings, version)
    actions = actions_of(outcomes)
    impressions = read_impressions(settings, outcomes)
    joined = join_outcomes(outcomes, impressions, actions)
    say(f"fitting {len(joined.took_R)} requests")
    # Servers follow the newest table, whichever machine it was fitted on.
    now_ms = fetch_store_time_ms(_store()) if publish else SystemClock().now_ms()
    table, why = fit_table(joined, actions, version, now_ms, budget)
    table = fit_cached(table, outcomes, impressions)
    if out is not None:
        write_file_durably(out, encode_table(table))
    path = publish_table(_store(), table) if publish else ""
    print_data(_head(table) | {"drop_rule": why, "users_share": users_share, "published": path}, as_json)


def show(
    version: Annotated[int | None, typer.Option("--version", min=0, help="The version of the model; default: the served one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest table of a version: its gate, and each action with its mean value and its share of full work's value."""
    from infra.index.cli import choose_version
    from infra.index.control_log import ControlLog
    from streams.allocation.program import mean_shares, newest_table

    store = _store()
    table = newest_table(store, choose_version(ControlLog(store).refresh(), None).version if version is None else version)
    rows = [
        {"action": action.name, "mean_value": round(value, 6), "share": round(share, 4)}
        for action, value, share in zip(table.actions, table.mean_row, mean_shares(table), strict=True)
    ]
    print_parts(_head(table), {"actions": rows}, as_json)


def replay(version: _Version, as_json: AsJson = False) -> None:
    """Decide the retained requests of a version again with its newest table, at several budgets. The values are believed ones: they judge nothing."""
    from streams.allocation.join import join_outcomes
    from streams.allocation.program import newest_table, read_outcomes, replay_table

    table = newest_table(_store(), version)
    outcomes, users_share = read_outcomes(read_settings(), version)
    requests = join_outcomes(outcomes, (), table.actions).samples.requests
    print_parts(_head(table) | {"replayed": len(requests), "users_share": users_share}, {"budgets": replay_table(table, requests)}, as_json)


def _store() -> "IndexStore":
    from infra.index.store import find_index_store

    return find_index_store(read_settings().index.store)


def _head(table: "ActionTable") -> dict[str, object]:
    gate = table.gate
    return {
        "table": table.name,
        "gate": "open" if gate.serves else "closed",
        "lift": gate.lift,
        "lift_low": gate.low,
        "lift_high": gate.high,
        "full_ms": table.full_ms,
        "queue_price": table.queue_price,
        "drop_after": table.drop.row,
        "ages": [
            {"age_s": round(one.age_s, 1), "kept": round(one.kept, 3), "slope": one.slope, "intercept": one.intercept} for one in table.ages
        ],
        "mix": [[table.actions[place].name, round(share, 4)] for place, share in table.mix],
        "requests": dict(table.requests),
    }
