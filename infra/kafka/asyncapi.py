"""The AsyncAPI 3 document of all topics, `docs/asyncapi.json`. It is generated from the table of topics and the models, and never written by hand.

Source: AsyncAPI 3.0.0; Kafka bindings 0.5.0.
"""

from typing import Any

from schemas.events import RECORDS, json_schema
from schemas.topics import (
    ALLOCATION_OUTCOMES,
    DEAD_LETTER_PREFIX,
    INDEX_DELTAS,
    INDEX_EVENTS,
    MODEL_CHECKPOINTS,
    REPORTS,
    SERVER_REPORTS,
    STATISTICS_REPORTS,
    TOPICS,
    Topic,
    encode_headers,
)

_KAFKA_BINDING = "0.5.0"
_INPUTS = tuple(topic for topic in RECORDS if topic not in (INDEX_EVENTS, *REPORTS))
_ABOUT = (
    "A topic's name is the deployment's prefix (AIF_KAFKA__TOPIC_PREFIX, by default `aif.`) and the address. A record holds 1 to 256 updates. "
    "The partition is murmur2 of the id as text, as Java's clients choose it for the key; librdkafka (confluent-kafka, kcat) needs "
    "partitioner=murmur2_random. A batch has no key and only ids of the partition that it names. Anything else is rejected: `wrong_partition`. "
    "Which features a model knows, and of which kind, is in its checkpoint (`aif model show FILE`), not here: one that it does not know is kept and not read, "
    "and a value of another kind (a text for a number) counts as missing; `aif doctor` names both. Of model-checkpoints, size_bytes and sha256 are the file's, "
    "feature_schema is the schema_fingerprint that `aif model show FILE` prints, and uri is index:checkpoints/<sha256>.safetensors for a file that was "
    "uploaded there in the index store, as `aif publish checkpoint` does; or a path or file:// below a folder of the worker's AIF_BUILD__CHECKPOINT_ROOTS. "
    "On user-features the key is the user's id as text, behind a byte 0xFF where op is statistics; a record under another key is rejected: `wrong_key`. "
    "On item-features a key without a value deletes the item. Headers may be left out. What is rejected goes to dlq.<address> with the reason (`aif dlq list`)."
)
_KEYS = {MODEL_CHECKPOINTS: "the model_id, or any", INDEX_EVENTS: "the version as text", SERVER_REPORTS: "the server's name"}
_READERS = {
    INDEX_DELTAS: "servers",
    SERVER_REPORTS: "workers, and people",
    STATISTICS_REPORTS: "servers, and people",
    ALLOCATION_OUTCOMES: "`aif allocate fit`",
}
_PARTITIONS = {"N": "one a shard of the index", "M": "one a user partition of the index"}


def describe_topics() -> dict[str, Any]:
    """The whole document: a channel and an operation for each topic, and the schemas of the records."""
    operations = {}
    for topic in TOPICS:
        action, who = _side(topic.name)
        operations[f"{action}-{topic.name}"] = {"action": action, "channel": {"$ref": f"#/channels/{topic.name}"}, "summary": who}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "AIF topics", "version": "1", "description": _ABOUT},
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": operations,
        "components": {"messages": _messages(), "schemas": _schemas()},
    }


def _side(topic: str) -> tuple[str, str]:
    """(action, who does it) as seen by a client of the system."""
    if topic in _INPUTS:
        return "send", "publishers of events"
    return "receive", _READERS.get(topic, "people, consoles and metrics")


def _channel(topic: Topic) -> dict[str, Any]:
    config, name = topic.config(), topic.name
    configuration = {
        "cleanup.policy": [config["cleanup.policy"]],
        "retention.ms": int(config["retention.ms"]),
        "max.message.bytes": int(config["max.message.bytes"]),
    }
    binding: dict[str, Any] = {"bindingVersion": _KAFKA_BINDING, "topicConfiguration": configuration}
    if isinstance(topic.partitions, int):
        binding["partitions"] = topic.partitions
    counted = _PARTITIONS.get(str(topic.partitions), f"{topic.partitions}")
    return {
        "address": name,
        "description": f"{topic.why}. Partitions: {counted}.",
        "messages": {"record": {"$ref": f"#/components/messages/{'dead-letter' if name.startswith(DEAD_LETTER_PREFIX) else name}"}},
        "bindings": {"kafka": binding},
    }


def _messages() -> dict[str, Any]:
    headers = {"type": "object", "properties": {name: {"type": "string"} for name, _ in encode_headers("", "", "", "")}}
    records = {
        topic: {
            "name": topic,
            "contentType": "application/json",
            "headers": headers,
            "payload": {"$ref": f"#/components/schemas/{topic}"},
            "bindings": {"kafka": {"bindingVersion": _KAFKA_BINDING, "key": {"type": "string", "description": _key_of(topic)}}},
        }
        for topic in RECORDS
    }
    binary = {"type": "string", "format": "binary"}
    return {
        **records,
        INDEX_DELTAS: {
            "name": INDEX_DELTAS,
            "contentType": "application/octet-stream",
            "payload": binary,
            "summary": "rows that changed, little-endian: schemas/index/FORMAT.md, section 8",
        },
        "dead-letter": {
            "name": "dead-letter",
            "contentType": "application/octet-stream",
            "payload": binary,
            "summary": "the rejected record, byte for byte; the reason in headers __connect.errors.*, disposition, attempt, aif.index",
        },
    }


def _key_of(topic: str) -> str:
    if topic in _KEYS:
        return _KEYS[topic]
    of_users = next(t for t in TOPICS if t.name == topic).partitions == "M"
    owner = f"the {'user' if of_users else 'item'}'s id as text"
    return f"{owner}; none for a batch" if "updates" in json_schema(topic)["properties"] else owner


def _schemas() -> dict[str, Any]:
    """The records' JSON Schemas, and their definitions under `<topic>.<name>`."""
    found: dict[str, Any] = {}
    for topic in RECORDS:
        schema = json_schema(topic)
        definitions = schema.pop("$defs", {})
        found[topic] = _renamed(schema, topic)
        found.update({f"{topic}.{name}": _renamed(definition, topic) for name, definition in definitions.items()})
    return found


def _renamed(value: Any, topic: str) -> Any:
    """The same schema with its references pointing into this document."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{topic}.{str(inner).removeprefix('#/$defs/')}" if key == "$ref" else _renamed(inner, topic)
            for key, inner in value.items()
        }
    return [_renamed(inner, topic) for inner in value] if isinstance(value, list) else value
