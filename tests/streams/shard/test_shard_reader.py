"""Items of a checkpoint in blocks: every live one, in order, whatever is dead or lacks an embedding, and however many a block has."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import Corrupted
from streams.core.ascending import AscendingLookup
from streams.core.item import StoredEmbedding, StoredFeatures, encode_item, pack_features
from streams.shard.directory import EMBEDDINGS, ITEMS
from streams.shard.shard_reader import ShardReader


class Pages:
    """Rows as infra/rocks_scan.py `Scan` gives them."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = iter(sorted(rows.items()))

    def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        return list(itertools.islice(self._rows, rows_max))


class Families:
    """A database of two families."""

    def __init__(self, families: dict[str, dict[bytes, bytes]]) -> None:
        self._families = families

    def get(self, family: str, key: bytes) -> None:
        return None

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> Pages:
        return Pages({k: v for k, v in self._families[family].items() if k >= start and (end is None or k < end)})


def item_of(number: int, there: bool, dead: bool, embedded: bool) -> bytes:
    stamp = (number, 0, 0)
    features = StoredFeatures(stamp, dead, b"" if dead else pack_features({"price": number}), stamp, 0) if there else None
    return encode_item(features, StoredEmbedding((number, 0), (number, 0), 1) if embedded else None)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=20), st.integers(1, 7))
def test_blocks_are_the_live_items_in_order(items: list[tuple[bool, bool, bool]], rows: int) -> None:
    """(whether the item has features, whether they are dead, whether it has an embedding)."""
    stored = {bytes([0, number]): item_of(number, *item) for number, item in enumerate(items)}
    embeddings = {bytes([0, number]): bytes([number] * 8) for number, (_, _, embedded) in enumerate(items) if embedded}
    reader = ShardReader(Families({ITEMS: stored, EMBEDDINGS: embeddings}))  # type: ignore[arg-type]
    blocks = list(reader.scan_blocks(rows=rows))
    live = [bytes([0, number]) for number, (there, dead, _) in enumerate(items) if there and not dead]
    assert [key for block in blocks for key in block.keys] == live
    assert [features for block in blocks for features in block.features] == [{"price": key[1]} for key in live]
    assert [values for block in blocks for values in block.embeddings] == [embeddings.get(key) for key in live]
    assert [int(stamp["features_version"]) for block in blocks for stamp in block.stamps_R] == [key[1] for key in live]
    assert all(0 < len(block) <= rows for block in blocks)


def test_an_embedding_that_an_item_names_and_the_shard_lacks_is_named() -> None:
    reader = ShardReader(Families({ITEMS: {b"k": item_of(1, True, False, True)}, EMBEDDINGS: {}}))  # type: ignore[arg-type]
    with pytest.raises(Corrupted, match="embedding_missing"):
        list(reader.scan_blocks())


def test_embeddings_of_no_item_between_two_keys_are_not_held() -> None:
    """A topic of embeddings may be of a far larger catalogue."""
    rows, held = {number.to_bytes(2, "big"): b"abcd" for number in range(1_000)}, []

    class Watched(Pages):
        def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
            held.append(len(embeddings.held))
            return super().take(rows_max)

    embeddings = AscendingLookup(Watched(rows).take, 10)
    first, last = min(rows), max(rows)
    assert embeddings.take([first, last]) == [rows[first], rows[last]] and 10 < max(held) <= 40
