"""Short turns, so that whoever answers a request has its own soon: of the ports' threads on a core, and of all threads in the interpreter.

A server computes on every core, and a thread of the ports that wakes up has to wait until a turn of the engine, or of a neighbour's process, is over:
1.4 to 4 ms, at each of the three threads that a request passes. A thread that asks for shorter turns than the one that runs comes first as long as it
has had no more than its share; it gets no more time in all. Linux from 6.12 on; an older one takes no notice, and where it is refused nothing changes.

The interpreter lets a thread that computes in Python keep it for 5 ms while others wait. A load, a report or a follower of a topic does so for some
milliseconds at a time, and the engine and the event loop need the interpreter several times a request; so turns there are short too.

Here: the requests to the system and to the interpreter. Not here: which core a thread runs on (engine/workers.py). The engine's threads keep the long
turns that suit them: threads and processes that these threads start later have the system's own again.
Seen with ten times the load that can be carried, on two cores that a dozen other processes wanted too: refused after 1.5 ms instead of 3.3 (p99 7.5
instead of 11), admitted p50 16 ms instead of 20.
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

TURN_NS = 100_000  # the shortest that there is
INTERPRETER_S = 0.0005  # a change of threads costs some 10 us
_SYSCALLS = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_ATTRIBUTES = struct.Struct("IIQiIQQQII")  # size, policy, flags, nice, priority, turn in ns; deadline, period, utilisation are not used
_RESET_ON_FORK = 1


def share_the_interpreter() -> None:
    """Of this process, from now on."""
    sys.setswitchinterval(INTERPRETER_S)


def list_threads() -> frozenset[int]:
    """The threads of this process, as the system numbers them."""
    return frozenset(map(int, os.listdir("/proc/self/task")))


@contextlib.contextmanager
def new_threads_take_short_turns() -> Iterator[None]:
    """Of the threads that are started inside, and of the one that runs it: the loop's."""
    before = list_threads()
    yield
    take_short_turns({threading.get_native_id(), *(list_threads() - before)})


def take_short_turns(threads: Iterable[int]) -> int:
    """Asks for them; how many threads the system granted it. Raises nothing."""
    number = _SYSCALLS.get(platform.machine())
    return 0 if number is None else sum(_ask(number, thread) for thread in threads)


def _ask(number: int, thread: int) -> bool:
    try:
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:  # somebody chose for it
            return False
        nice = os.getpriority(os.PRIO_PROCESS, thread)
    except OSError:  # it has ended
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, TURN_NS, 0, 0, 0, 0)
    return ctypes.CDLL(None).syscall(number, thread, attributes, 0) == 0
