"""What Eq. 1 reads of a behaviour itself: its item and kind as rows of embedding tables, and its recency; and the category that stands for none.
No torch, so that serving shares them.

Arrays: L behaviours of a user, oldest first, S scales.
"""

from collections.abc import Sequence

import numpy as np

from schemas.ids import Id, hash_bucket
from schemas.model.spec import ModelSpec

BEHAVIOUR_ID_SALT = b"behaviour-item"  # hash salt of the behaviour item-id table
NO_CATEGORY = (1 << 62) - 1  # sorts after every bucket; pads a user's list of SIM categories


def encode_item_buckets(spec: ModelSpec, items: Sequence[Id]) -> np.ndarray:
    """int64 [len(items)]: rows of the behaviour item-id table; zeros if the model has none."""
    if not spec.item_id_buckets:
        return np.zeros(len(items), np.int64)
    return np.fromiter((hash_bucket(item, spec.item_id_buckets, BEHAVIOUR_ID_SALT) for item in items), np.int64, len(items))


def encode_recency(spec: ModelSpec, length: int) -> np.ndarray:
    """float32 [L, S]: exp(-newer / scale) of each behaviour of a history of `length`, where `newer` is how many newer behaviours the user has.

    It counts behaviours instead of time, so nothing in the user half depends on the clock (protocol D1). An answer can be recomputed from the order of a
    history alone. A behaviour has the same recency however many older ones are read.
    """
    newer_L = np.arange(length - 1, -1, -1)
    return np.exp(-newer_L[:, None] / np.array(spec.recency, np.float64)).astype(np.float32)


def encode_kind(spec: ModelSpec, kind: str) -> int:
    """Row of the behaviour-kind table; 0 = other."""
    kinds = spec.schema.behaviour_kinds
    return kinds.index(kind) + 1 if kind in kinds else 0
