"""Many histories: sequentially, or side by side on all cores.

Here: the search for the first seed that breaks an invariant. Not here: one history (history.py), the command (__main__.py).
"""

import contextlib
import gc
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.history import Outcome, run_history

_SHARE = 250  # histories that a process takes at a time
_COLLECTED_EVERY = 16  # histories: a few MB


def find_violation(seeds: Sequence[int], plant: str | None = None) -> Outcome | None:
    """The first of these histories that breaks an invariant."""
    with _seldom_collected() as collect:
        for at, seed in enumerate(seeds):
            outcome = run_history(seed, plant)
            if outcome.violation is not None:
                return outcome
            if at % _COLLECTED_EVERY == 0:
                collect()
    return None


@contextlib.contextmanager
def _seldom_collected() -> Iterator[Callable[[], object]]:
    """What a history leaves is collected between histories, by who is given `collect`: in their midst it is looked at again and again, and is all in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: gc.collect(1)  # older objects belong to modules and to caches
    finally:
        if was_enabled:
            gc.enable()


def find_violation_on_all_cores(seeds: range) -> Outcome | None:
    """The same, a process a core. Processes are started again: a copy of one with threads would not be the same one everywhere."""
    shares = [seeds[at : at + _SHARE] for at in range(0, len(seeds), _SHARE)]
    start_anew = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), start_anew, logging.disable, (logging.CRITICAL,)) as processes:
        for seed in processes.map(_find_seed, shares):
            if seed is not None:
                processes.shutdown(cancel_futures=True)
                return run_history(seed)
    return None


def _find_seed(seeds: range) -> int | None:
    found = find_violation(seeds)
    return None if found is None else found.seed
