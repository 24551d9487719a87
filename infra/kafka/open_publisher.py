"""A publisher for the topics that are on the broker: of `aif publish`, `aif import` and whoever else sends as the settings say.

Here: partition counts from the broker's topics, as a wrong setting would send ids to other shards. Not here: sending (publisher.py).
"""

from infra.kafka.admin import fetch_topics
from infra.kafka.publisher import Publisher
from infra.settings import InfraSettings
from schemas.errors import Unavailable
from schemas.topics import ITEM_FEATURES, USER_FEATURES


def open_publisher(settings: InfraSettings, client: str) -> Publisher:
    """Connects. Raises Unavailable (`unknown_topic`) where no topics are."""
    bootstrap, prefix = settings.bootstrap_servers(), settings.kafka.topic_prefix
    found = fetch_topics(bootstrap, prefix)
    if ITEM_FEATURES not in found or USER_FEATURES not in found:
        raise Unavailable("unknown_topic", f"{prefix}{ITEM_FEATURES} is not on {bootstrap}; run `aif topics apply` or start a worker first")
    shards, user_partitions = found[ITEM_FEATURES].partitions, found[USER_FEATURES].partitions
    return Publisher(bootstrap, prefix, client, shards, user_partitions, settings.index.id_kind)
