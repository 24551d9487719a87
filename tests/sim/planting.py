"""How a bug is put into the system on purpose: the table `PLANTS`, its decorator `plant`, and the context `planted`. The bugs are in plants.py."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.sim.boundary import Boundary, replaced
from tests.sim.world import World

Replacement = tuple[Any, str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class Plant:
    """A bug: a description, the invariants of which one breaks, and the way to plant it."""

    why: str
    breaks: frozenset[str]
    replace: Callable[[World, Boundary], Sequence[Replacement]]


PLANTS: dict[str, Plant] = {}


def plant(why: str, *breaks: str) -> Callable[[Callable[[World, Boundary], Sequence[Replacement]]], None]:
    """Registers a function as a bug under its name."""

    def register(replace: Callable[[World, Boundary], Sequence[Replacement]]) -> None:
        PLANTS[replace.__name__.removeprefix("_")] = Plant(why, frozenset(breaks), replace)

    return register


@contextlib.contextmanager
def planted(name: str | None, world: World, boundary: Boundary) -> Iterator[None]:
    """The plant's bug is in the system within the block; None: none is."""
    with replaced(PLANTS[name].replace(world, boundary) if name else ()):
        yield
