"""A new checkpoint's network, run in a process of its own before anybody wants the version.

Here: the job, and what becomes of a file that ends the process. Not here: the dry run (schemas/model/dry_run.py), the checks of the file that need no
torch (schemas/model/checkpoint_file.py), the decision (agents/checkpoints.py).
Invariant: a file that ends every process that runs it is refused, and does not hold up the records behind it.
"""

import hashlib
from pathlib import Path

from infra.scratch import ScratchFolders, disk_errors
from schemas.errors import RejectedInput, Unavailable
from streams.builders.jobs import DryRunJob
from streams.builders.running_jobs import Builders

_TRIES = 3


def judge_checkpoint(judge: Builders, scratch: Path, data: bytes) -> None:
    """Raises RejectedInput whose code names the check (`checkpoint_dry_run`: also where the process ended each time), and Unavailable where nothing was
    decided: the disk is full, the worker stops."""
    scratch.mkdir(parents=True, exist_ok=True)
    with ScratchFolders(scratch).open("dry-run") as folder:
        path = folder / "checkpoint.safetensors"
        with disk_errors(f"{path}"):
            path.write_bytes(data)
        job = DryRunJob(str(path), hashlib.sha256(data).hexdigest())
        for _ in range(_TRIES):
            try:
                judge.submit(job).future.result()
                return
            except Unavailable as error:
                if error.code != "builder_died":
                    raise
                died = error
    message = f"each of {_TRIES} processes that ran its network ended; {died.message}; if memory was short, make room and publish it again"
    raise RejectedInput("checkpoint_dry_run", message)
