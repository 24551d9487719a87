"""What broken senders send is judged by the shards as by the fold of the crash bench, which shares no code with them."""

import random

import pytest

from infra.kafka.reader import SourceRecord
from lab.demo.stage import SHARDS
from lab.system.bad_records import BadRecords
from lab.system.crash_fold import count_topic
from schemas.ids import IdKind
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.shard.decode import decode_source_record

FEATURES = {"price": 1.5, "brand": "b1", "stock": True, "tags": ["a", "b"], "gone": None}


def draw(seed: int, count: int) -> list[SourceRecord]:
    chance = random.Random(seed)
    bad = BadRecords(chance)
    records = []
    for offset in range(count):
        items = [(chance.randrange(200), chance.randrange(1 << 40), FEATURES) for _ in range(chance.choice((1, 1, 3)))]
        drawn = bad.draw(items)
        records.append(SourceRecord(drawn.topic, drawn.partition, offset, drawn.key, drawn.value))
    return records


@pytest.mark.parametrize("seed", range(4))
def test_every_bad_record_is_judged_alike(seed: int) -> None:
    accepted = rejected = 0
    for record in draw(seed, 400):
        judged = count_topic(record.topic, [record])
        shard = decode_source_record(record, IdKind.INT64, SHARDS)
        found = {(record.topic, record.partition, record.offset, rejection.index) for rejection in shard.rejected}
        assert found == judged.dead_letters, record
        assert len(shard) == judged.counts[record.partition]["consumed"], record
        accepted, rejected = accepted + len(shard.updates), rejected + len(shard.rejected)
    assert accepted > 100 and rejected > 100


def test_the_same_chance_draws_the_same_records_of_every_kind() -> None:
    records = draw(1, 300)
    assert records == draw(1, 300)
    assert {record.topic for record in records} == {ITEM_FEATURES, NEW_ITEMS}
    assert any(record.value is None for record in records)
    assert max(len(record.value or b"") for record in records) >= RECORD_BYTES_MAX


@pytest.mark.parametrize(("depth", "letters"), [(150, {1}), (197, {1}), (198, {1}), (199, {0}), (500_000, {0})])
@pytest.mark.parametrize("container", [b"[]", b"{ }", b'[""]', b"[[],1]"])
def test_a_value_deep_in_lists_is_a_dead_letter_and_no_error(depth: int, letters: set[int], container: bytes) -> None:
    """Three of the 200 are the record's own. A value in one container more does not read; an empty container is a value."""
    filled = container not in (b"[]", b"{ }")
    deep = b"[" * (depth - 1 - filled) + container + b"]" * (depth - 1 - filled)
    value = b'{"schema":1,"updates":[{"item_id":0,"version":1},{"item_id":0,"version":%b}]}' % deep
    record = SourceRecord(ITEM_FEATURES, 0, 7, b"", value)
    assert {index for *_, index in count_topic(ITEM_FEATURES, [record]).dead_letters} == letters
    assert {rejection.index for rejection in decode_source_record(record, IdKind.INT64, SHARDS).rejected} == letters
