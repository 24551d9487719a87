"""Samples of items: which keys, and bytes that read back or are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import AifError
from schemas.index.item_sample import ITEM_BYTES_MAX, ITEMS_MAX, KeySampler, SampledItem, decode_sample, encode_sample

ITEMS = [SampledItem(b"\x80\0", b'{"price":1.0}', None), SampledItem("ü".encode(), '{"name":"ü"}'.encode(), bytes(8))]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=2_000), st.integers(1, 300))
def test_the_keys_are_those_of_the_smallest_hashes_however_the_rows_are_cut(hashes: list[int], rows: int) -> None:
    keys = [n.to_bytes(4) for n in range(len(hashes))]
    sampler = KeySampler()
    for at in range(0, len(keys), rows):
        sampler.add(keys[at : at + rows], np.array(hashes[at : at + rows], np.uint64))
    wanted = sorted(key for _, key in sorted(zip(hashes, keys, strict=True))[:ITEMS_MAX])
    assert sampler.keys == wanted


def test_a_sample_reads_back_without_items_that_are_too_large() -> None:
    large = SampledItem(b"x", b'"' + b"y" * ITEM_BYTES_MAX + b'"', None)
    assert decode_sample(encode_sample([*ITEMS, large])) == ITEMS and decode_sample(encode_sample([])) == []


def test_a_flipped_byte_is_refused() -> None:
    raw = encode_sample(ITEMS)
    for at in range(len(raw)):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(AifError):
            decode_sample(damaged)
