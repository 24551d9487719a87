"""The public interface: publish events, ask for rankings. `pip install aif` brings no more than this needs.

    from aif import AsyncClient, Client, Publisher

    with Publisher("127.0.0.1:9092", source="catalogue") as publisher:
        publisher.publish_item(42, version=1, features={"price": 59.9})
    with Client("http://127.0.0.1:8100") as client:
        client.rank(1, [42, 43, 44], top_k=2)

Here: the names below and nothing else. Every other module of the project may change in any release. Semantic versioning applies to these names, their
arguments and their errors' codes, and to the formats of topics, requests and index files (CONTRIBUTING.md).
"""

from aif.publisher import Publisher
from infra.kafka.publisher import Delivered, Delivery
from infra.kafka.security import KafkaConnection, KafkaSecurity
from schemas.errors import AifError, Corrupted, Incompatible, Misconfigured, RejectedInput, Unavailable
from schemas.events import Behaviour, CheckpointRecord, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.requests import AtLeast, Freshness, InlineBehaviour, PrerankRequest, RankAnswer, RankedItem, UserAnswer
from serving.client import AsyncClient, Client, RankOptions, UserOptions

__all__ = [
    "AifError",
    "AsyncClient",
    "AtLeast",
    "Behaviour",
    "CheckpointRecord",
    "Client",
    "Corrupted",
    "Delivered",
    "Delivery",
    "Freshness",
    "ImpressionRecord",
    "Incompatible",
    "InlineBehaviour",
    "ItemFeaturesUpdate",
    "KafkaConnection",
    "KafkaSecurity",
    "Misconfigured",
    "NewItem",
    "PrerankRequest",
    "Publisher",
    "RankAnswer",
    "RankOptions",
    "RankedItem",
    "RejectedInput",
    "ShownItem",
    "Unavailable",
    "UserAnswer",
    "UserFeaturesRecord",
    "UserOptions",
]
