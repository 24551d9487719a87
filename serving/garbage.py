"""Keeps Python's cyclic garbage collector from pausing a server.

A full collection visits every object while it holds the interpreter: a server with some thousand decoded histories (160,000 behaviours) stood still for
0.2 s. Almost no object here is part of a cycle, and those that are come from one request, so collections of the young generations find them.

    freeze    objects that exist once the server is ready (modules, kernels, models) are never visited again
    young     collections of the young generation are rarer, so that most objects of a request are gone before one comes
    full      very rare, and only if a quarter of all objects are new (the interpreter's own rule)
"""

import gc

_YOUNG, _MIDDLE, _FULL = 10_000, 20, 500  # new objects, young collections, middle collections: a full one after 10^8 objects


def calm_collector() -> None:
    """To be called once, when a server is ready. A second call also freezes the objects created since."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
