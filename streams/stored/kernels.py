"""Compiled kernels of this folder, loaded ahead: what is asked later never waits for a compiler.

Here: `load_kernels`. Processes that start at once on a new machine compile one after the other, so that the first does it and the others take it from
numba's cache (measured: 10 s against 1). Without a folder to write to each compiles for itself.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.stored.changed_inputs import compile_changes
from streams.stored.item_block import compile_blocks
from streams.stored.item_columns import compile_columns
from streams.stored.record_texts import load_records


def load_kernels() -> None:
    """Takes every kernel from numba's cache, or compiles it."""
    with _one_process_at_a_time():
        compile_columns()
        compile_blocks()
        compile_changes()
        load_records()


@contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "stored-kernels.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the end of its process too
        yield
    finally:
        os.close(lock)
