"""The cache of compiled kernels outlives the sources that it was made from."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
from typing import NamedTuple
import numpy as np
from schemas.kernels.compiled import kernel
class {name}(NamedTuple):
    a_N: np.ndarray
@kernel
def add_one(values):
    for i in range(values.a_N.shape[0]):
        values.a_N[i] += 1
array = np.zeros(3)
add_one({name}(array))
print(array.sum(), sum(add_one.stats.cache_hits.values()))
"""

PART = """
from schemas.kernels.compiled import subkernel
@subkernel
def one():
    return {number}
"""
KERNEL = """
from parts import one
from schemas.kernels.compiled import kernel
@kernel
def take():
    return one()
print(take(), sum(take.stats.cache_hits.values()))
"""


DAMAGE = """
import importlib, os
from pathlib import Path
import kernels
importlib.reload(kernels)
CUTS = [lambda raw: b"", lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-1]]
for kind, damages in (("nbi", CUTS), ("nbc", [*CUTS, lambda raw: raw[:-9] + b"?" + raw[-8:]])):
    for damage in damages:
        [path] = Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*." + kind)
        path.write_bytes(damage(path.read_bytes()))
        importlib.reload(kernels)
        importlib.reload(kernels)
"""
_WRITES = """
import errno, os
from numba.core.caching import IndexDataCacheFile as File
write = File._open_for_write
def stop():
    {stop}
File._open_for_write = lambda file, path: stop() if path.endswith(".nbc") else write(file, path)
import kernels
"""
KILLED, FULL = _WRITES.format(stop="os._exit(0)"), _WRITES.format(stop="raise OSError(errno.ENOSPC, 'full')")


def test_a_type_that_was_renamed_since_is_compiled_again_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def start(name: str) -> str:
        (tmp_path / "kernels.py").write_text(SOURCE.format(name=name))
        return subprocess.run([sys.executable, "-c", "import kernels"], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout

    assert [start("Before"), start("Before"), start("After")] == ["3.0 0\n", "3.0 1\n", "3.0 0\n"]


def test_a_subkernel_in_another_file_that_changed_since_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(KERNEL)

    def start(number: int) -> str:
        (tmp_path / "parts.py").write_text(PART.format(number=number))
        command = [sys.executable, "-B", "-c", "import kernels"]
        return subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout

    assert [start(1), start(1), start(2)] == ["1 0\n", "1 1\n", "2 0\n"]


def test_a_damaged_cache_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(SOURCE.format(name="Arrays"))
    printed = subprocess.run([sys.executable, "-c", DAMAGE], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout
    assert printed.splitlines() == ["3.0 0", "3.0 1"] * (1 + 3 + 4)


def test_code_of_former_sources_under_a_new_index_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed, or finds the disk full, between its two writes leaves that."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(KERNEL)

    def start(number: int, code: str = "import kernels") -> str:
        (tmp_path / "parts.py").write_text(PART.format(number=number))
        return subprocess.run([sys.executable, "-B", "-c", code], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout

    assert [start(1), start(2, KILLED), start(2), start(2)] == ["1 0\n", "", "2 0\n", "2 1\n"]


def test_a_full_disk_for_the_cache_is_no_reason_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(SOURCE.format(name="Arrays"))
    started = subprocess.run([sys.executable, "-c", FULL], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert started.stdout == "3.0 0\n"
