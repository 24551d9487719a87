"""The program `aif` before there is a command."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERRUPTED_IN_AN_IMPORT = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from {module} import {function}
{function}()
"""


def test_ctrl_c_during_the_imports_of_aif_is_a_word_and_exit_code_130() -> None:
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["aif"].partition(":")
    code = INTERRUPTED_IN_AN_IMPORT.format(module=module, function=function)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("path", ["file", "file/data", "n" * 300])
def test_a_folder_that_cannot_be_used_is_a_message_and_no_traceback(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", "from infra.main import main; main()", "broker", "start", "--data-dir", str(tmp_path / path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error path_unusable: " in done.stderr
    assert str(tmp_path / path) in done.stderr
    assert "aif config show" in done.stderr


@pytest.mark.parametrize("error", ["MemoryError()", 'RuntimeError("can\'t start new thread")'])
def test_a_lack_of_memory_is_a_message_and_no_traceback(error: str) -> None:
    code = f"import infra.cli as c\ndef fail(): raise {error}\nc.build_app = lambda: fail\nc.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error no_memory: " in done.stderr and "ulimit -v" in done.stderr


def test_an_error_that_quotes_the_environment_does_not_speak_to_the_terminal() -> None:
    command = [sys.executable, "-c", "from infra.main import main; main()", "config", "show"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "AIF_\x1b[2J": "1"})
    assert done.returncode == 1
    assert "error unknown_setting: nothing reads AIF_\\x1b[2J" in done.stderr
