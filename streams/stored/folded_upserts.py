"""Upserts of many items folded at once: stored components in, the components after the batch out, as bytes in one buffer.

Here: `find_items` and `fold_upserts`. Not here: the fold rule, which is `fold_features` of core/item_state.py, for one update at a time, and the
specification; items that deletes or embeddings of the same batch touch, too (core/item_change.py); rows (streams/shard/upsert_rows.py).
Invariant: the bytes of a component are those of `encode_features_component(fold_features(...))`, and outcomes and steps are those of `ItemChange`.

Arrays: U upserts in their order, I items that they touch, S steps (upserts that told something new of a live item), T bytes.
"""

import threading
from dataclasses import dataclass

import numpy as np

from infra.held_rows import hash_key
from infra.joined import Joined, copy_into, is_same, join_some, pack_into, read_only
from schemas.model.compiled import int64, kernel, part
from streams.core.item_state import CHANGED_AT, DEAD_AT, FEATURES_HEADER, HASH_AT, FeaturesUpdate
from streams.stored.bucket_hash import WORK_WORDS, digest_64, start_words
from streams.stored.feature_texts import FeatureTexts
from streams.stored.item_block import EmbeddingValues, check_embeddings, check_features, cut_embedding_values, cut_orders
from streams.stored.upserts import Upserts

# What became of an update: it lost to a newer one; it told what was known; it told something new of a live item; or the item had no row before.
SUPERSEDED, REPEATED, CHANGED, APPEARED = range(4)
_HEAD = FEATURES_HEADER.size
_OFFSET_AT, _INDEX_AT = 8, 16  # in an order, with which a header begins
_UNSALTED_8 = start_words(b"")
_loaded = threading.Event()


@dataclass(frozen=True, slots=True)
class ChangedTexts:
    """S steps between two live states that differ: items_S int64, the places of their items, and the S texts of features before and after each step."""

    items_S: np.ndarray
    before: FeatureTexts
    after: FeatureTexts


@dataclass(frozen=True, slots=True)
class FoldedUpserts:
    """I items after the batch.

    outcomes_I   uint8: the greatest outcome of an item's upserts, SUPERSEDED to APPEARED
    keys         index keys
    components   components of features, as they are to be stored after the batch
    before       components of features, as they were stored before it; none for an item that was not stored
    embeddings   components of embeddings, as they are stored
    steps        steps between live states
    applied      how many upserts were not superseded
    """

    outcomes_I: np.ndarray
    keys: Joined
    components: Joined
    before: Joined
    embeddings: Joined
    steps: ChangedTexts
    applied: int

    def __len__(self) -> int:
        return len(self.outcomes_I)

    def places(self, outcome: int) -> np.ndarray:
        """The places int64 of the items with this outcome, ascending."""
        return np.flatnonzero(self.outcomes_I == outcome)

    def hashes_before(self, places: np.ndarray) -> np.ndarray:
        """uint64 [R]: the input hashes of the rows that were made before the batch, of items that were live then."""
        hashes: np.ndarray = cut_orders(self.before.take(places), self.embeddings.take(places))["input_hash"]
        return hashes

    def orders(self, places: np.ndarray) -> np.ndarray:
        """ORDER array [R]: the orders of these items after the batch."""
        return cut_orders(self.components.take(places), self.embeddings.take(places))

    def features(self, places: np.ndarray) -> FeatureTexts:
        """The features of these items after the batch, R texts."""
        components = self.components.take(places)
        return FeatureTexts(components.bytes_T, components.starts_R + _HEAD, components.ends_R)

    def embedding_values(self, places: np.ndarray) -> EmbeddingValues:
        """The embeddings of these items, R values or None."""
        return cut_embedding_values(self.embeddings.take(places))

    def stored(self) -> tuple[Joined, Joined]:
        """Keys and components of every item whose component is to be written: those of which an upsert was applied."""
        places = np.flatnonzero(self.outcomes_I != SUPERSEDED)
        return self.keys.take(places), self.components.take(places)


def find_items(upserts: Upserts) -> tuple[Joined, np.ndarray]:
    """(keys of the I items that upserts touch, in the order in which they are met; item_U int64, the place of each upsert's item among them)."""
    keys, item_U = upserts.columns().keys, np.empty(len(upserts), np.int64)
    first_I = np.empty(len(upserts), np.int64)
    slots_S = np.full(1 << (2 * len(upserts)).bit_length(), -1, np.int64)
    items = _find_items(*keys, slots_S, item_U, first_I)
    return keys.take(first_I[:items]), item_U


def fold_upserts(upserts: Upserts, items: Joined, item_U: np.ndarray, features: Joined, embeddings: Joined) -> FoldedUpserts:
    """Folds U upserts, in their order, into I items.

    `items` and `item_U` are what `find_items` gave; `features` and `embeddings` are the items' components as they are stored, none where there is none. Raises
    Corrupted (`bad_features_component`, `bad_embedding_component`).
    """
    check_features(features)
    check_embeddings(embeddings)
    _, orders_U3, raw = upserts.columns()
    count, sizes_I, is_stored_I = len(upserts), features.sizes(), features.starts_R >= 0
    at, starts_I, ends_I = int(sizes_I.sum()), np.cumsum(sizes_I) - sizes_I, np.cumsum(sizes_I)
    starts_I[~is_stored_I] = -1
    arena_T = np.empty(at + int((raw.ends_R - raw.starts_R).sum()) + _HEAD * count, np.uint8)
    pack_into(features, arena_T, 0)
    before = Joined(read_only(arena_T), starts_I.copy(), ends_I.copy())
    outcomes_I, steps_U5 = np.zeros(items.rows, np.uint8), np.empty((count, 5), np.int64)
    steps, applied = _fold(
        arena_T, at, item_U, *raw, orders_U3, _UNSALTED_8, np.empty(WORK_WORDS, np.uint64), starts_I, ends_I, outcomes_I, steps_U5
    )
    items_S, *spans = np.ascontiguousarray(steps_U5[:steps].T)
    texts_T = before.bytes_T
    changed = ChangedTexts(items_S, FeatureTexts(texts_T, spans[0], spans[1]), FeatureTexts(texts_T, spans[2], spans[3]))
    return FoldedUpserts(outcomes_I, items, Joined(texts_T, starts_I, ends_I), before, embeddings, changed, applied)


@kernel
def _find_items(
    keys_T: np.ndarray, starts_U: np.ndarray, ends_U: np.ndarray, slots_S: np.ndarray, item_U: np.ndarray, first_I: np.ndarray
) -> int:
    """Number of items. Fills in item_U, the item of each upsert, and first_I, the first upsert of each item; slots_S is a hash table of items."""
    items, mask = 0, slots_S.shape[0] - 1
    for u in range(starts_U.shape[0]):
        slot = hash_key(keys_T, starts_U[u], ends_U[u]) & mask
        while slots_S[slot] >= 0:
            first = first_I[slots_S[slot]]
            if is_same(keys_T, starts_U[first], ends_U[first], keys_T, starts_U[u], ends_U[u]):
                break
            slot = (slot + 1) & mask
        if slots_S[slot] < 0:
            slots_S[slot], first_I[items] = items, u
            items += 1
        item_U[u] = slots_S[slot]
    return items


@part
def _read_whole(text: np.ndarray, at: int, size: int) -> int:
    """The little-endian whole number of `size` bytes at `at`."""
    whole = np.uint64(0)
    for i in range(size):
        whole |= np.uint64(text[at + i]) << np.uint64(8 * i)
    return int64(whole)


@part
def _write_whole(out: np.ndarray, at: int, size: int, whole: int) -> None:
    for i in range(size):
        out[at + i] = np.uint8((np.uint64(whole) >> np.uint64(8 * i)) & np.uint64(255))


@part
def _write_order(out: np.ndarray, at: int, order_3: np.ndarray) -> None:
    _write_whole(out, at, 8, order_3[0])
    _write_whole(out, at + _OFFSET_AT, 8, order_3[1])
    _write_whole(out, at + _INDEX_AT, 2, order_3[2])


@part
def _is_newer(order_3: np.ndarray, text: np.ndarray, at: int) -> bool:
    """Whether an order is above that of the component at `at`."""
    version, offset = _read_whole(text, at, 8), _read_whole(text, at + _OFFSET_AT, 8)
    if order_3[0] != version:
        return order_3[0] > version
    if order_3[1] != offset:
        return order_3[1] > offset
    return order_3[2] > _read_whole(text, at + _INDEX_AT, 2)


@kernel
def _fold(
    arena_T: np.ndarray,
    at: int,
    item_U: np.ndarray,
    raw_T: np.ndarray,
    raw_starts_U: np.ndarray,
    raw_ends_U: np.ndarray,
    orders_U3: np.ndarray,
    start_8: np.ndarray,
    work: np.ndarray,
    starts_I: np.ndarray,
    ends_I: np.ndarray,
    outcomes_I: np.ndarray,
    steps_U5: np.ndarray,
) -> tuple[int, int]:
    """(number of steps, number of upserts applied). starts_I, ends_I: the component of each item in the arena, moved when an upsert is applied. The free part
    of the arena begins at `at`. steps_U5: item, begin and end of the features before, begin and end of those after."""
    steps, applied = 0, 0
    for u in range(item_U.shape[0]):
        item, raw, raw_end = item_U[u], raw_starts_U[u], raw_ends_U[u]
        start, end = starts_I[item], ends_I[item]
        if start >= 0 and not _is_newer(orders_U3[u], arena_T, start):
            continue
        is_live = start >= 0 and arena_T[start + DEAD_AT] == 0
        applied, starts_I[item] = applied + 1, at
        if is_live and is_same(arena_T, start + _HEAD, end, raw_T, raw, raw_end):
            outcome = REPEATED
            copy_into(arena_T, start, end, arena_T, at)
            _write_order(arena_T, at, orders_U3[u])
            at += end - start
        else:
            outcome = CHANGED if is_live else APPEARED
            _write_order(arena_T, at, orders_U3[u])
            _write_order(arena_T, at + CHANGED_AT, orders_U3[u])
            arena_T[at + DEAD_AT] = 0
            _write_whole(arena_T, at + HASH_AT, 8, int64(digest_64(raw_T, raw, raw_end - raw, start_8, work)))
            text = at + _HEAD
            at = copy_into(raw_T, raw, raw_end, arena_T, text)
            if is_live:
                steps_U5[steps, 0] = item
                steps_U5[steps, 1], steps_U5[steps, 2], steps_U5[steps, 3], steps_U5[steps, 4] = start + _HEAD, end, text, at
                steps += 1
        ends_I[item] = at
        if outcome > outcomes_I[item]:
            outcomes_I[item] = outcome
    return steps, applied


def compile_fold() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    upserts = Upserts.of([FeaturesUpdate(b"", 1, 0, 0, False, b"{}")])
    none = join_some([None])
    fold_upserts(upserts, *find_items(upserts), none, none)
    _loaded.set()


def is_fold_loaded() -> bool:
    """Whether the kernel is loaded, so that a fold does not wait for a compiler."""
    return _loaded.is_set()
