"""The program `aif` before there is a command."""

import subprocess
import sys
import tomllib
from pathlib import Path

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
