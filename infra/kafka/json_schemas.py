"""The JSON Schema files of the topics' records, `schemas/json/<topic>.<schema number>.json`, which are generated from the models and committed.

Here: encoding them, and finding those that are stale or broken. Not here: the models (schemas/events.py), comparing two schemas (schema_compatibility.py).
Invariants: the files of all schema numbers that ever were stay. The newest file of each topic is what its model says now, and accepts what all older ones
accept, because old records are replayed for ever: a model that accepts less is refused here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import schemas
from infra.files import write_file_durably
from infra.kafka.schema_compatibility import find_incompatibilities
from schemas.errors import Incompatible
from schemas.events import RECORDS, json_schema


def json_schema_folder() -> Path:
    """Where the files are in this checkout."""
    return Path(schemas.__file__).parent / "json"


def schema_number(schema: Mapping[str, Any]) -> int:
    """The newest schema number that a record may carry: the largest value of its field `schema`."""
    field = schema["properties"]["schema"]
    return int(max(field["enum"] if "enum" in field else [field["const"]]))


def encode_json_schemas() -> dict[str, bytes]:
    """Contents by file name, for every topic with a JSON record."""
    found = {topic: json_schema(topic) for topic in sorted(RECORDS)}
    return {
        f"{topic}.{schema_number(schema)}.json": (json.dumps(schema, indent=2, sort_keys=True) + "\n").encode()
        for topic, schema in found.items()
    }


def find_stale_schemas(folder: Path) -> list[str]:
    """Names of files that are missing or differ from what the models say now."""
    wanted = encode_json_schemas()
    return [name for name, data in wanted.items() if not (folder / name).is_file() or (folder / name).read_bytes() != data]


def find_broken_schemas(folder: Path) -> list[str]:
    """Where the models refuse what a schema in the folder accepts, older or newest, each as `file: place: what`. Empty if nothing is refused."""
    broken = []
    for topic in sorted(RECORDS):
        new = json_schema(topic)
        for file in sorted(folder.glob(f"{topic}.[0-9]*.json")):
            old = json.loads(file.read_bytes())
            broken += [f"{file.name}: {found}" for found in find_incompatibilities(old, new)]
    return broken


def write_json_schemas(folder: Path) -> list[str]:
    """Write the files that are stale. Returns their names. Raises Incompatible (`schema_not_backward`) before anything is written."""
    if broken := find_broken_schemas(folder):
        raise Incompatible(
            "schema_not_backward",
            f"{len(broken)} changes would refuse records that are in the topics: {'; '.join(broken[:3])}; accept them as well, or use a new topic",
        )
    stale, wanted = find_stale_schemas(folder), encode_json_schemas()
    for name in stale:
        write_file_durably(folder / name, wanted[name])
    return stale
