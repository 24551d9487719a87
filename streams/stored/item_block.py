"""Items of a shard as it stores them, many at once: keys, orders, features and embeddings, cut out of the stored bytes without a Python object for each item.

Here: `ItemBlock`, `EmbeddingValues`, and the checks of stored components. Not here: reading them (streams/shard/reader.py), the bytes of one component
(core/item_state.py, the specification), columns (item_columns.py).

Arrays: R items, T bytes, M width of the embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infra.joined import Joined, copy_into, join_some, join_stored
from schemas.errors import Corrupted
from schemas.index.layout import HASH_FACTOR, ORDER
from schemas.model.compiled import kernel
from schemas.model.vector_blocks import address, load_word
from streams.core.item_state import CHANGED_AT, DEAD_AT, EMBEDDING_HEADER, FEATURES_HEADER, HASH_AT
from streams.stored.feature_texts import FeatureTexts

_FEATURES_HEAD, _EMBEDDING_HEAD = FEATURES_HEADER.size, EMBEDDING_HEADER.size
# Places in the header of an embedding, and in an order, of what the order repeats (core/item_state.py `order_of`).
_EMBEDDING_CHANGED, _EMBEDDING_HASH = 10, 20
_ORDER_EMBEDDING, _ORDER_HASH, _ORDER_BYTES = 18, 28, ORDER.itemsize
_FACTOR = np.uint64(HASH_FACTOR)
_BYTE = np.uint64(255)


class EmbeddingValues(Sequence[np.ndarray | None]):
    """R embeddings or None: embedding r is the float32 values in bytes_T[starts_R[r] : ends_R[r]], and there is none where starts_R[r] is -1. As a sequence
    it gives arrays, one at a time and no slices."""

    def __init__(self, bytes_T: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray) -> None:
        self.bytes_T, self.starts_R, self.ends_R = bytes_T, starts_R, ends_R

    @classmethod
    def join(cls, values: Sequence[bytes | None]) -> "EmbeddingValues":
        """Embeddings that lie apart, as bytes or None, copied into one buffer."""
        return cls(*join_some(values))

    def __len__(self) -> int:
        return len(self.starts_R)

    def __getitem__(self, place: Any) -> Any:
        start = self.starts_R[place]
        return None if start < 0 else np.frombuffer(self.bytes_T[start : self.ends_R[place]].tobytes(), np.float32)

    def take(self, places: np.ndarray) -> "EmbeddingValues":
        """The embeddings at some places, int64 or a bool mask [R], in the same buffer."""
        return EmbeddingValues(self.bytes_T, self.starts_R[places], self.ends_R[places])

    def stack(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(float32 [R, M], bool [R]) for M = `width`: the embeddings, with zeros where there is none of this width, and where there is one."""
        out_RM = np.zeros((len(self), width), np.float32)
        has_R = (self.starts_R >= 0) & (self.ends_R - self.starts_R == 4 * width)
        _copy_values(self.bytes_T, self.starts_R, has_R, 4 * width, out_RM.reshape(-1).view(np.uint8))
        return out_RM, has_R


@dataclass(frozen=True, slots=True)
class ItemBlock:
    """R live items in key order: their index keys, orders_R (ORDER [R]), features and embeddings."""

    keys: list[bytes]
    orders_R: np.ndarray
    features: FeatureTexts
    embeddings: EmbeddingValues

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: np.ndarray) -> "ItemBlock":
        """The items at some places, int64 [R]."""
        keys = [self.keys[place] for place in places.tolist()]
        return ItemBlock(keys, self.orders_R[places], self.features.take(places), self.embeddings.take(places))


def cut_item_block(keys: list[bytes], features: Joined, embeddings: Joined) -> ItemBlock:
    """A block of live items from their components as they are stored. Raises Corrupted (`bad_features_component`, `bad_embedding_component`)."""
    check_features(features)
    check_embeddings(embeddings)
    return ItemBlock(
        keys,
        cut_orders(features, embeddings),
        FeatureTexts(features.bytes_T, features.starts_R + _FEATURES_HEAD, features.ends_R),
        cut_embedding_values(embeddings),
    )


def cut_embedding_values(embeddings: Joined) -> EmbeddingValues:
    """The values in R components of embeddings, without their headers."""
    values_R = np.where(embeddings.starts_R < 0, -1, embeddings.starts_R + _EMBEDDING_HEAD)
    return EmbeddingValues(embeddings.bytes_T, values_R, embeddings.ends_R)


def cut_orders(features: Joined, embeddings: Joined) -> np.ndarray:
    """ORDER array [R] of live items: what `order_of` makes of their components of features and, where there is one, of embeddings."""
    orders = np.empty((len(features.starts_R), _ORDER_BYTES), np.uint8)
    _cut_orders(features.bytes_T, features.starts_R, embeddings.bytes_T, embeddings.starts_R, orders)
    return orders.reshape(-1).view(ORDER)


def check_features(joined: Joined) -> None:
    """Raises Corrupted (`bad_features_component`) if one of these components of features is shorter than its header."""
    sizes = (joined.ends_R - joined.starts_R)[joined.starts_R >= 0]
    if (sizes < _FEATURES_HEAD).any():
        raise Corrupted("bad_features_component", f"features component of {sizes.min()} bytes, expected at least {_FEATURES_HEAD}")


def find_live(features: Joined) -> np.ndarray:
    """The places int64 of those components of features that are no delete markers; none is missing. Raises Corrupted (`bad_features_component`)."""
    check_features(features)
    return np.flatnonzero(features.bytes_T[features.starts_R + DEAD_AT] == 0)


def check_embeddings(joined: Joined) -> None:
    """Raises Corrupted (`bad_embedding_component`) if one of these components is not a header and a whole number of float32 values."""
    sizes = (joined.ends_R - joined.starts_R)[joined.starts_R >= 0]
    torn = sizes[(sizes < _EMBEDDING_HEAD) | ((sizes - _EMBEDDING_HEAD) % 4 != 0)]
    if len(torn):
        raise Corrupted("bad_embedding_component", f"embedding component of {torn[0]} bytes, expected {_EMBEDDING_HEAD} + 4 a number")


@kernel
def _cut_orders(text_T: np.ndarray, starts_R: np.ndarray, bytes_T: np.ndarray, embedding_starts_R: np.ndarray, out: np.ndarray) -> None:
    """What `order_of` makes of each live item, side by side: uint8 [R, 37]."""
    for r in range(starts_R.shape[0]):
        start, embedding = starts_R[r], embedding_starts_R[r]
        for i in range(DEAD_AT - CHANGED_AT):
            out[r, i] = text_T[start + CHANGED_AT + i]
        hashed = load_word(address(text_T) + start + HASH_AT)
        for i in range(_ORDER_HASH - _ORDER_EMBEDDING):
            if embedding >= 0:
                out[r, _ORDER_EMBEDDING + i] = bytes_T[embedding + _EMBEDDING_CHANGED + i]
            else:
                out[r, _ORDER_EMBEDDING + i] = 255 if i < 8 else 0  # offset -1, index 0
        if embedding >= 0:
            hashed += _FACTOR * load_word(address(bytes_T) + embedding + _EMBEDDING_HASH)
        for i in range(8):
            out[r, _ORDER_HASH + i] = np.uint8((hashed >> np.uint64(8 * i)) & _BYTE)
        out[r, _ORDER_BYTES - 1] = text_T[start + DEAD_AT]


@kernel
def _copy_values(bytes_T: np.ndarray, starts_R: np.ndarray, has_R: np.ndarray, size: int, out_T: np.ndarray) -> None:
    for r in range(starts_R.shape[0]):
        if has_R[r]:
            copy_into(bytes_T, starts_R[r], starts_R[r] + size, out_T, size * r)


def compile_blocks() -> None:
    """Takes the kernels of this file from numba's cache, or compiles them."""
    block = cut_item_block([b""], join_stored([bytes(_FEATURES_HEAD) + b"{}"]), join_some([bytes(_EMBEDDING_HEAD + 4)]))
    block.embeddings.stack(1)
