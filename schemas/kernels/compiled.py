"""How kernels of the model and of the engine are compiled: ahead, cached, without the GIL, and without counting references to arrays.

Numba counts a reference whenever a function receives or cuts an array: an atomic addition per array, in memory that the threads share. The kernels here
pass tuples of ten arrays for every block of candidates. A call on three such tuples costs 30 ns without the counts, 450 ns with them. The counts are not
needed: the caller of a kernel holds every array until it returns.

Invariants: a kernel allocates nothing; its caller gives it the memory (numba refuses to compile one that does). Code in the cache is whole and was made from
today's sources. Numba itself compares only the file of a kernel, and only in its index. So the index and each file of code also hold a hash of this room and of
the subkernels that the kernel calls.
"""

import contextlib
import functools
import hashlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

# Conversions in kernels. Their results are ints to compiled code and to the Python that calls it, which numpy's types do not say.
int64: Any = np.int64
uint64: Any = np.uint64

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "no_cfunc_wrapper": True, "_nrt": False}
_SUBKERNEL_OPTIONS = _OPTIONS | {"no_cpython_wrapper": True}


def kernel(function: Function) -> Function:
    """Called from Python."""
    return _compiled(function, _OPTIONS)


def subkernel(function: Function) -> Function:
    """Called from kernels only."""
    return _compiled(function, _SUBKERNEL_OPTIONS)


def inlined(function: Function) -> Function:
    """A few lines for kernels, written out where they are called."""
    return cast("Function", numba.njit(inline="always")(function))


@functools.cache
def toolchain() -> str:
    """A hash of what all compiled code depends on besides its own sources: numba, this processor, the files of this room."""
    room = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(
        repr((numba.__version__, llvmlite.binding.get_host_cpu_name(), [_digest_file(str(p)) for p in room])).encode()
    ).hexdigest()


def _compiled(function: Any, options: Mapping[str, Any]) -> Any:
    compiled = numba.njit(**options)(function)
    index, sources = compiled._cache._cache_file, _sources_of(function)
    index._source_stamp = index._source_stamp, sources
    stamp = hashlib.sha256(repr(sorted(map(repr, sources))).encode()).digest()
    index._load_index = functools.partial(_load_index, index._load_index)
    index._load_data, index._save_data = functools.partial(_load_code, index, stamp), functools.partial(_save_code, index, stamp)
    index.save = functools.partial(_save, index.save)
    return compiled


@functools.cache
def _sources_of(function: Any) -> frozenset[object]:
    """What compiled code is made of: this room, the files of the function and of its subkernels, and the numbers that it takes from elsewhere."""
    found: set[object] = {toolchain(), _digest_file(function.__code__.co_filename)}
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, int | float):
            found.add((name, value))
        elif (called := getattr(value, "py_func", getattr(value, "_defn", None))) is not None:
            found |= _sources_of(called)
    return frozenset(found)


@functools.cache
def _digest_file(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _load_index(load: Callable[[], dict[Any, str]]) -> dict[Any, str]:
    """The cache's entries; none if they cannot be read. Numba unpickles the signatures of former sources before it compares the sources. A start after an
    upgrade that renamed one of their types, or on a damaged index, would end with an error. Bytes that are no pickle raise errors of any kind."""
    try:
        return load()
    except Exception:
        return {}


def _load_code(index: Any, stamp: bytes, name: str) -> Any:
    """The compiled code in a file of the cache. Raises OSError, after which numba compiles, unless it is whole and was made from today's sources: a process
    that ended between its writes of index and code has left former code under a new index."""
    raw = Path(index._data_path(name)).read_bytes()
    check, code = raw[: len(stamp)], raw[len(stamp) :]
    if check != hashlib.sha256(stamp + code).digest():
        raise OSError(f"{name} is damaged, or was compiled from other sources")
    return pickle.loads(code)  # noqa: S301 # as numba does: who can write here can write the sources too


def _save_code(index: Any, stamp: bytes, name: str, data: Any) -> None:
    code = index._dump(data)
    with index._open_for_write(index._data_path(name)) as file:
        file.write(hashlib.sha256(stamp + code).digest() + code)


def _save(save: Callable[[Any, Any], None], key: Any, data: Any) -> None:
    """Without room on the disk, this process keeps its code for itself."""
    with contextlib.suppress(OSError):
        save(key, data)
