"""Many histories: one after the other, or side by side on all cores.

Here: the search for the first seed that breaks an invariant. Not here: one history (history.py), the command (__main__.py).
"""

import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.history import Outcome, run_history

_SHARE = 250  # histories that a process takes at a time


def find_violation(seeds: Sequence[int], plant: str | None = None) -> Outcome | None:
    """The first of these histories that breaks an invariant."""
    for seed in seeds:
        outcome = run_history(seed, plant)
        if outcome.violation is not None:
            return outcome
    return None


def find_violation_on_all_cores(seeds: range) -> Outcome | None:
    """The same, a process a core. Processes are started anew: a copy of one with threads would not be the same one everywhere."""
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
