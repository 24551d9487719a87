"""The generated files are those of the models, and a stale one is written."""

from pathlib import Path

from infra.kafka.json_schemas import ASYNCAPI, SCHEMAS, checkout, encode_schema_files, find_stale_files, write_schema_files


def test_the_files_in_the_repository_are_up_to_date() -> None:
    assert find_stale_files(checkout()) == [], "run `aif topics schemas --write`"
    assert {SCHEMAS / p.name for p in (checkout() / SCHEMAS).iterdir()} | {ASYNCAPI} == set(encode_schema_files())


def test_changed_files_are_found_and_written_again(tmp_path: Path) -> None:
    assert len(write_schema_files(tmp_path)) == len(encode_schema_files())
    changed = [tmp_path / SCHEMAS / "new-items.1.json", tmp_path / ASYNCAPI]
    for file in changed:
        file.write_bytes(file.read_bytes() + b"\n")
    assert write_schema_files(tmp_path) == changed
    assert find_stale_files(tmp_path) == []
