"""The AsyncAPI document: complete, and every reference leads somewhere."""

from collections.abc import Iterator
from typing import Any

from infra.kafka.asyncapi import describe_topics
from schemas.topics import TOPICS


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_topic_is_a_channel_with_an_operation_and_every_reference_resolves() -> None:
    document = describe_topics()
    assert set(document["channels"]) == {topic.name for topic in TOPICS}
    assert {operation["channel"]["$ref"] for operation in document["operations"].values()} == {f"#/channels/{t.name}" for t in TOPICS}
    found = list(references(document))
    assert found
    for reference in found:
        at: Any = document
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]
