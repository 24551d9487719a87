"""Outbox entries as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Corrupted
from streams.shard.outbox import OutboxEntry, decode_outbox_entry, encode_outbox_entry, encode_outbox_key

optional = st.none() | st.binary(max_size=20)
entries = st.builds(
    OutboxEntry,
    st.integers(0, 2**64 - 1),
    st.sampled_from(["index-deltas", "dlq.item-features"]),
    st.none() | st.integers(0, 4095),
    optional,
    optional,
    st.lists(st.tuples(st.text(st.characters(codec="ascii"), max_size=8), optional), max_size=4).map(tuple),
)


@given(entries)
def test_an_entry_comes_back_as_it_was_also_with_absent_and_empty_fields(entry: OutboxEntry) -> None:
    assert decode_outbox_entry(encode_outbox_key(entry.sequence), encode_outbox_entry(entry)) == entry


@given(entries, st.data())
def test_a_torn_entry_is_named(entry: OutboxEntry, data: st.DataObject) -> None:
    raw = encode_outbox_entry(entry)
    torn = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(Corrupted, match="bad_outbox_entry"):
        decode_outbox_entry(encode_outbox_key(entry.sequence), torn)


def test_keys_sort_as_sequences_do() -> None:
    sequences = [0, 1, 255, 256, 65_536, 2**40]
    assert sorted(map(encode_outbox_key, reversed(sequences))) == [encode_outbox_key(s) for s in sequences]
