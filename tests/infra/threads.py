"""Faults of threads, for tests."""

import ctypes
import threading


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raises an error in another thread, wherever its Python code is."""
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1
