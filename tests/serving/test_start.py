"""What the start of a server does not pay for."""

import subprocess
import sys


def test_a_server_on_a_cpu_and_its_kernels_load_no_torch() -> None:
    check = (
        "import serving.server, serving.engine.devices.scorer as s, sys; assert callable(s.compile_kernels) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
