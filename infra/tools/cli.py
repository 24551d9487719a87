"""`aif doctor`. Typer and standard library at module level."""

import typer

from infra.command import AsJson, print_table, read_settings


def register(app: typer.Typer) -> None:
    """Register `aif doctor`."""
    app.command("doctor", short_help="Look whether everything that is needed is there.")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Look at settings, broker, topics, store, clock, disk, memory, device and libraries before anything is started. Exit code 1 when something fails."""
    from infra.tools.doctor import FAIL, examine

    findings = examine(read_settings())
    rows = [{"check": f.check, "state": f.state, "found": f.found, "next_step": f.next_step} for f in findings]
    print_table("checks", rows, as_json)
    if any(finding.state == FAIL for finding in findings):
        raise typer.Exit(1)
