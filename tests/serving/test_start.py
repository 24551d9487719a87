"""What the start of a server does not pay for."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.settings import load_settings
from schemas.errors import Misconfigured
from serving import server
from serving.server import RankingServer
from serving.settings import ServerSettings


def test_a_server_on_a_cpu_and_its_kernels_load_no_torch() -> None:
    check = (
        "import serving.server, serving.engine.devices.scorer as s, sys; assert callable(s.compile_kernels) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_server_runs_on_the_cpu_unless_cuda_is_asked_for_and_then_needs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_settings(ServerSettings, {}, {}).engine.device == "cpu"
    monkeypatch.setattr(server, "_NVIDIA", tmp_path / "no driver")
    with pytest.raises(Misconfigured, match=r"no_cuda: .*give --device cpu"):
        RankingServer(load_settings(ServerSettings, {"engine": {"device": "cuda"}}, {}))
