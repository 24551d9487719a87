"""SimTier's kernel where there is no GPU: exact in Triton's interpreter, compiled for devices, and not needed by whoever has no Triton.

On a device: test_cuda.py.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.engine.devices.cuda import CudaScorer
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version

# Not imported here: at the end of a process that imported it, it prints a page about leaks.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")

_COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from serving.engine.devices.tier_kernel import TIERS_MAX, TILE_C, TILE_S, WARPS, WORDS_MAX, count_kernel

signature = dict(zip(count_kernel.arg_names, ["*i32", "*i32", "*i32", "*fp32", "i32", "i32"]))
for generation, words, tiers in ((80, 4, 10), (90, 4, 10), (100, WORDS_MAX, TIERS_MAX)):
    sizes = {"WORDS": words, "TIERS": tiers, "TIERS_PADDED": triton.next_power_of_2(tiers), "TILE_C": TILE_C, "TILE_S": TILE_S}
    target, options = GPUTarget("cuda", generation, 32), {"num_warps": WARPS, "enable_fp_fusion": False}
    compiled = triton.compile(ASTSource(count_kernel, signature, sizes), target=target, options=options)
    assert compiled.asm["cubin"]
    assert compiled.asm["ptx"].count("popc.b32") >= TILE_S * words, "the population count is no single instruction any more"
"""


def _run(command: list[str], cache: Path, interpret: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_kernel_in_the_interpreter_is_plain_torch_and_the_compiled_form_bit_for_bit(tmp_path: Path) -> None:
    done = _run(["-m", "tests.serving.engine.devices.tier_kernel_cases"], tmp_path, "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kernel_compiles_for_devices_that_are_not_here(tmp_path: Path) -> None:
    done = _run(["-c", _COMPILE], tmp_path, "0")
    assert done.returncode == 0, done.stderr


def test_without_triton_the_scorer_answers_by_plain_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "serving.engine.devices.tier_kernel", raising=False)
    version = make_version(SPECS["full"], 20)
    scorer = CudaScorer(version.parameters, 1, version.tables, "cpu")
    assert scorer.tiers_by == "torch, because the device is cpu"
    monkeypatch.setattr(scorer, "device", type("Device", (), {"type": "cuda"}))
    assert "Triton is missing" in scorer._open_tier_kernel()[1]
