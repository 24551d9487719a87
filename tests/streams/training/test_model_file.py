"""The file that says what to train: what it may change, and errors that name the file and the place."""

import json
from pathlib import Path

import pytest

from schemas.errors import Misconfigured
from schemas.ids import IdKind
from streams.training.model_file import read_model_file
from streams.training.trainer import default_spec
from tests.schemas.catalogue import small_schema


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "does not read"),
        ("[]", "list"),
        ("{}", r"no \[schema\]"),
        ('{"schema": 3}', "schema is int"),
        ('{"schema": {"features": 3}}', r"\[schema\]"),
        ('{"schema": {"features": [], "bid": "cost"}}', r"\[schema\].*bid.*cost"),
        ('{"schema": {"features": [{"name": "a", "scope": "item", "kind": "colour"}]}}', r"\[schema\].*colour"),
        ('{"schema": SCHEMA, "model": []}', "model is list"),
        ('{"schema": SCHEMA, "model": {"depth": 3}}', r"\[model\].*depth"),
        ('{"schema": SCHEMA, "model": {"schema": 3}}', r"\[model\].*schema"),
        ('{"schema": SCHEMA, "model": {"width": "wide"}}', r"\[model\].*width.*wide"),
        ('{"schema": SCHEMA, "model": {"width": 0}}', r"\[model\].*width"),
        ('{"schema": SCHEMA, "model": {"rank_by": "luck"}}', r"\[model\].*rank_by.*luck"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text.replace("SCHEMA", json.dumps(small_schema().to_dict())))
    with pytest.raises(Misconfigured, match=rf"model\.json.*{words}"):
        read_model_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.toml"):
        read_model_file(tmp_path / "nowhere.toml")


def test_a_file_may_change_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"schema": small_schema().to_dict(), "model": {"width": 12, "head_hidden": [5], "rank_by": "click"}}))
    spec = read_model_file(path)
    assert (spec.width, spec.head_hidden, spec.rank_by, spec.schema) == (12, (5,), "click", small_schema())


def test_toml_says_the_same_as_json(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        """
        [schema]
        id_kind = "text"
        [schema.features.colour]
        scope = "item"
        kind = "categorical"
        buckets = 9
        """
    )
    spec = read_model_file(path)
    assert spec == default_spec(spec.schema) and spec.rank_by == "click"
    assert spec.schema.id_kind is IdKind.TEXT and spec.schema.item("colour").buckets == 9
