"""Where the features of one scope lie: in their embedding table and in the vector they become. Shared by every form that embeds them.

No torch. Order in the vector: categorical, bags, numeric, embeddings, each in declared order. One table for all categorical and bag features, each its own
rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.features import Feature, by_layout

VALUE_ABS_MAX = 1e6  # numbers and embedding features are clipped to this: a finite event must never give a score that is not finite


@dataclass(frozen=True, slots=True)
class FeaturePlaces:
    """First rows of the categorical and of the bag features in a table of `rows` rows; `widths` of the features in the vector, in its order."""

    categorical_starts: list[int]
    bag_starts: list[int]
    widths: list[int]
    rows: int

    @property
    def width(self) -> int:
        """Of the vector. A scope without features is one column of zeros, so that no layer after it has inputs of width 0."""
        return max(1, sum(self.widths))


def plan_features(features: Sequence[Feature], embedding_width: int) -> FeaturePlaces:
    """The places of a scope's features."""
    of = by_layout(features)
    looked_up = of.buckets + of.bags
    starts = [sum(f.buckets for f in looked_up[:i]) for i in range(len(looked_up))]
    cut = len(of.buckets)
    widths = [embedding_width] * len(looked_up) + [1] * len(of.numbers) + [f.width for f in of.vectors]
    return FeaturePlaces(starts[:cut], starts[cut:], widths, sum(f.buckets for f in looked_up))
