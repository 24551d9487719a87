"""Whether retention has removed records of items that a shard still needs: a check of `aif doctor`.

A shard continues at its next offset. If the log begins later, its worker refuses to start (`log_gone`): it was away or too slow. A new owner without the
shard's directory needs a snapshot that the log completes. Both are checked from outside, by the newest deltas and by the snapshots in the store.
"""

from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

from infra.index.delta_tail import DeltaTail
from infra.index.store import IndexStore
from infra.kafka.admin import start_offsets
from infra.kafka.admin_client import KafkaAdmin
from infra.kafka.security import Bootstrap
from schemas.errors import AifError
from schemas.index.shard_snapshot import decode_snapshot
from schemas.topics import SHARD_TOPICS

_TAIL_RECORDS = 20  # of a partition of index-deltas: each says how far its shard is

Offsets = Mapping[str, int]  # by source topic


def find_gaps(bootstrap: Bootstrap, prefix: str, store: IndexStore, deadline_s: float) -> tuple[list[str], list[str]]:
    """By shard, records that were removed before the shard read them, and removed records that no snapshot has. Raises Unavailable."""
    starts = {topic: start_offsets(bootstrap, prefix + topic, deadline_s=deadline_s) for topic in SHARD_TOPICS}
    # index-deltas forgets sooner than its sources: after a long absence only the group knows how far a shard was.
    told = _fetch_committed(bootstrap, prefix, deadline_s)
    with DeltaTail(bootstrap, prefix, _TAIL_RECORDS, deadline_s) as tail:
        told |= {shard: dict(zip(SHARD_TOPICS, header.next_offsets, strict=True)) for shard, header in tail.newest().items()}
    gone, bare = [], []
    for shard in sorted(set.intersection(*(set(by_shard) for by_shard in starts.values()))):  # one of them may have been grown
        start = {topic: starts[topic][shard] for topic in SHARD_TOPICS}
        if shard in told and (missing := _describe_missing(shard, told[shard], start)):
            gone.append(missing)
        elif any(start.values()) and all(_describe_missing(shard, at, start) for at in _snapshot_offsets(store, shard)):
            bare.append(f"shard {shard}: the log begins at {start}, and no snapshot is as new")
    return gone, bare


def _describe_missing(shard: int, next_offsets: Offsets, start: Offsets) -> str:
    """Name the offsets between the next ones and the log's beginning; empty if there are none."""
    parts = [
        f"{topic} {next_offsets[topic]} to {start[topic] - 1} are gone" for topic in SHARD_TOPICS if next_offsets[topic] < start[topic]
    ]
    return f"shard {shard}: " + ", ".join(parts) if parts else ""


def _fetch_committed(bootstrap: Bootstrap, prefix: str, deadline_s: float) -> dict[int, Offsets]:
    """By shard the next offsets that the workers' group has committed, a moment behind the shard's own; without the shards that no worker has had yet."""
    client = KafkaAdmin(bootstrap).client
    group = f"{prefix}shards"
    try:
        asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=deadline_s)
        places = asked[group].result().topic_partitions
    except KafkaException:  # no worker was ever here
        return {}
    offsets = {(place.topic.removeprefix(prefix), place.partition): place.offset for place in places}
    shards = {shard for topic, shard in offsets if topic in SHARD_TOPICS and all(offsets.get((t, shard), -1) >= 0 for t in SHARD_TOPICS)}
    return {shard: {topic: offsets[topic, shard] for topic in SHARD_TOPICS} for shard in shards}


def _snapshot_offsets(store: IndexStore, shard: int) -> list[Offsets]:
    found = []
    for path in store.list(f"snapshots/{shard:05d}/"):
        if path.endswith(".json"):
            try:
                found.append(decode_snapshot(store.get(path)).next_offsets)
            except AifError:  # damaged, or just removed: no use to a new owner
                continue
    return found
