"""A hole in a partition: fetch again once, and when it is still there, stop (protocol A8). Pure.

Faust may skip records after a fault of its own; those come when the consumer seeks back. A hole of the log itself comes again at the same place:
restarting would loop for ever, so an operator must look.
"""

import itertools
from collections.abc import Sequence

Partition = tuple[str, int]


class GapWatch:
    """Remembers, per partition, the last record that was refused because of a hole since the seek."""

    def __init__(self) -> None:
        self._refused_to: dict[Partition, int] = {}

    def seek_is_due(self, partition: Partition, offsets: Sequence[int]) -> bool | None:
        """After records of `partition` were refused because of a hole: True = seek back, None = wait for that seek, False = stop.

        Records fetched before the seek still arrive and go on where the refused ones ended; a fetch after it starts lower.
        """
        refused_to = self._refused_to.get(partition)
        if refused_to is not None and offsets[0] <= refused_to:
            return False
        self._refused_to[partition] = offsets[-1]
        return True if refused_to is None else None

    def passed(self, partition: Partition) -> None:
        """Records of `partition` were applied: the hole, if there was one, is closed."""
        self._refused_to.pop(partition, None)


def plan_runs(offsets: Sequence[int]) -> list[slice]:
    """Cuts offsets in the order of their arrival into runs that ascend."""
    starts = [0, *(i for i in range(1, len(offsets)) if offsets[i] <= offsets[i - 1])]
    return [slice(a, b) for a, b in itertools.pairwise([*starts, len(offsets)])]
