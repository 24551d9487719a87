"""The table of topics: what the protocol needs of retention, compaction and co-partitioning."""

from schemas.events import RECORDS
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, REPORTS, SHARD_TOPICS, TOPICS

BY_NAME = {t.name: t for t in TOPICS}


def test_only_user_features_is_compacted() -> None:
    assert [t.name for t in TOPICS if t.compacted] == ["user-features"]


def test_every_input_topic_has_its_record_and_its_dead_letters() -> None:
    inputs = [name for name in RECORDS if name not in ("index-events", *REPORTS)]
    assert all(name in BY_NAME and DEAD_LETTER_PREFIX + name in BY_NAME for name in inputs)


def test_the_topics_of_a_shard_and_its_deltas_have_equal_partitions() -> None:
    assert {BY_NAME[name].partition_count(8, 3) for name in (*SHARD_TOPICS, "index-deltas")} == {8}


def test_a_broker_accepts_every_record_we_accept() -> None:
    assert all(int(t.config()["max.message.bytes"]) > RECORD_BYTES_MAX for t in TOPICS)
