"""Loads the compiled item network ahead of its first use, so that no batch waits for a compiler."""

import functools
from pathlib import Path

from infra.compiled_once import compiled_once, is_compiled
from schemas.kernels import signer
from schemas.model import item_network

_SOURCES = Path(signer.__file__).parent


@functools.cache
def load_kernels() -> None:
    """Takes every kernel from numba's cache, which takes a second, or compiles it, which one process of a machine does. The second call does nothing."""
    with compiled_once("items", _SOURCES):
        item_network.compile_item_network()
        signer.compile_signer()


def load_compiled_kernels() -> None:
    """Takes the kernels from numba's cache if all of them are there, and does nothing otherwise: for processes that must not compile while others wait."""
    if is_compiled("items", _SOURCES):
        load_kernels()
