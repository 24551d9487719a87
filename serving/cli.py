"""The `aif` commands of `serving`. Only typer and the standard library at module level; heavy imports belong inside the commands."""

import typer


def commands(app: typer.Typer) -> None:
    """Register the commands of `serving` onto the `aif` application."""
