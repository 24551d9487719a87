"""The limit of open files is raised at the start, and a low one is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streams.faust_shell import EXIT_OPERATOR

PROGRAM = """
import logging, resource
from infra.processes import raise_file_limit
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("hard", "warns"), [(2_048, True), (4_096, False)])
def test_the_soft_limit_becomes_the_hard_one(hard: int, warns: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(soft=256, hard=hard)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard), str(hard)]
    assert ("open_files_limit: at most 2048 files" in done.stderr) is warns


def test_a_limit_that_no_process_can_work_with_is_misconfigured() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(soft=64, hard=64)], capture_output=True, text=True, check=False)
    assert "open_files_limit: at most 64 files may be open, and this process needs 256; raise the hard limit" in done.stderr


@pytest.mark.parametrize(("command", "exit_code"), [("serve", 1), ("worker", EXIT_OPERATOR), ("statistics", EXIT_OPERATOR)])
def test_a_process_with_too_few_files_ends_with_a_message_instead_of_a_traceback(command: str, exit_code: int, tmp_path: Path) -> None:
    """64 is what some init scripts leave. A server ended with tracebacks once it loaded a version."""
    settings = {"AIF_INDEX__STORE": str(tmp_path / "store"), "AIF_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); from infra.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", limited, command], capture_output=True, text=True, check=False, env=os.environ | settings)
    assert (done.returncode, "Traceback" in done.stderr) == (exit_code, False)
    assert "open_files_limit: at most 64 files may be open" in done.stderr
