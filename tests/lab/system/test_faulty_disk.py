"""The disk of the crash bench on which single calls fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.system.faulty_disk import TOLD, build_faulty_disk, has_compiler

_WRITES = """
import os, sys
from pathlib import Path
failed = 0
for n in range(400):
    path = Path(sys.argv[1], f"file-{n}")
    try:
        with path.open("wb", buffering=0) as file:
            file.write(b"12345678")
            os.fsync(file.fileno())
        path.rename(path.with_suffix(".done"))
    except OSError as error:
        assert error.errno in (5, 28)
        failed += 1
print(failed)
"""


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
def test_single_calls_fail_below_the_folder_while_the_switch_is_on_and_a_write_that_fails_is_torn(tmp_path: Path) -> None:
    below, outside, switch = tmp_path / "below", tmp_path / "outside", tmp_path / "switch"
    below.mkdir(), outside.mkdir()
    environment = os.environ | build_faulty_disk(below, switch, 20)

    def failed(folder: Path) -> int:
        return int(subprocess.run([sys.executable, "-c", _WRITES, str(folder)], env=environment, check=True, stdout=subprocess.PIPE).stdout)

    assert failed(below) == 0
    switch.touch()
    count = failed(below)
    assert 0 < count < 400 and failed(outside) == 0
    told = [line.split() for line in (below / TOLD).read_text().splitlines()]
    assert (
        len(told) == count
        and {name for _, name, *_ in told} == {"write", "fsync", "rename"}
        and {error for *_, error in told} == {"5", "28"}
    )
    assert {path.read_bytes() for path in below.glob("file-*")} == {b"12345678", b"1234"}
