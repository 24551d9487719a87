"""The JSON Schema files of the topics' records, `schemas/json/<topic>.<schema number>.json`: generated, committed, checked by a test."""

import json
from pathlib import Path

import schemas
from infra.files import write_file_durably
from schemas.events import RECORDS, json_schema

SCHEMA_NUMBER = 1


def json_schema_folder() -> Path:
    """Where the files are in this checkout."""
    return Path(schemas.__file__).parent / "json"


def encode_json_schemas() -> dict[str, bytes]:
    """File name to contents, for every topic with a JSON record."""
    return {
        f"{topic}.{SCHEMA_NUMBER}.json": (json.dumps(json_schema(topic), indent=2, sort_keys=True) + "\n").encode()
        for topic in sorted(RECORDS)
    }


def find_stale_schemas(folder: Path) -> list[str]:
    """Names of files that are missing or differ from what the models say now."""
    wanted = encode_json_schemas()
    return [name for name, data in wanted.items() if not (folder / name).is_file() or (folder / name).read_bytes() != data]


def write_json_schemas(folder: Path) -> list[str]:
    """Write what is stale; the names of the files that changed."""
    stale, wanted = find_stale_schemas(folder), encode_json_schemas()
    for name in stale:
        write_file_durably(folder / name, wanted[name])
    return stale
