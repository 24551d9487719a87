"""The agent of new-items: embeddings of items go to the shards of their partitions (docs/PROTOCOL.md, A).

Here: what Faust's agent calls. Not here: the agent's shell (streams/faust_shell.py), the shard (streams/shard/shard.py).
"""

from collections.abc import Sequence

from infra.kafka.reader import SourceRecord
from schemas.topics import NEW_ITEMS
from streams.owned_shards import OwnedShards


async def handle_new_items(owned: OwnedShards, records: Sequence[SourceRecord]) -> None:
    """Returns when every record is in its shard, or the shard has another owner."""
    assert all(r.topic == NEW_ITEMS for r in records)
    await owned.apply(records)
