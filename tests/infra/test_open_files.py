"""The limit of open files is raised at the start, and a low one is named."""

import subprocess
import sys

import pytest

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
