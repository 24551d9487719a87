"""A builder process: it takes jobs from its parent over a private socket, sequentially, until the parent is gone.

Forked from the worker's template, or started as `python -m streams.builders.process STORE_URL FD` (template.py). It stays alive between versions and ends
when the socket closes; the kernel kills it when the parent dies. It computes with one thread: who wants more speed starts more processes, and the bits of a
row do not depend on their number. The socket belongs to the two processes alone, so its messages may be pickled. Only canaries and dry runs need torch;
they load it in a pool of their own (streams/versions/version_side.py).
"""

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from infra.garbage import settle_garbage_collection
from infra.index.store import IndexStore, open_index_store
from schemas.errors import AifError, Unavailable
from streams.builders.full_part import Progress, build_full_part
from streams.builders.jobs import BuildJob, CanaryJob, DryRunJob, Job, Result, SnapshotJob, describe_job, machine_error
from streams.builders.sealer import write_seal
from streams.encoder import EncoderCache
from streams.kernels import load_kernels
from streams.shard.snapshot_files import write_snapshot

_PROGRESS_EVERY_S = 0.2
# A build gets what increments and requests leave: a quarter of a core that they want too, a whole core that is idle.
_NICENESS = 5


Tools = tuple[IndexStore, EncoderCache]


def run_job(open_tools: Callable[[], Tools], job: Job, progress: Progress) -> Result:
    """One job, from its checkpoint to its result."""
    if isinstance(job, DryRunJob):
        _run_dry(job)
        return None
    store, encoders = open_tools()
    if isinstance(job, SnapshotJob):
        return write_snapshot(store, job.shard, job.identity, Path(job.checkpoint_directory))
    if isinstance(job, CanaryJob):
        return _run_canary(store, encoders, job)
    encoder = encoders.get(job.version, job.checkpoint_sha256)
    if isinstance(job, BuildJob):
        return build_full_part(store, encoder, job, progress)
    return write_seal(store, encoder, job, progress)


def _run_canary(store: IndexStore, encoders: EncoderCache, job: CanaryJob) -> Result:
    _load_torch()
    from streams.builders.canary_scores import run_canary

    return run_canary(store, encoders, job)


def _run_dry(job: DryRunJob) -> None:
    """Without the store: a store that is away is no fault of the checkpoint."""
    _load_torch()
    from schemas.model.checkpoint import read_checkpoint

    read_checkpoint(job.path, job.sha256)


def _load_torch() -> None:
    import torch

    # Also if it was loaded before this process was forked: several threads of low priority that wait for each other wait long.
    torch.set_num_threads(1)


def serve_jobs(connection: Connection, open_tools: Callable[[], Tools]) -> None:
    """Does jobs until the parent closes its end of the socket."""
    load_kernels()
    os.nice(_NICENESS)
    while True:
        try:
            job = connection.recv()
            connection.send(_answer(connection, open_tools, job))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _answer(connection: Connection, open_tools: Callable[[], Tools], job: Job) -> Result | AifError:
    told_at = time.monotonic()

    def progress(rows: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _PROGRESS_EVERY_S:
            told_at = time.monotonic()
            connection.send(rows)

    try:
        return run_job(open_tools, job, progress)
    except AifError as error:
        return error
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        return machine_error(job, error)
    except Exception as error:  # a fault of ours: the worker's log has it once, so it needs the place
        where = "".join(traceback.format_exception(error))
        return Unavailable("builder_failed", f"{describe_job(job)}: {error!r}\n{where}")


def work_for_parent(store_url: str, descriptor: int) -> None:
    """All that a builder process does; `descriptor` is its end of the socket."""
    settle_garbage_collection()

    @functools.cache
    def open_tools() -> Tools:  # with the first job that needs them: a store that is away fails the job, and not the process
        store = open_index_store(store_url)
        return store, EncoderCache(store)

    serve_jobs(Connection(descriptor), open_tools)


if __name__ == "__main__":
    work_for_parent(sys.argv[1], int(sys.argv[2]))
