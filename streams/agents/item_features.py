"""The agent of item-features: batches of the topic go to the shards of their partitions (docs/PROTOCOL.md, A).

Here: what Faust's agent calls. Not here: the agent's shell (streams/faust_shell.py), the shard (streams/shard/shard.py).
"""

from collections.abc import Sequence

from infra.kafka.reader import SourceRecord
from schemas.topics import ITEM_FEATURES
from streams.owned_shards import OwnedShards


async def handle_item_features(owned: OwnedShards, records: Sequence[SourceRecord]) -> None:
    """Returns when every record is in its shard, or the shard has another owner."""
    assert all(r.topic == ITEM_FEATURES for r in records)
    await owned.apply(records)
