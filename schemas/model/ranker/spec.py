"""Sizes of the ranker, which part of a history it reads, and the rows of its item table. No torch.

Source: RelayGR (prefix, suffix, candidates); HSTU (the layers). Differs: positions are rotations (RoPE) instead of a learnt bias, which made a prefix of
1,024 tokens 1.8 times as long to compute on a CPU.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import Misconfigured
from schemas.ids import Id, hash_bucket
from schemas.limits import BEHAVIOURS_PER_USER_MAX, HASH_BUCKETS_MAX, WIDTH_MAX

_ITEM_SALT = b"ranker-item"  # hash salt of the item table
_ITEMS_KEPT = 1_000_000  # hashed ids in memory
_BOUNDS = {
    "width": (8, WIDTH_MAX),
    "heads": (1, 64),
    "layers": (1, 64),
    "item_buckets": (2, HASH_BUCKETS_MAX),
    "history_max": (1, BEHAVIOURS_PER_USER_MAX),
    "history_step": (1, BEHAVIOURS_PER_USER_MAX),
    "attention_norm": (1, BEHAVIOURS_PER_USER_MAX),
}


@dataclass(frozen=True, slots=True)
class RankerSpec:
    """Raises Misconfigured (`bad_model_spec`) for sizes that make no ranker.

    width, heads, layers   D, H and the number of HSTU layers
    item_buckets           rows of the item table; ids are hashed into all but the first, which stands for none
    history_max            the most behaviours that one ranking reads
    history_step           the oldest behaviour that is read moves by so many at once, so that a kept prefix stays usable in between
    attention_norm         N, which divides every attention sum. Never the length of a sequence: then the prefix would depend on what follows
    """

    width: int = 64
    heads: int = 2
    layers: int = 2
    item_buckets: int = 32_768
    history_max: int = 2_048
    history_step: int = 512
    attention_norm: int = 512

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Misconfigured("bad_model_spec", f"ranker.{name} = {value!r}, expected a whole number from {least} to {most:,}")
        if self.width % (2 * self.heads):
            raise Misconfigured("bad_model_spec", f"ranker.width = {self.width}, expected a multiple of 2 heads = {2 * self.heads}")
        if self.history_step > self.history_max:
            text = f"ranker.history_step = {self.history_step}, expected at most ranker.history_max = {self.history_max}"
            raise Misconfigured("bad_model_spec", text)


def window_start(spec: RankerSpec, length: int) -> int:
    """The first behaviour that a ranking of a history of `length` reads: 0, or the least multiple of `history_step` that leaves at most `history_max`."""
    beyond = max(0, length - spec.history_max)
    return -(-beyond // spec.history_step) * spec.history_step


_row = functools.lru_cache(_ITEMS_KEPT, typed=True)(hash_bucket)


def encode_items(spec: RankerSpec, items: Sequence[Id]) -> np.ndarray:
    """int64 [n]: rows of the ranker's item table."""
    return np.fromiter((_row(item, spec.item_buckets, _ITEM_SALT) for item in items), np.int64, len(items))
