"""Compiles the engine's kernels, or takes them from numba's cache, in one process after the other (infra/compiled_once.py).

The loader process needs only look-up and changes, so these come first.
"""

from pathlib import Path

from infra.compiled_once import compiled_once, is_compiled
from serving import engine
from serving.engine.tables import tables

_SOURCES = Path(engine.__file__).parent


def load_table_kernels() -> None:
    """Loads the kernels of look-up and changes, for both kinds of ids."""
    with compiled_once("tables", _SOURCES):
        tables.warm_tables()


def load_engine_kernels() -> None:
    """Loads all kernels, so that the engine starts at once."""
    from serving.engine.devices.scorer import compile_kernels

    load_table_kernels()
    with compiled_once("engine", _SOURCES):
        compile_kernels()


def load_compiled_kernels() -> None:
    """Loads all kernels if they are in the cache, else does nothing: for processes that others wait for."""
    if is_compiled("tables", _SOURCES) and is_compiled("engine", _SOURCES):
        load_engine_kernels()
