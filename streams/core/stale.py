"""Which parts of a row become stale when an item changes (protocol A9).

    an input of the item half changed                  vector and bridge weights (and with them the row)
    the multimodal embedding changed                   the signature; vector and bridge too where the schema lists it as an input
    bid, SIM category, realtime, or anything else      the row, rewritten without the network (its input hash is of all bytes)
    nothing changed (an identical re-sent event)       nothing

Values are compared as they are stored, because 1, 1.0 and true are equal in Python and hash into different buckets.
Invariant: the stale parts are the union over all steps of a batch, never the difference between its first and last state. A step that is undone within the
batch may have reached readers before a crash, after which the same records came in another batch. So the row must be sent again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.features import FeatureSchema

# Flags of parts of a row, as plain integers: the operators of an enum cost more than everything else here. VECTOR stands for vector and bridge weights, which
# are made together.
NOTHING, ROW, SIGNATURE, VECTOR = 0, 1, 2, 4
EVERYTHING = ROW | SIGNATURE | VECTOR
_pack = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class Dependencies:
    """The dependency table of one model: which features its item half reads, and the flags of what an embedding touches."""

    inputs: tuple[str, ...]
    by_embedding: int

    def by_features(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """The flags of what a change from `before` to `after` makes stale; the two are known to differ somewhere. A missing value and null are the same."""
        changed = _pack(list(map(before.get, self.inputs))) != _pack(list(map(after.get, self.inputs)))
        return ROW | VECTOR if changed else ROW


def dependencies_of(schema: FeatureSchema) -> Dependencies:
    """The table of a model with this schema. The multimodal embedding is a component of its own, never a feature."""
    by_embedding = ROW
    if schema.multimodal is not None:
        by_embedding |= SIGNATURE
        if schema.multimodal_is_input:
            by_embedding |= VECTOR
    return Dependencies(tuple(f.name for f in schema.item_half_inputs if f.name != schema.multimodal), by_embedding)
