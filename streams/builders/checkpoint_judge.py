"""The dry run of a new checkpoint, in a process of its own: its network is run before the version is wanted.

Invariants: a file that ends every process that runs it, or whose run fails each time, is refused. So it does not block the records behind it. An error of
the machine or of the store refuses no file: nothing is decided, and the caller tries again.
"""

import hashlib
from pathlib import Path

from infra.scratch import ScratchFolders, disk_errors
from schemas.errors import RejectedInput, Unavailable
from streams.builders.jobs import DryRunJob
from streams.builders.running_jobs import Builders

_TRIES = 3
_OF_THE_RUN = frozenset({"builder_died", "builder_failed"})


def judge_checkpoint(judge: Builders, scratch: Path, data: bytes) -> None:
    """Raises RejectedInput whose code names the failed check; `checkpoint_dry_run` also if no run came to its end. Raises Unavailable if nothing was decided,
    because the machine did not let it run or the worker stops."""
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
                if error.code not in _OF_THE_RUN:
                    raise
                failed = error
    message = f"each of {_TRIES} runs of its network ended; {failed.message}; if memory was short, make room and publish it again"
    raise RejectedInput("checkpoint_dry_run", message)
