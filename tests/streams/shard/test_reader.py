"""Items of a checkpoint in blocks: every live one, in order, whatever is dead or lacks an embedding, and however many a block has."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.core.item_state import DEAD_AT, EMBEDDING_HEADER, FEATURES_HEADER
from streams.shard.reader import ShardReader, _Embeddings
from streams.shard.shard import EMBEDDINGS, FEATURES


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


def features_of(number: int, dead: bool) -> bytes:
    head = bytearray(FEATURES_HEADER.size)
    head[0], head[DEAD_AT] = number, dead
    return bytes(head) + b'{"price":%d}' % number


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=20), st.integers(1, 7))
def test_blocks_are_the_live_items_in_order(items: list[tuple[bool, bool, bool]], rows: int) -> None:
    """(whether the item has features, whether they are dead, whether it has an embedding)."""
    keys = [bytes([0, number]) for number in range(len(items))]
    features = {key: features_of(key[1], dead) for key, (there, dead, _) in zip(keys, items, strict=True) if there}
    embeddings = {
        key: bytes(EMBEDDING_HEADER.size) + bytes([key[1]] * 8) for key, (_, _, embedded) in zip(keys, items, strict=True) if embedded
    }
    reader = ShardReader(Families({FEATURES: features, EMBEDDINGS: embeddings}))  # type: ignore[arg-type]
    blocks = list(reader.scan_blocks(rows=rows))
    live = [key for key, (there, dead, _) in zip(keys, items, strict=True) if there and not dead]
    assert [key for block in blocks for key in block.keys] == live
    assert [text for block in blocks for text in block.features] == [json.loads(features[key][FEATURES_HEADER.size :]) for key in live]
    found = [None if e is None else e.tobytes() for block in blocks for e in block.embeddings]
    assert found == [embeddings[key][EMBEDDING_HEADER.size :] if key in embeddings else None for key in live]
    assert all(0 < len(block) <= rows for block in blocks)


def test_embeddings_of_no_item_between_two_keys_are_not_held() -> None:
    """A topic of embeddings may be of a far larger catalogue."""
    rows, held = {number.to_bytes(2, "big"): bytes(EMBEDDING_HEADER.size) for number in range(1_000)}, []

    class Watched(Pages):
        def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
            held.append(len(embeddings._held))
            return super().take(rows_max)

    embeddings = _Embeddings(Watched(rows), 10)  # type: ignore[arg-type]
    first, last = min(rows), max(rows)
    assert embeddings.take([first, last]) == [rows[first], rows[last]] and 10 < max(held) <= 40
