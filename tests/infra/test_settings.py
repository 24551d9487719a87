"""Settings: precedence, origins, and the refusal of names that nothing reads."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr, ValidationError

from infra.kafka.security import KafkaConnection
from infra.settings import InfraSettings, ProcessSettings, Section, SettingValue, explain_settings, load_settings
from schemas.errors import Misconfigured


class _TrainSection(Section):
    seeds: tuple[int, ...] = (1, 2)
    key: SecretStr | None = Field(None, min_length=16)


class _TrainSettings(ProcessSettings):
    train: _TrainSection = Field(default_factory=_TrainSection)


def _by_name(settings: list[SettingValue]) -> dict[str, SettingValue]:
    return {setting.name: setting for setting in settings}


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "aif.toml"
    file.write_text('[index]\nshards = 5\nuser_partitions = 6\nid_kind = "text"\n')
    environment = {"AIF_CONFIG": str(file), "AIF_INDEX__SHARDS": "7", "AIF_INDEX__USER_PARTITIONS": "8"}
    settings = load_settings(InfraSettings, {"index": {"shards": 9, "user_partitions": None}}, environment)
    assert (settings.index.shards, settings.index.user_partitions, settings.index.id_kind) == (9, 8, "text")
    assert settings.kafka.topic_prefix == "aif."


def test_every_value_is_shown_with_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "aif.toml"
    file.write_text('[kafka]\ntopic_prefix = "shop."\n')
    shown = _by_name(explain_settings(InfraSettings, {"AIF_CONFIG": str(file), "AIF_INDEX__SHARDS": "7"}))
    assert shown["kafka.topic_prefix"] == SettingValue("kafka.topic_prefix", "shop.", f"file {file}")
    assert shown["index.shards"] == SettingValue("index.shards", 7, "environment AIF_INDEX__SHARDS")
    assert shown["index.id_kind"].origin == "default"


@pytest.mark.parametrize(
    ("environment", "suggestion"),
    [
        ({"AIF_KAFKAS__TOPIC_PREFIX": "x"}, "AIF_KAFKA__"),
        ({"AIF_KAFKA__TOPIC_PREFX": "x"}, "AIF_KAFKA__TOPIC_PREFIX"),
        ({"AIF_KAFKA_TOPIC_PREFIX": "x"}, "AIF_KAFKA_TOPIC_PREFIX .*AIF_KAFKA__"),
        ({"AIF_NONSENSE": "x"}, "known here"),
        ({"aif_kafka__topic_prefx": "x"}, "AIF_KAFKA__TOPIC_PREFIX"),
    ],
)
def test_a_misspelt_variable_is_refused_with_a_suggestion(environment: dict[str, str], suggestion: str) -> None:
    with pytest.raises(Misconfigured, match=suggestion) as refused:
        load_settings(InfraSettings, environment=environment)
    assert refused.value.code == "unknown_setting"


@pytest.mark.parametrize(("text", "suggestion"), [("[kafak]\nx = 1", r"\[kafka\]"), ("[index]\nshard = 1", "index.shards")])
def test_a_misspelt_name_in_the_file_is_refused_with_a_suggestion(tmp_path: Path, text: str, suggestion: str) -> None:
    file = tmp_path / "aif.toml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=suggestion):
        load_settings(InfraSettings, environment={"AIF_CONFIG": str(file)})


@pytest.mark.parametrize("text", ["index = 3", "[index", "\x00"])
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "aif.toml"
    file.write_text(text)
    with pytest.raises(Misconfigured):
        load_settings(InfraSettings, environment={"AIF_CONFIG": str(file)})


def test_a_value_that_does_not_fit_is_refused_with_its_origin() -> None:
    with pytest.raises(Misconfigured, match=r"index\.shards from environment AIF_INDEX__SHARDS is 'many'"):
        load_settings(InfraSettings, environment={"AIF_INDEX__SHARDS": "many"})


def test_a_secret_that_does_not_fit_is_not_shown() -> None:
    with pytest.raises(Misconfigured, match=r"train\.key from environment AIF_TRAIN__KEY is not shown: .* at least 16") as caught:
        load_settings(_TrainSettings, environment={"AIF_TRAIN__KEY": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["a b", "a/", "ä.", "x" * 201, "shop.\n"])
def test_a_prefix_that_no_topic_can_have_is_refused_with_what_is_allowed(prefix: str) -> None:
    with pytest.raises(Misconfigured, match=r"kafka\.topic_prefix from environment AIF_KAFKA__TOPIC_PREFIX is .*A-Za-z0-9\._-") as refused:
        load_settings(InfraSettings, environment={"AIF_KAFKA__TOPIC_PREFIX": prefix})
    assert repr(prefix) in str(refused.value)


def test_a_list_that_is_no_json_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended `aif worker` with a stack trace."""
    monkeypatch.setenv("AIF_TRAIN__SEEDS", "3,4")
    with pytest.raises(Misconfigured, match=r"train\.seeds from environment AIF_TRAIN__SEEDS is '3,4': expected a list, like"):
        load_settings(_TrainSettings)


def test_settings_of_another_process_in_the_same_environment_are_left_alone() -> None:
    environment = {"AIF_TRAIN__SEEDS": "[3, 4]"}
    assert load_settings(InfraSettings, environment=environment).index.shards == 4
    assert load_settings(_TrainSettings, environment=environment).train.seeds == (3, 4)


def test_settings_are_frozen() -> None:
    settings: Any = load_settings(InfraSettings, environment={})
    with pytest.raises(ValidationError):
        settings.index.shards = 2


def test_without_a_named_broker_the_local_one_is_asked_for(tmp_path: Path) -> None:
    settings = load_settings(InfraSettings, {"broker": {"data_dir": tmp_path}}, {})
    with pytest.raises(Misconfigured, match="aif broker start"):
        settings.connection()
    assert load_settings(InfraSettings, environment={"AIF_KAFKA__BOOTSTRAP_SERVERS": "localhost:1"}).connection() == KafkaConnection(
        "localhost:1"
    )


def test_a_value_inside_a_setting_is_refused_with_its_place() -> None:
    with pytest.raises(Misconfigured, match=r"train\.seeds from environment AIF_TRAIN__SEEDS is 'x' at 1: Input should be a valid integer"):
        load_settings(_TrainSettings, environment={"AIF_TRAIN__SEEDS": '[1, "x"]'})


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "aif.toml"
    file.write_text("[index]\nshards = 5\n", "utf-8-sig")
    assert load_settings(InfraSettings, environment={"AIF_CONFIG": str(file)}).index.shards == 5
