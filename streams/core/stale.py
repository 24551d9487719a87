"""Which parts of a row become stale when an item changes (protocol A9).

    an input of the item half changed                  vector and bridge weights (and with them the row)
    the multimodal embedding changed                   the signature; vector and bridge too where the schema lists it as an input
    bid, SIM category, realtime, or anything else      the row, rewritten without the network (its input hash is of all bytes)
    nothing changed (an identical re-sent event)       nothing

Here: the table for one FeatureSchema. Not here: which steps an item took (item_change.py), the rows (streams/shard/rows.py).
Values are compared as printed, because 1, 1.0 and true are equal in Python and hash into different buckets.
Invariant: what is stale is the union over all steps of a batch, never the difference between its first and last state. A step that is undone within
the batch may have reached readers before a crash, after which the same records came in another batch; so the row must be sent again.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.features import FeatureSchema


class Stale(enum.IntFlag):
    """Parts of a row. VECTOR stands for vector and bridge weights, which are made together."""

    NOTHING = 0
    ROW = 1
    SIGNATURE = 2
    VECTOR = 4


EVERYTHING = Stale.ROW | Stale.SIGNATURE | Stale.VECTOR


@dataclass(frozen=True)
class Dependencies:
    """The dependency table of one model: which features its item half reads, and what an embedding touches."""

    inputs: tuple[str, ...]
    by_embedding: Stale

    def by_features(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Stale:
        """What a change from `before` to `after` makes stale; the two are known to differ somewhere."""
        differ = repr(list(map(before.get, self.inputs))) != repr(list(map(after.get, self.inputs)))
        return Stale.ROW | Stale.VECTOR if differ else Stale.ROW


def dependencies_of(schema: FeatureSchema) -> Dependencies:
    """The table of a model with this schema."""
    by_embedding = Stale.ROW
    if schema.multimodal is not None:
        by_embedding |= Stale.SIGNATURE
        if schema.multimodal_is_input:
            by_embedding |= Stale.VECTOR
    return Dependencies(tuple(f.name for f in schema.item_half_inputs), by_embedding)
