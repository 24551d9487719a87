"""Compiled kernels of this folder, loaded ahead: what is asked later never waits for a compiler."""

from pathlib import Path

from infra.compiled_once import compiled_once
from streams.stored.changed_inputs import compile_changes
from streams.stored.item_block import compile_blocks
from streams.stored.item_columns import compile_columns
from streams.stored.record_texts import load_records


def load_kernels() -> None:
    """Takes every kernel from numba's cache, or compiles it (once per machine: 10 s against 1)."""
    with compiled_once("stored", Path(__file__).parent):
        compile_columns()
        compile_blocks()
        compile_changes()
        load_records()
