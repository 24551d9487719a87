"""The engine's kernels, compiled or taken from numba's cache by one process after the other (infra/compiled_once.py).

Here: the order. A loader needs the look-up and changes only, so these come first and by themselves. Not here: the kernels (serving/engine).
"""

from pathlib import Path

from infra.compiled_once import compiled_once, is_compiled
from serving.engine import tables

_SOURCES = Path(tables.__file__).parent


def load_table_kernels() -> None:
    """Look-up and changes, for both kinds of ids. Does not import torch."""
    with compiled_once("tables", _SOURCES):
        tables.warm_tables()


def load_engine_kernels() -> None:
    """All of them: what the engine's start then finds."""
    from serving.engine.scorers import compile_kernels

    load_table_kernels()
    with compiled_once("engine", _SOURCES):
        compile_kernels()


def load_compiled_kernels() -> None:
    """Takes all from the cache if they are there: for processes that others wait for."""
    if is_compiled("tables", _SOURCES) and is_compiled("engine", _SOURCES):
        load_engine_kernels()
