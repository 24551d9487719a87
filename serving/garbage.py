"""How Python's collector of cycles is kept from stopping a server.

A full collection looks at every object there is, with the interpreter held: a server that keeps some thousand decoded histories stood still for 0.2 s
(160,000 behaviours; seen). Almost nothing here is in a cycle, and what is was made by one request: the young generations find it.

    freeze    what is there once the server is ready (modules, kernels, models) is never looked at again
    young     a collection of the young comes less often, so that what a request makes is gone before it is looked at
    full      once in a long while, where a quarter of the objects are new as well (the interpreter's own rule)

Not here: memory of our own, which is bounded where it is kept (schemas/limits.py).
"""

import gc

_YOUNG, _MIDDLE, _FULL = 10_000, 20, 500  # objects made, young collections, middle collections: a full one comes after 10^8 objects


def calm_collector() -> None:
    """Called once, when a server is ready. Doing it again also freezes what was made since."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
