"""The files that are generated from the models and committed: the JSON Schemas of the topics' records, `schemas/json/<topic>.<schema number>.json`, and
the AsyncAPI document of all topics.

Invariants: the files of all earlier schema numbers stay. The newest file of each topic is its model as it is now. It accepts every record that older files
accept, because old records are replayed: a model that accepts less is refused here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import schemas
from infra.files import write_file_durably
from infra.kafka.asyncapi import describe_topics
from infra.kafka.schema_compatibility import find_incompatibilities
from schemas.errors import Incompatible
from schemas.events import RECORDS, json_schema

SCHEMAS, ASYNCAPI = Path("schemas/json"), Path("docs/asyncapi.json")


def checkout() -> Path:
    """The folder of this checkout, below which the files are."""
    return Path(schemas.__file__).parents[1]


def schema_number(schema: Mapping[str, Any]) -> int:
    """The newest schema number that a record may carry: the largest value of its field `schema`."""
    field = schema["properties"]["schema"]
    return int(max(field["enum"] if "enum" in field else [field["const"]]))


def encode_schema_files() -> dict[Path, bytes]:
    """Contents by path in the checkout: the schema of every topic with a JSON record, and the AsyncAPI document."""
    found = {topic: json_schema(topic) for topic in sorted(RECORDS)}
    documents = {SCHEMAS / f"{topic}.{schema_number(schema)}.json": schema for topic, schema in found.items()}
    return {
        path: (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
        for path, value in {**documents, ASYNCAPI: describe_topics()}.items()
    }


def find_stale_files(root: Path) -> list[Path]:
    """Files below `root` that are missing or differ from what the models and the table of topics say now."""
    wanted = {root / path: data for path, data in encode_schema_files().items()}
    return [path for path, data in wanted.items() if not path.is_file() or path.read_bytes() != data]


def find_broken_schemas(root: Path) -> list[str]:
    """Where the models refuse what a schema in the checkout accepts, older or newest, each as `file: place: what`. Empty if nothing is refused."""
    broken = []
    for topic in sorted(RECORDS):
        new = json_schema(topic)
        for file in sorted((root / SCHEMAS).glob(f"{topic}.[0-9]*.json")):
            old = json.loads(file.read_bytes())
            broken += [f"{file.name}: {found}" for found in find_incompatibilities(old, new)]
    return broken


def write_schema_files(root: Path) -> list[Path]:
    """Write the files that are stale. Returns them. Raises Incompatible (`schema_not_backward`) before anything is written."""
    if broken := find_broken_schemas(root):
        raise Incompatible(
            "schema_not_backward",
            f"{len(broken)} changes would refuse records that are in the topics: {'; '.join(broken[:3])}; accept them as well, or use a new topic",
        )
    stale, wanted = find_stale_files(root), encode_schema_files()
    for path in stale:
        write_file_durably(path, wanted[path.relative_to(root)])
    return stale
