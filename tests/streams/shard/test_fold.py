"""What a micro-batch reads and stores, and rows whose stored form does not fit the item."""

from pathlib import Path

import pytest

from infra.kafka.reader import SourceRecord
from schemas.errors import Corrupted
from streams.shard.directory import EMBEDDINGS, INCREMENTS, increment_prefix
from streams.shard.shard import Shard
from tests.streams.shard_world import ITEMS, HashEncoder, embed, features_record, new_items_record, open_test_shard, upsert

VERSION, MANY = 3, 8


def record(offset: int, version: int, stock: int) -> SourceRecord:
    return features_record(offset, *(upsert(item, version, brand="x", stock=stock) for item in ITEMS[:MANY]))


def put(shard: Shard, family: str, key: bytes, value: bytes | None) -> None:
    """Changes the database under the shard, which reads it again afterwards."""
    batch = shard.database.new_batch()
    if value is None:
        batch.delete(family, key)
    else:
        batch.put(family, key, value)
    shard.database.write(batch)
    shard.recover()
    for version in shard.needs_encoders():
        shard.attach_encoder(HashEncoder(version.version))


def test_a_row_that_another_state_made_is_encoded_and_a_torn_one_is_named(tmp_path: Path) -> None:
    shard, encoder = open_test_shard(tmp_path), HashEncoder(VERSION)
    shard.start_version(encoder, {})
    shard.apply([record(0, 1, 1)])
    assert (encoder.encoded, encoder.rewritten) == (MANY, 0)
    shard.apply([record(1, 2, 2)])
    assert (encoder.encoded, encoder.rewritten) == (MANY, MANY)
    rows = list(shard.database.scan(INCREMENTS, increment_prefix(VERSION)))
    put(shard, INCREMENTS, rows[0][0], rows[0][1][:28] + b"\0" * 8 + rows[0][1][36:])  # another input hash
    put(shard, INCREMENTS, rows[1][0], None)
    shard.apply([record(2, 3, 3)])
    assert (encoder.encoded, encoder.rewritten) == (MANY + 2, 2 * MANY - 2)
    put(shard, INCREMENTS, rows[0][0], rows[0][1][:-1])
    with pytest.raises(Corrupted, match="bad_increment"):
        shard.apply([record(3, 4, 4)])
    assert shard.next_offsets["item-features"] == 3
    shard.close()


def test_a_change_of_features_reads_no_embedding_unless_the_network_runs(tmp_path: Path) -> None:
    shard, encoder = open_test_shard(tmp_path), HashEncoder(VERSION)
    shard.start_version(encoder, {})
    shard.apply([new_items_record(0, embed(ITEMS[0], 1, 2, 3, 4)), features_record(0, upsert(ITEMS[0], 1, brand="x", stock=1))])
    ((key, values),) = list(shard.database.scan(EMBEDDINGS))
    put(shard, EMBEDDINGS, key, None)
    shard.apply([features_record(1, upsert(ITEMS[0], 2, brand="x", stock=2))])
    assert (encoder.encoded, encoder.rewritten) == (1, 1)
    with pytest.raises(Corrupted, match="embedding_missing"):
        shard.apply([features_record(2, upsert(ITEMS[0], 3, brand="y", stock=2))])
    put(shard, EMBEDDINGS, key, values)
    shard.apply([features_record(2, upsert(ITEMS[0], 3, brand="y", stock=2))])
    assert shard.next_offsets["item-features"] == 3
    shard.close()
