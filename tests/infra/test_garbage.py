"""A ready server's collector leaves the objects alone that stay, and still finds the cycles that requests make."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from infra.garbage import calm_collector


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()  # the suite has its modules frozen (tests/conftest.py), and has them so again when the test is over
    yield
    gc.set_threshold(*before)
    gc.freeze()


class Knot:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.me = self


def test_what_is_there_at_the_start_is_never_looked_at_again_and_young_cycles_still_go() -> None:
    lasting = Knot()
    calm_collector()
    assert gc.get_freeze_count() > 10_000 and not any(one is lasting for one in gc.get_objects())
    gone, made = list[object](), list[object]()
    # Told, not asked: Python 3.12 collects where a call returns, and would find what the call has returned in use.
    knot = weakref.ref(Knot(), gone.append)
    while not gone and len(made) < 1_000_000:
        made.append([])
    assert gone == [knot], "no collection of the young came by itself"
