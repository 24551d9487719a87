"""Short time slices, so that threads that answer requests run soon: for the ports' threads on a core, and for all threads in the interpreter.

The engine computes on every core. A thread of the ports that wakes up must wait until the time slice of the engine, or of another process, is over:
1.4 to 4 ms, for each of the three threads that a request passes. The scheduler prefers a thread with a shorter slice, as long as it has not used more than
its share; it gets no more time in total. This needs Linux 6.12; an older kernel ignores the request, and a refusal changes nothing.

By default a thread that runs Python code keeps the interpreter for 5 ms while others wait. A load, a report or a topic follower does so for some
milliseconds at a time. But the engine and the event loop need the interpreter several times per request. So the interpreter's slices are short too.

The engine's threads keep long slices, which suit them; threads and processes that the ports' threads start later have the system's default again.
Measured at ten times the possible load, on two cores shared with a dozen other processes: A refusal takes 1.5 ms instead of 3.3 (p50) and 7.5 instead of 11
(p99). An admitted request takes 16 ms instead of 20 (p50).
Source: sched_setattr(2); EEVDF's custom slices.
"""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Iterable, Iterator

SLICE_NS = 100_000  # the shortest slice that the kernel grants
INTERPRETER_S = 0.0005  # a switch between threads costs about 10 us
_SYSCALLS = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_ATTRIBUTES = struct.Struct("IIQiIQQQII")  # size, policy, flags, nice, priority, slice in ns; deadline, period and utilisation are unused
_RESET_ON_FORK = 1


def share_the_interpreter() -> None:
    """Gives this process's threads short slices of the interpreter from now on."""
    sys.setswitchinterval(INTERPRETER_S)


def list_threads() -> frozenset[int]:
    """The kernel's ids of this process's threads."""
    return frozenset(map(int, os.listdir("/proc/self/task")))


@contextlib.contextmanager
def new_threads_take_short_slices() -> Iterator[None]:
    """Gives short slices to the threads that are started inside, and to the calling thread (the event loop's)."""
    before = list_threads()
    yield
    take_short_slices({threading.get_native_id(), *(list_threads() - before)})


def take_short_slices(threads: Iterable[int]) -> int:
    """Asks the kernel for short slices for these threads. Returns how many were granted. Raises nothing."""
    number = _SYSCALLS.get(platform.machine())
    return 0 if number is None else sum(_ask(number, thread) for thread in threads)


def _ask(number: int, thread: int) -> bool:
    try:
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:  # an operator chose another policy on purpose
            return False
        nice = os.getpriority(os.PRIO_PROCESS, thread)
    except OSError:  # the thread has ended
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0, 0, 0)
    return ctypes.CDLL(None).syscall(number, thread, attributes, 0) == 0
