"""A micro-batch folded into the components that a shard has stored: many upserts together, every other update item by item.

Here: which update goes which way, what is read for it, what is counted. Not here: the fold of one item (core/item_change.py), of many upserts
(stored/folded_upserts.py), rows, the WriteBatch (shard.py).
Invariant: both ways give the same components, rows and counts. Within a batch all updates of an item go the same way, because they have an order.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infra.joined import join_stored
from infra.journaled_rocks import JournaledDatabase
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item_change import ItemChange
from streams.core.item_state import (
    FeaturesUpdate,
    decode_embedding_component,
    decode_features_component,
    encode_embedding_component,
    encode_features_component,
)
from streams.core.shard_state import TopicCounts
from streams.shard.decode import DecodedRecord, Update
from streams.stored.folded_upserts import FoldedUpserts, find_items, fold_upserts
from streams.stored.upserts import Upserts

FEATURES, EMBEDDINGS = "features", "embeddings"
TOGETHER_MIN = 8  # upserts; for fewer, arrays cost more than they save
_NO_UPSERTS = Upserts.of([])

Component = tuple[str, bytes, bytes]  # column family, key, value


@dataclass(frozen=True, slots=True)
class FoldedBatch:
    """Every item of a micro-batch, once: in `items`, or in `upserts` (None if there were too few)."""

    items: list[ItemChange]
    upserts: FoldedUpserts | None
    counts: dict[str, TopicCounts]

    def components(self) -> Iterator[Component]:
        """The changed components of `items`, to be stored."""
        for item in self.items:
            if item.features is not None and item.features is not item.before_features:
                yield FEATURES, item.key, encode_features_component(item.features)
            if item.embedding is not None and item.embedding is not item.before_embedding:
                yield EMBEDDINGS, item.key, encode_embedding_component(item.embedding)


def fold_batch(decoded: Sequence[DecodedRecord], stored: JournaledDatabase, together: bool) -> FoldedBatch:
    """Folds decoded records, each topic's in offset order. `together`: whether the kernels for many upserts are there."""
    upserts, others = split_updates([one.updates for one in decoded], TOGETHER_MIN if together else sys.maxsize)
    applied, folded = Counter[str](), None
    if len(upserts):
        items, item_U = find_items(upserts)
        folded = fold_upserts(upserts, items, item_U, stored.get_joined(FEATURES, items), stored.get_joined(EMBEDDINGS, items))
        applied[ITEM_FEATURES] += folded.applied
    changes = _load_items(others, stored)
    for update in others:
        applied[ITEM_FEATURES if isinstance(update, FeaturesUpdate) else NEW_ITEMS] += changes[update.key].take(update)
    return FoldedBatch(list(changes.values()), folded, _count(decoded, applied))


def split_updates(updates: Sequence[Sequence[Update]], upserts_min: int) -> tuple[Upserts, list[Update]]:
    """(upserts of items that nothing else in the batch touches, none if fewer than `upserts_min`; the other updates), each in their order; given the updates of
    each record."""
    if sum(map(len, updates)) < upserts_min:
        return _NO_UPSERTS, [u for one in updates for u in one]
    touched = {u.key for one in updates if not isinstance(one, Upserts) for u in one if not isinstance(u, FeaturesUpdate) or u.dead}
    together, others = list[Upserts](), list[Update]()
    for one in updates:
        if not isinstance(one, Upserts):
            others += [u for u in one if u.key in touched]
            one = Upserts.of([u for u in one if isinstance(u, FeaturesUpdate) and u.key not in touched])
        elif touched and not touched.isdisjoint(keys := one.columns().keys.present()):
            others += [u for u in one if u.key in touched]
            one = one.take([place for place, key in enumerate(keys) if key not in touched])
        together.append(one)
    upserts = Upserts.join(together)
    return (upserts, others) if len(upserts) >= upserts_min else (_NO_UPSERTS, [u for one in updates for u in one])


def _load_items(updates: Sequence[Update], stored: JournaledDatabase) -> dict[bytes, ItemChange]:
    """The stored components of every item that the updates touch."""
    keys = list(dict.fromkeys(update.key for update in updates))
    if not keys:
        return {}
    joined = join_stored(keys)
    features, embeddings = (stored.get_joined(family, joined).to_list() for family in (FEATURES, EMBEDDINGS))
    return {
        key: ItemChange(key, None if f is None else decode_features_component(f), None if e is None else decode_embedding_component(e))
        for key, f, e in zip(keys, features, embeddings, strict=True)
    }


def _count(decoded: Sequence[DecodedRecord], applied: Counter[str]) -> dict[str, TopicCounts]:
    """By topic; what was neither applied nor rejected was superseded."""
    counts = {}
    for topic in (ITEM_FEATURES, NEW_ITEMS):
        some = [one for one in decoded if one.record.topic == topic]
        consumed, rejected = sum(map(len, some)), sum([len(one.rejected) for one in some])
        counts[topic] = TopicCounts(consumed, applied[topic], consumed - applied[topic] - rejected, rejected)
    return counts
