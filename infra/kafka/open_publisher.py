"""Opens a publisher for the broker and the topics that the settings name.

Here: the numbers of partitions, which are taken from the topics on the broker, because a wrong setting would send ids to other shards. Not here: sending
(publisher.py).
"""

from infra.kafka.admin import fetch_topics
from infra.kafka.publisher import Publisher
from infra.settings import InfraSettings
from schemas.errors import Unavailable
from schemas.topics import ITEM_FEATURES, USER_FEATURES


def open_publisher(settings: InfraSettings, client: str) -> Publisher:
    """A publisher; `client` is the sender that its records name. Raises Unavailable (`unknown_topic`, `kafka_unreachable`), Misconfigured (`no_broker`)."""
    bootstrap, prefix = settings.bootstrap_servers(), settings.kafka.topic_prefix
    found = fetch_topics(bootstrap, prefix)
    if ITEM_FEATURES not in found or USER_FEATURES not in found:
        raise Unavailable("unknown_topic", f"{prefix}{ITEM_FEATURES} is not on {bootstrap}; run `aif topics apply` or start a worker first")
    shards, user_partitions = found[ITEM_FEATURES].partitions, found[USER_FEATURES].partitions
    return Publisher(bootstrap, prefix, client, shards, user_partitions, settings.index.id_kind)
