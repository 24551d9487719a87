"""A micro-batch folded into the items that a shard has stored."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infra.rocks import Database
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.item import FeaturesUpdate, ItemChange, StoredItem, decode_item, encode_item
from streams.core.shard_state import TopicCounts
from streams.shard.decode import DecodedRecord
from streams.shard.directory import EMBEDDINGS, ITEMS, embedding_missing

_NOT_STORED = StoredItem(None, None)


@dataclass(frozen=True, slots=True)
class FoldedBatch:
    """Every item of a micro-batch, once, and what became of the updates."""

    items: list[ItemChange]
    counts: dict[str, TopicCounts]

    def stored_items(self) -> list[tuple[bytes, bytes]]:
        """Keys and values of the family `items` that the batch changes."""
        return [(item.key, encode_item(item.features, item.embedding)) for item in self.items if item.is_changed]

    def stored_embeddings(self) -> list[tuple[bytes, bytes]]:
        """Keys and values of the family `embeddings` that the batch changes."""
        return [(item.key, item.embedding_values) for item in self.items if item.embedding_values is not None]


def fold_batch(decoded: Sequence[DecodedRecord], stored: Database) -> FoldedBatch:
    """Folds decoded records, each topic's in offset order, into the items that a shard has stored."""
    updates = [update for one in decoded for update in one.updates]
    keys = list(dict.fromkeys([update.key for update in updates]))
    items = {
        key: ItemChange(key, _NOT_STORED if value is None else decode_item(value))
        for key, value in zip(keys, stored.multi_get(ITEMS, keys), strict=True)
    }
    applied = Counter[str]()
    for update in updates:
        if items[update.key].take(update):
            applied[ITEM_FEATURES if isinstance(update, FeaturesUpdate) else NEW_ITEMS] += 1
    return FoldedBatch(list(items.values()), _count(decoded, applied))


def read_embeddings(stored: Database, items: Sequence[ItemChange]) -> list[bytes | None]:
    """The embeddings of some items of a batch after it: float32 bytes, or None. Only those that the batch did not bring are read.

    Raises Corrupted (`embedding_missing`) where an item names an embedding that is not stored.
    """
    asked = [item for item in items if item.embedding_values is None and item.embedding is not None]
    found = dict(zip([item.key for item in asked], stored.multi_get(EMBEDDINGS, [item.key for item in asked]), strict=True))
    for key, values in found.items():
        if values is None:
            raise embedding_missing(key)
    return [found.get(item.key) if item.embedding_values is None else item.embedding_values for item in items]


def _count(decoded: Sequence[DecodedRecord], applied: Counter[str]) -> dict[str, TopicCounts]:
    """By topic; updates that were neither applied nor rejected are superseded."""
    counts = {}
    for topic in (ITEM_FEATURES, NEW_ITEMS):
        some = [one for one in decoded if one.record.topic == topic]
        consumed, rejected = sum(map(len, some)), sum([len(one.rejected) for one in some])
        counts[topic] = TopicCounts(consumed, applied[topic], consumed - applied[topic] - rejected, rejected)
    return counts
