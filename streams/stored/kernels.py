"""Loads the compiled kernels of this folder, of the rows in memory (infra/held_rows.py) and of the item network ahead of their first use, so that no batch
waits for a compiler. Not here: the kernels; how one process of a machine compiles for all (infra/compiled_once.py).
"""

import functools
from pathlib import Path

from infra import held_rows
from infra.compiled_once import compiled_once, is_compiled
from infra.held_rows import compile_held_rows
from infra.joined import compile_joined
from schemas.model import item_network, signer
from streams.stored.changed_inputs import compile_changes
from streams.stored.folded_upserts import compile_fold
from streams.stored.item_block import compile_blocks
from streams.stored.item_columns import compile_columns
from streams.stored.packed_changes import compile_changes_packed
from streams.stored.plain_records import load_records

_SOURCES = Path(__file__).parent
_ROW_SOURCES = Path(held_rows.__file__).parent
_MODEL_SOURCES = Path(item_network.__file__).parent


@functools.cache
def load_kernels() -> None:
    """Takes every kernel from numba's cache, which takes 1 s, or compiles it, which takes 10 s and is done by one process of a machine. The second call does
    nothing."""
    with compiled_once("rows", _ROW_SOURCES):
        compile_joined()
        compile_held_rows()
    with compiled_once("stored", _SOURCES):
        compile_columns()
        compile_blocks()
        compile_changes_packed()
        compile_changes()
        compile_fold()
        load_records()
    with compiled_once("items", _MODEL_SOURCES):
        item_network.compile_item_network()
        signer.compile_signer()


def load_compiled_kernels() -> None:
    """Takes the kernels from numba's cache if all of them are there, and does nothing otherwise: for processes that must not compile while others wait."""
    if is_compiled("rows", _ROW_SOURCES) and is_compiled("stored", _SOURCES) and is_compiled("items", _MODEL_SOURCES):
        load_kernels()
