"""`aif` in this process, as a program sees it."""

import json
from typing import Any

from typer.testing import CliRunner

from infra.cli import build_app
from schemas.errors import AifError


def run_aif(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """What a command prints with --json. Raises the AifError that it ends with."""
    result = CliRunner().invoke(build_app(), [*arguments, "--json"])
    if isinstance(result.exception, AifError):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
