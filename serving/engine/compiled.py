"""How the engine's kernels are compiled: ahead, cached, without the GIL, and without counting references to arrays.

Here: the two decorators. Not here: the kernels, and the order in which processes compile them (serving/engine_kernels.py).
Numba counts a reference whenever an array, or a tuple of them, is handed to a function or cut: an atomic addition for each array in it, in memory that the
threads share. The kernels here hand over tuples of ten arrays for every block of candidates; without the counts a call on three such tuples costs 30 ns, with
them 450. Nothing is lost: whoever calls a kernel holds every array until it returns.

Invariant: a kernel allocates nothing; its caller gives it the memory (numba refuses to compile one that does).
"""

import numba

_OPTIONS = {"nogil": True, "cache": True, "no_cfunc_wrapper": True, "_nrt": False}

kernel = numba.njit(**_OPTIONS)  # called from Python
part = numba.njit(**_OPTIONS, no_cpython_wrapper=True)  # called from kernels only
