"""How old rows are: the time since a watermark was at the end of the source topics, per shard.

A shard's rows are as old as the newest look at the ends that its watermark has reached. So a shard without new events stays fresh. A shard that lags in one
topic does not look fresh because of the other. No clock of another machine takes part. An age is at most one look too high, and never too low.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LAGGING_S = 2.0  # a shard whose rows are older is named
KEPT = 2_048  # looks; an age beyond them is known with half the resolution, and so on

Offsets = Sequence[Mapping[str, int]]  # per shard, the next offset of each source topic


@dataclass(frozen=True, slots=True)
class RowAges:
    """Ages in seconds per shard, None = unknown. `lagging`: the shards that are older than LAGGING_S."""

    shards: Sequence[float | None] = ()
    lagging: Sequence[int] = ()

    @property
    def worst_s(self) -> float | None:
        """Age of the oldest shard; None if that of any shard is unknown."""
        known = [age for age in self.shards if age is not None]
        return max(known) if known and len(known) == len(self.shards) else None


UNKNOWN = RowAges()


@dataclass
class SourceEnds:
    """Looks at the ends of the source topics, the oldest first. One thread adds looks, any thread asks for ages. Times are monotonic, in seconds."""

    _looks: list[tuple[float, Offsets]] = field(default_factory=list)

    def note(self, at_s: float, ends: Offsets) -> None:
        """What the ends were at `at_s` or a little later. Offsets of a topic that was made again may be lower: then earlier looks say nothing."""
        looks = self._looks
        if looks and any(_is_below(now, before) for now, before in zip(ends, looks[-1][1], strict=True)):
            looks = []
        elif looks and ends == looks[-1][1]:
            looks = looks[:-1]
        if len(looks) >= KEPT:
            looks = [*looks[: KEPT // 2 : 2], *looks[KEPT // 2 :]]
        self._looks = [*looks, (at_s, ends)]

    def ages(self, watermark: Offsets, now_s: float) -> RowAges:
        """The ages of rows with this watermark."""
        looks = self._looks
        if not looks:
            return RowAges([None] * len(watermark))
        ages = [_find_age(looks, shard, reached, now_s) for shard, reached in enumerate(watermark)]
        first_s = now_s - looks[0][0]
        return RowAges(ages, [shard for shard, age in enumerate(ages) if (first_s if age is None else age) > LAGGING_S])


def _find_age(looks: Sequence[tuple[float, Offsets]], shard: int, reached: Mapping[str, int], now_s: float) -> float | None:
    if shard >= len(looks[-1][1]):
        return None
    if not _is_below(reached, looks[-1][1][shard]):
        return max(0.0, now_s - looks[-1][0])
    at = bisect.bisect_left(looks, True, key=lambda look: _is_below(reached, look[1][shard]))
    return max(0.0, now_s - looks[at - 1][0]) if at else None


def _is_below(offsets: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    return any(offsets.get(topic, 0) < end for topic, end in ends.items())
