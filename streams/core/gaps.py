"""A hole in a partition: its records are fetched again once; if the hole is still there, the worker stops (protocol A8). Pure.

The library that hands records over may skip some after a fault of its own; those come when its consumer seeks back. A hole in the log itself comes
again at the same place: a restart would meet it for ever, so an operator must look.
"""

import enum
import itertools
from collections.abc import Sequence

Partition = tuple[str, int]  # topic without prefix, partition


class Remedy(enum.Enum):
    """What to do about a hole."""

    SEEK = "read again from the shard's next offset"
    WAIT = "the records of an earlier seek are still to come"
    STOP = "the log itself has the hole"


class GapWatch:
    """Remembers for each partition the last record that was refused because of a hole."""

    def __init__(self) -> None:
        self._refused_to: dict[Partition, int] = {}

    def choose_remedy(self, partition: Partition, offsets: Sequence[int]) -> Remedy:
        """After records of `partition` with these offsets were refused because of a hole.

        Records that were fetched before a seek still arrive, and they begin where the refused ones ended; a fetch after the seek begins lower.
        """
        refused_to = self._refused_to.get(partition)
        if refused_to is not None and offsets[0] <= refused_to:
            return Remedy.STOP
        self._refused_to[partition] = offsets[-1]
        return Remedy.SEEK if refused_to is None else Remedy.WAIT

    def passed(self, partition: Partition) -> None:
        """Records of `partition` were applied: if there was a hole, it is closed."""
        self._refused_to.pop(partition, None)


def plan_runs(offsets: Sequence[int]) -> list[slice]:
    """Cuts offsets, in the order in which they arrived, into runs that ascend."""
    starts = [0, *(i for i in range(1, len(offsets)) if offsets[i] <= offsets[i - 1])]
    return [slice(a, b) for a, b in itertools.pairwise([*starts, len(offsets)])]
