"""A disk on which now and then one write, sync, rename or link fails, with EIO or ENOSPC: for a worker and all processes that it starts."""

import shutil
import subprocess
from pathlib import Path

from schemas.errors import Misconfigured

_SOURCE = Path(__file__).with_name("faulty_disk.c")
TOLD = "faulty-disk.told"


def has_compiler() -> bool:
    """Whether there is a C compiler to build it with."""
    return shutil.which("cc") is not None


def build_faulty_disk(directory: Path, switch: Path, every: int) -> dict[str, str]:
    """The environment in which one in `every` calls on files below `directory` fails while the file `switch` exists; what failed is in `directory`/TOLD.

    Raises Misconfigured (`no_compiler`).
    """
    library = directory / "faulty_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True) if has_compiler() else None
    if done is None or done.returncode:
        raise Misconfigured(
            "no_compiler", f"{_SOURCE.name} needs a C compiler for Linux: {done.stderr[-400:] if done else 'cc is not found'}"
        )
    told = directory / TOLD
    told.touch()
    variables = {"ROOT": f"{directory}/", "SWITCH": switch, "EVERY": every, "TOLD": told}
    return {"LD_PRELOAD": str(library), **{f"FAULTY_{name}": str(value) for name, value in variables.items()}}
