"""The AsyncAPI document: up to date, complete, and every reference leads somewhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.kafka.asyncapi import asyncapi_file, describe_topics, is_stale, write_asyncapi
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


def test_the_file_in_the_repository_is_up_to_date() -> None:
    assert not is_stale(asyncapi_file()), "run `aif topics schemas --write`"


def test_a_stale_file_is_written_once(tmp_path: Path) -> None:
    assert write_asyncapi(tmp_path / "a.json")
    assert not write_asyncapi(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["asyncapi"] == "3.0.0"


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
