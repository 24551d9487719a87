"""Python's garbage collector in processes that make many short-lived objects: workers and builders.

What is loaded once (torch alone makes hundreds of thousands of objects) is taken out of the collector's sight, and collections come less often: with the
defaults a third of a worker's time went into looking through objects that never die (24k against 36k folded updates a second).
"""

import gc

_YOUNG_OBJECTS, _YOUNG_ROUNDS, _MIDDLE_ROUNDS = 50_000, 20, 100


def settle_garbage_collection() -> None:
    """To be called once imports are done, and again when more was loaded for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _MIDDLE_ROUNDS)
