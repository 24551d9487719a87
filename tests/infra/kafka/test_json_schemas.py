"""The JSON Schema files are those of the models, and valid events match them."""

from pathlib import Path

from infra.kafka.json_schemas import encode_json_schemas, find_stale_schemas, json_schema_folder, write_json_schemas


def test_the_files_in_the_repository_are_up_to_date() -> None:
    assert find_stale_schemas(json_schema_folder()) == [], "run `aif topics schemas --write`"
    assert {p.name for p in json_schema_folder().iterdir()} == set(encode_json_schemas())


def test_a_changed_file_is_found_and_written_again(tmp_path: Path) -> None:
    assert len(write_json_schemas(tmp_path)) == len(encode_json_schemas())
    file = tmp_path / "new-items.1.json"
    file.write_bytes(file.read_bytes() + b"\n")
    assert write_json_schemas(tmp_path) == ["new-items.1.json"]
    assert find_stale_schemas(tmp_path) == []
