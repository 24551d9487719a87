"""Settings of a process: frozen sections, read once at the start; the origin of each value is known.

Flags come before the environment, then the file, then the defaults. No setting changes bytes or results; those are in a spec or a manifest.
Names: `AIF_<SECTION>__<NAME>` in the environment, `[section] name = ...` in the TOML file that AIF_CONFIG names.
Invariant: a name that nothing reads is refused at start with a suggestion. pydantic-settings ignores a misspelt section or variable even
with `extra="forbid"`, so all names are compared here.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from infra.broker.record import recorded_address
from infra.folders import user_data_dir
from infra.kafka.security import KafkaConnection, KafkaSecurity
from schemas.errors import Misconfigured
from schemas.limits import SHARDS_MAX

PREFIX = "AIF_"
FILE_VARIABLE = "AIF_CONFIG"
# Every section of every process: they share one environment, and a misspelt section must not be taken for that of another process.
SECTIONS = frozenset(
    {
        "kafka",
        "kafka_security",
        "index",
        "broker",
        "log",
        "worker",
        "build",
        "canary",
        "rollback",
        "statistics",
        "train",
        "serve",
        "engine",
        "users",
        "relay",
        "allocation",
        "demo",
        "bench",
    }
)

_SHOWN_AWS = frozenset({"AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"})
_UNITS = {"s": "s", "ms": "ms", "bytes": "bytes", "share": "0 to 1"}  # by the last word of a name

Tree = dict[str, Any]
SettingsType = TypeVar("SettingsType", bound="ProcessSettings")


class Section(BaseModel):
    """Base of a section: frozen, and an unknown name in it is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KafkaSettings(Section):
    """Which broker, and which topics on it."""

    bootstrap_servers: str = Field("", description="The brokers, HOST:PORT,HOST:PORT; empty: the local broker of `aif broker start`")
    topic_prefix: str = Field("aif.", pattern=r"^[A-Za-z0-9._-]{0,200}$", description="Begins the name of every topic of the index")


class BrokerSettings(Section):
    """The local broker of this user."""

    data_dir: Path = Field(default_factory=lambda: user_data_dir() / "broker", description="Folder of the local broker")
    maven_url: str = Field("", description="Mirror of Maven's repository for the broker's jars; empty: the client's default")


class IndexSettings(Section):
    """Where the versions are, how long they are kept, and the identity of the index (written once into its control log; protocol A1)."""

    # infra/index/s3_store.py; the credentials of a bucket come from the environment: AWS_ACCESS_KEY_ID and so on.
    store: str = Field(
        default_factory=lambda: str(user_data_dir() / "index"),
        description="Index store: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME&cache_dir=FOLDER&cache_gib=NUMBER",
    )
    shards: int = Field(default=4, ge=1, le=SHARDS_MAX, description="Partitions of the item topics, fixed for an index")
    user_partitions: int = Field(default=4, ge=1, le=SHARDS_MAX, description="Partitions of the user topics")
    id_kind: Literal["int64", "text"] = Field("int64", description="Kind of the ids of items and users, fixed for an index")
    keep_versions: int = Field(default=5, ge=2, description="Newest versions that are kept; older frozen ones are dropped")
    remove_after_s: float = Field(
        default=24 * 3600.0, ge=1.0, description="Age at which a file that no version needs is removed from the store"
    )


class LogSettings(Section):
    """The log on standard error: its level and form."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged")
    format: Literal["auto", "json", "text"] = Field("auto", description="Form of log lines; auto: text on a terminal, JSON elsewhere")


class _Environment(EnvSettingsSource):
    """Leaves a list that is no JSON as it is, so that it is refused by its name as any other value that does not fit."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class ProcessSettings(BaseSettings):
    """Base of one process's settings: a section per field. Make one with `load_settings`, never by calling the class."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    kafka_security: KafkaSecurity = Field(default_factory=KafkaSecurity)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    index: IndexSettings = Field(default_factory=IndexSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the values that `load_settings` found, with the environment of its caller's choice."""
        return (init_settings,)

    def connection(self) -> KafkaConnection:
        """The named broker, else the running local one, and how to connect to it. Raises Misconfigured (`no_broker`, `kafka_plain_text`)."""
        return KafkaConnection(self.kafka.bootstrap_servers or recorded_address(self.broker.data_dir), self.kafka_security)


class InfraSettings(ProcessSettings):
    """Settings of the commands that run no process of their own."""


@dataclass(frozen=True)
class SettingValue:
    """One setting as `aif config show` prints it. `origin` is "default", "environment NAME", "file PATH" or "flag"; `unit` is empty for a value without one."""

    name: str
    value: Any
    origin: str
    unit: str = field(default="", compare=False)
    meaning: str = field(default="", compare=False)


def load_settings(
    kind: type[SettingsType], flags: Mapping[str, Mapping[str, Any]] | None = None, environment: Mapping[str, str] | None = None
) -> SettingsType:
    """The settings of a process: `flags` (section → name → value, None = not given) over environment over file over defaults.

    Misconfigured for a name nothing reads, a value that does not fit, or a file that cannot be read.
    """
    return _load(kind, flags, environment)[0]


def explain_settings(kind: type[ProcessSettings], environment: Mapping[str, str] | None = None) -> list[SettingValue]:
    """Every setting of `kind` with its value and origin, by name."""
    settings, origins = _load(kind, None, environment)
    values = settings.model_dump(mode="json")
    return [
        SettingValue(
            f"{section}.{name}",
            value,
            origins.get((section, name), "default"),
            unit_of(name),
            _fields_of(kind, section)[name].description or "",
        )
        for section in sorted(values)
        for name, value in values[section].items()
    ]


def unit_of(name: str) -> str:
    """The unit that the name of a setting ends with: `poll_s`, `drain_s_max`."""
    return _UNITS.get(name.removesuffix("_max").removesuffix("_min").rpartition("_")[2], "")


def _fields_of(kind: type[ProcessSettings], section: str) -> dict[str, FieldInfo]:
    return cast(type[Section], kind.model_fields[section].annotation).model_fields


def explain_object_store(store_url: str) -> list[SettingValue]:
    """What the client of an object store reads from the environment, without secrets; nothing if the index store is a folder."""
    if not store_url.startswith("s3://"):
        return []
    return [
        SettingValue(name, value if name in _SHOWN_AWS else "(set)", f"environment {name}")
        for name, value in sorted(os.environ.items())
        if name.startswith("AWS_")
    ]


def _load(
    kind: type[SettingsType], flags: Mapping[str, Mapping[str, Any]] | None, environment: Mapping[str, str] | None
) -> tuple[SettingsType, dict[tuple[str, str], str]]:
    undeclared = set(kind.model_fields) - SECTIONS
    assert not undeclared, f"{kind.__name__} has sections that SECTIONS in infra/settings.py does not list: {sorted(undeclared)}"
    environment = os.environ if environment is None else environment
    merged: Tree = {}
    origins: dict[tuple[str, str], str] = {}
    for tree, origin in _sources(kind, flags or {}, environment):
        for section, values in tree.items():
            merged.setdefault(section, {}).update(values)
            for name in values:
                origins[section, name] = origin if origin != "environment" else f"environment {_variable(section, name)}"
    try:
        return kind.model_validate(merged), origins
    except ValidationError as error:
        raise _misfit(kind, error, origins) from error


def _sources(
    kind: type[ProcessSettings], flags: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The sources, the weakest first. The names of each are checked before its values are read."""
    file_name = environment.get(FILE_VARIABLE)
    if file_name:
        yield _known(kind, _read_file(Path(file_name)), f"file {file_name}"), f"file {file_name}"
    yield _from_environment(kind, environment), "environment"
    given = {section: {name: value for name, value in values.items() if value is not None} for section, values in flags.items()}
    yield _known(kind, given, "flags"), "flag"


def _from_environment(kind: type[ProcessSettings], environment: Mapping[str, str]) -> Tree:
    names: Tree = {}
    for variable in environment:
        if variable.upper().startswith(PREFIX) and variable.upper() != FILE_VARIABLE:
            section, _, name = variable[len(PREFIX) :].lower().partition("__")
            names.setdefault(section, {})[name] = environment[variable]
    _known(kind, names, "environment")
    source = _Environment(kind)
    source.env_vars = {variable.lower(): value for variable, value in environment.items()}
    return source()


def _known(kind: type[ProcessSettings], tree: Mapping[str, Any], origin: str) -> Tree:
    """`tree` without the sections of other processes. Raises Misconfigured for a name that nothing reads."""
    kept: Tree = {}
    for section, values in tree.items():
        if section not in SECTIONS:
            raise _unknown(
                origin, section, _written(origin, section, values), {known: _spelling(origin, known, "") for known in sorted(SECTIONS)}
            )
        if section not in kind.model_fields:
            continue
        if not isinstance(values, Mapping):
            raise Misconfigured(
                "setting_malformed", f"{_spelling(origin, section, '')} in the {origin} is a section; give its settings by name"
            )
        fields = _fields_of(kind, section)
        for name in values:
            if name not in fields:
                raise _unknown(
                    origin, name, _spelling(origin, section, name), {known: _spelling(origin, section, known) for known in fields}
                )
        kept[section] = dict(values)
    return kept


def _unknown(origin: str, name: str, written: str, known: Mapping[str, str]) -> Misconfigured:
    """The error for an unknown name. `known` maps names to how they are written in the source, as `name` is `written`."""
    # The commonest slip is one underscore instead of two (AIF_KAFKA_TOPIC_PREFIX), which difflib does not find near.
    near = sorted((start for start in known if name.startswith(start)), key=len, reverse=True) or difflib.get_close_matches(
        name, known, n=1
    )
    hint = f"did you mean {known[near[0]]}?" if near else f"known here: {', '.join(known.values())};"
    return Misconfigured("unknown_setting", f"nothing reads {written} ({origin}); {hint} `aif config show` lists all settings")


def _written(origin: str, section: str, values: object) -> str:
    """How a section stands in its source; of a variable without two underscores, the variable."""
    whole = origin == "environment" and isinstance(values, Mapping) and "" in values
    return f"{PREFIX}{section.upper()}" if whole else _spelling(origin, section, "")


def _spelling(origin: str, section: str, name: str) -> str:
    if origin == "environment":
        return _variable(section, name)
    return f"{section}.{name}" if name else f"[{section}]"


def _variable(section: str, name: str) -> str:
    return f"{PREFIX}{section.upper()}__{name.upper()}" if name else f"{PREFIX}{section.upper()}__..."


def _read_file(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise Misconfigured("config_unreadable", f"the file {path} that {FILE_VARIABLE} names cannot be read as TOML: {error}") from error


def _misfit(kind: type[ProcessSettings], error: ValidationError, origins: Mapping[tuple[str, str], str]) -> Misconfigured:
    first = error.errors(include_url=False)[0]
    section, name, *inner = (str(part) for part in (*first["loc"], "", ""))
    origin = origins.get((section, name), "default")
    if not name:  # a rule about several settings; the input is the whole section, secrets included
        rule = first["msg"].removeprefix("Value error, ")
        return Misconfigured("setting_invalid", f"[{section}]: {rule}; correct it and start again")
    wanted = 'expected a list, like ["a", "b"]' if first["type"] == "tuple_type" else first["msg"]
    field = _fields_of(kind, section).get(name)
    shown = "not shown" if field is not None and "SecretStr" in str(field.annotation) else repr(first["input"])
    place = f" at {where}" if (where := ".".join(inner).strip(".")) else ""
    return Misconfigured("setting_invalid", f"{section}.{name} from {origin} is {shown}{place}: {wanted}; correct it and start again")
