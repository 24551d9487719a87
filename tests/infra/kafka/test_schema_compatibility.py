"""BACKWARD_TRANSITIVE: planted changes that would refuse old records are found, and those that would not are let through."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from infra.kafka import json_schemas
from infra.kafka.json_schemas import SCHEMAS, checkout, find_broken_schemas, schema_number, write_schema_files
from infra.kafka.schema_compatibility import find_incompatibilities
from schemas.errors import Incompatible
from schemas.events import RECORDS, json_schema

ITEM = json_schema("item-features")
UPDATE = ("$defs", "ItemFeaturesUpdate")
PROPERTIES = (*UPDATE, "properties")


def changed(*path: Any, to: Any = None, drop: bool = False) -> dict[str, Any]:
    """The schema of item-features with one thing changed."""
    new = copy.deepcopy(ITEM)
    at: Any = new
    for step in path[:-1]:
        at = at[step]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return new


INCOMPATIBLE = {
    "a new required field": changed(*UPDATE, "required", to=["item_id", "version", "features"]),
    "a field is deleted": changed(*PROPERTIES, "op", drop=True),
    "a value is not in the list any more": changed(*PROPERTIES, "op", "enum", to=["upsert"]),
    "another type": changed(*PROPERTIES, "version", "type", to="string"),
    "a lower maximum": changed(*PROPERTIES, "version", "maximum", to=1 << 31),
    "a higher minimum": changed(*PROPERTIES, "version", "minimum", to=1),
    "fewer updates in a record": changed("properties", "updates", "maxItems", to=255),
    "fewer features": changed(*PROPERTIES, "features", "maxProperties", to=255),
    "an alternative is gone": changed(
        *PROPERTIES, "item_id", "anyOf", to=ITEM["$defs"]["ItemFeaturesUpdate"]["properties"]["item_id"]["anyOf"][:1]
    ),
    "other names of features": changed(*PROPERTIES, "features", "patternProperties", to={"^[a-z]+$": {"type": "number"}}),
    "another schema number alone": changed("properties", "schema", "const", to=2),
    "a keyword that cannot be judged": changed(*PROPERTIES, "version", "not", to={"const": 7}),
}
COMPATIBLE = {
    "nothing": ITEM,
    "a new optional field": changed(*PROPERTIES, "source", to={"type": "string"}),
    "a wider bound": changed("properties", "updates", "maxItems", to=512),
    "a bound is gone": changed(*PROPERTIES, "version", "maximum", drop=True),
    "one more value": changed(*PROPERTIES, "op", "enum", to=["upsert", "delete", "statistics", "patch"]),
    "both schema numbers": changed("properties", "schema", to={"enum": [1, 2], "default": 2}),
    "a number in place of an integer": changed(*PROPERTIES, "version", to={"type": "number"}),
    "a field is optional now": changed(*UPDATE, "required", to=["item_id"]),
    "another title": changed("title", to="x"),
}


@pytest.mark.parametrize("name", INCOMPATIBLE)
def test_a_change_that_refuses_old_records_is_found(name: str) -> None:
    assert find_incompatibilities(ITEM, INCOMPATIBLE[name]), name


@pytest.mark.parametrize("name", COMPATIBLE)
def test_a_change_that_accepts_all_old_records_is_let_through(name: str) -> None:
    assert find_incompatibilities(ITEM, COMPATIBLE[name]) == [], name


def test_a_field_deleted_and_added_again_with_another_type_is_found_only_against_all_older_schemas() -> None:
    def with_field(**properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties}  # open: names that are not listed are let through

    first, second, third = with_field(a={"type": "string"}), with_field(), with_field(a={"type": "integer"})
    assert find_incompatibilities(first, second) == []
    assert find_incompatibilities(first, third) == ["record.a: type ['string'] is not accepted any more"]
    assert find_incompatibilities(second, third) == ["record: names ['a'] were free and have a schema now"]


def test_every_schema_that_ever_was_is_still_accepted() -> None:
    assert find_broken_schemas(checkout()) == []
    for topic in RECORDS:
        numbers = sorted(int(p.name.split(".")[-2]) for p in (checkout() / SCHEMAS).glob(f"{topic}.[0-9]*.json"))
        assert numbers == list(range(1, schema_number(json_schema(topic)) + 1)), f"{topic}: a file of an earlier schema is missing"


def test_an_incompatible_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_schema_files(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    narrower = INCOMPATIBLE["a lower maximum"]
    monkeypatch.setattr(json_schemas, "json_schema", lambda topic: narrower if topic == "item-features" else json_schema(topic))
    with pytest.raises(Incompatible, match="schema_not_backward"):
        write_schema_files(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == before


def test_a_new_number_gets_a_file_of_its_own_beside_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_schema_files(tmp_path)
    first = json.loads((tmp_path / SCHEMAS / "item-features.1.json").read_text())
    second = COMPATIBLE["both schema numbers"]
    monkeypatch.setattr(json_schemas, "json_schema", lambda topic: second if topic == "item-features" else json_schema(topic))
    assert write_schema_files(tmp_path) == [tmp_path / SCHEMAS / "item-features.2.json"]
    assert json.loads((tmp_path / SCHEMAS / "item-features.1.json").read_text()) == first
