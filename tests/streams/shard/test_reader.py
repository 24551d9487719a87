"""Items of a checkpoint in blocks: the same as one by one, whatever is dead or lacks an embedding, and however many a block has."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.core.item_state import DEAD_AT, EMBEDDING_HEADER, FEATURES_HEADER
from streams.shard.reader import ShardReader
from streams.shard.shard import EMBEDDINGS, FEATURES

RAW = b'{"price":1}'


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
    return bytes(head) + RAW


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=20), st.integers(1, 7))
def test_blocks_are_the_items_one_by_one(items: list[tuple[bool, bool, bool]], rows: int) -> None:
    """(whether the item has features, whether they are dead, whether it has an embedding)."""
    keys = [bytes([0, number]) for number in range(len(items))]
    features = {key: features_of(key[1], dead) for key, (there, dead, _) in zip(keys, items, strict=True) if there}
    embeddings = {
        key: bytes(EMBEDDING_HEADER.size) + bytes([key[1]] * 8) for key, (_, _, embedded) in zip(keys, items, strict=True) if embedded
    }
    reader = ShardReader(Families({FEATURES: features, EMBEDDINGS: embeddings}))  # type: ignore[arg-type]
    blocks = list(reader.scan_blocks(rows=rows))
    one_by_one = list(reader.scan_items())
    assert [key for block in blocks for key in block.keys] == [item.key for item in one_by_one]
    assert b"".join(block.orders_R.tobytes() for block in blocks) == b"".join(item.order for item in one_by_one)
    found = [None if e is None else e.tobytes() for block in blocks for e in block.embeddings]
    assert found == [None if item.embedding is None else item.embedding.tobytes() for item in one_by_one]
    assert all(0 < len(block) <= rows for block in blocks)
