"""The records of every input topic: strict, bounded, plain JSON. Acceptance is a pure function of the record's bytes (A2).

    item-features      ItemFeaturesRecord   1 to 256 updates of one partition, each an upsert (whole record), a delete, or statistics over the record
    new-items          NewItemsRecord       1 to 256 multimodal embeddings of one partition
    model-checkpoints  CheckpointRecord     where a checkpoint lies and what it must be
    user-features      UserFeaturesRecord   profile of a user, or statistics over it (compacted, so one user a record)
    user-behaviours    BehavioursRecord     1 to 256 behaviours of users of one partition
    impressions        ImpressionRecord     one request: its user, the items shown, clicks and later outcomes
    index-events       IndexEvent           what happened to a version (a hint, never the truth)
    server-reports     ServerReport         what a server observed of the version it serves, every few seconds
    allocation-outcomes AllocationOutcome   what a server decided to compute for a request, and what that cost
    statistics-reports StatisticsReport     which statistics are kept current, every second

A model's FeatureSchema is not used: acceptance must not depend on which model is live.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from schemas.ids import INT64_MAX, INT64_MIN
from schemas.limits import (
    BAG_VALUES_MAX,
    CHECKPOINT_BYTES_MAX,
    EMBEDDING_WIDTH_MAX,
    EVENT_VERSION_MAX,
    FEATURE_TEXT_BYTES_MAX,
    FEATURES_PER_SCHEMA_MAX,
    FLOAT32_END,
    ITEMS_PER_IMPRESSION_MAX,
    NAME_CHARS_MAX,
    REQUEST_ID_CHARS_MAX,
    TASKS_MAX,
    TEXT_ID_BYTES_MAX,
    UPDATES_PER_RECORD_MAX,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """Describes in words the values that a union accepts. pydantic reports a fault for each type of the union, with names such as "user_id.constrained-int"."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = cast(core_schema.UnionSchema, handler(source))
        return {**union, "custom_error_type": "expected", "custom_error_message": f"expected {self.words}"}


_NAME_PATTERN = rf"^[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARS_MAX - 1}}}$"
Name = Annotated[str, StringConstraints(pattern=_NAME_PATTERN)]
Label = Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9_.:-]{{1,{NAME_CHARS_MAX}}}$")]
WireId = Annotated[
    Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | Annotated[str, StringConstraints(min_length=1, max_length=TEXT_ID_BYTES_MAX)],
    Expected(f"an integer of 64 bits, or a text of at most {TEXT_ID_BYTES_MAX} characters that is not empty"),
]
Text = Annotated[str, StringConstraints(max_length=FEATURE_TEXT_BYTES_MAX)]
Number = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | float
# Validation of a list stops at its first error: 4 MB of wrong values would be millions of errors, gigabytes and minutes of a shard's thread (I8).
Bag = Annotated[list[Number | Text], Field(max_length=max(BAG_VALUES_MAX, EMBEDDING_WIDTH_MAX), fail_fast=True)]
RawFeature = Annotated[
    bool | Number | Text | Bag,
    Expected(f"true, false, null, a finite number, a text of at most {FEATURE_TEXT_BYTES_MAX} characters, or a list of numbers and texts"),
]
RawFeatures = Annotated[dict[Name, RawFeature | None], Field(max_length=FEATURES_PER_SCHEMA_MAX)]
TimeMs = Annotated[int, Field(ge=0, le=EVENT_VERSION_MAX)]
# Not Literal[1], which takes `true` and `1.0` too.
SchemaNumber = Annotated[int, Field(ge=1, le=1), WithJsonSchema({"const": 1, "type": "integer"})]


_is_name = re.compile(_NAME_PATTERN.removesuffix("$") + r"\Z").match


def _check_float32(values: list[float]) -> list[float]:
    if (largest := max(map(abs, values))) >= FLOAT32_END:
        raise ValueError(f"embeddings are stored as float32, and {largest:g} is outside it")
    return values


class _Strict(BaseModel):
    """Values are of their types, numbers finite, names known; nothing changes afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Record(_Strict):
    """What the records of all topics have."""

    schema_number: SchemaNumber = Field(1, alias="schema")


class ItemFeaturesUpdate(_Strict):
    """One item's whole feature record at `version`, or its removal. The higher version wins, then the higher offset. "statistics": some values that
    override those of the record until they are replaced or the item is deleted. Their `version` is the time in ms as of which they were counted; the later
    wins."""

    op: Literal["upsert", "delete", "statistics"] = "upsert"
    item_id: WireId
    version: Annotated[int, Field(ge=0, le=EVENT_VERSION_MAX)]
    features: RawFeatures = {}


class NewItem(_Strict):
    """The multimodal embedding of an item: as-is numbers, at most 1,024, inside float32. Sent once; the latest offset wins."""

    item_id: WireId
    embedding: Annotated[list[float], Field(min_length=1, max_length=EMBEDDING_WIDTH_MAX, fail_fast=True), AfterValidator(_check_float32)]


class Behaviour(_Strict):
    """One event of a user's history: what kind, on which item, when (milliseconds since 1970)."""

    user_id: WireId
    item_id: WireId
    kind: Name = "click"
    time_ms: TimeMs
    features: RawFeatures = {}


class ItemFeaturesRecord(Record):
    """Record of item-features."""

    updates: Annotated[list[ItemFeaturesUpdate], Field(min_length=1, max_length=UPDATES_PER_RECORD_MAX, fail_fast=True)]


class NewItemsRecord(Record):
    """Record of new-items."""

    updates: Annotated[list[NewItem], Field(min_length=1, max_length=UPDATES_PER_RECORD_MAX, fail_fast=True)]


class BehavioursRecord(Record):
    """Record of user-behaviours."""

    updates: Annotated[list[Behaviour], Field(min_length=1, max_length=UPDATES_PER_RECORD_MAX, fail_fast=True)]


class UserFeaturesRecord(Record):
    """Record of user-features, whose key is the user's id as text. The latest offset wins; a record without a value deletes the profile. `time_ms`: the start
    of its validity; training joins it to no earlier request. None: always valid.

    "statistics": values that hold over those of the profile, and `time_ms` is the time as of which they were counted. Their key is a byte 0xFF and the id,
    so that compaction keeps the profile too; a record without a value forgets the statistics."""

    op: Literal["upsert", "statistics"] = "upsert"
    user_id: WireId
    features: RawFeatures = {}
    time_ms: TimeMs | None = None


class CheckpointRecord(Record):
    """Record of model-checkpoints: a pointer, and the size and digest of its target. Its offset becomes the version number."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    size_bytes: Annotated[int, Field(gt=0, le=CHECKPOINT_BYTES_MAX)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    model_id: Label
    feature_schema: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    label: Label | None = None


class ShownItem(_Strict):
    """One item of an impression, with its bid at that time and the click. A ranking teacher may have given it an eCPM.
    `outcomes` names further tasks of a model that it fulfilled, such as "buy"."""

    item_id: WireId
    position: Annotated[int, Field(ge=0, lt=ITEMS_PER_IMPRESSION_MAX)]
    bid: Annotated[float, Field(gt=0)]
    teacher_ecpm: Annotated[float, Field(ge=0)] | None = None
    clicked: bool
    outcomes: Annotated[list[Name], Field(max_length=TASKS_MAX)] = []


class ImpressionRecord(Record):
    """Record of impressions: one request of one user."""

    request_id: Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
    user_id: WireId
    time_ms: TimeMs
    context: RawFeatures = {}
    items: Annotated[list[ShownItem], Field(min_length=1, max_length=ITEMS_PER_IMPRESSION_MAX, fail_fast=True)]


SHARD_OPENED, DISK_FAULT, DISK_FAULT_OVER = "shard_opened", "disk_fault", "disk_fault_over"  # events of a shard, of no version
NO_VERSION = -1


class IndexEvent(Record):
    """Record of index-events: `kind` as in the control log or a shard's step, with a reason for people. `version` is -1 for an event of a shard alone."""

    kind: Name
    version: int
    revision: int = 0
    shard: int | None = None
    reason: str = ""


Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Milliseconds = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class ServerReport(Record):
    """Record of server-reports, keyed by server.
    The numbers are of `seconds` seconds, all on one version.

        answers            rankings that were given; `not_finite` of them hold a score or a probability that is not a number
        failed             requests that ended in an internal error of the server
        parity_checked     answers that the reference recomputed; `parity_mismatched` of them differed by more than a rounding
        candidates         of all these rankings; `processor_ms` is the processor time of the engine's own thread for them
        latency_..., probability_...   of the answers; null without answers
    """

    server_id: Label
    at_ms: TimeMs
    version: Annotated[int, Field(ge=0, le=INT64_MAX)]
    version_token: Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX)]
    seconds: Annotated[float, Field(ge=0)]
    answers: Count = 0
    not_finite: Count = 0
    failed: Count = 0
    parity_checked: Count = 0
    parity_mismatched: Count = 0
    latency_p50_ms: Milliseconds | None = None
    latency_p99_ms: Milliseconds | None = None
    candidates: Count = 0
    processor_ms: Milliseconds = 0.0
    probability_p05: Probability | None = None
    probability_p50: Probability | None = None
    probability_p95: Probability | None = None


ActionName = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,16}(/[0-9]{1,6})?$")]


class AllocationOutcome(Record):
    """Record of allocation-outcomes, keyed by user: the decision on one request, and its cost (schemas/allocation.py).
    Servers lose some under load.

        arm, propensity    who chose the action, and the chance with which this request got it
        price, source      the price of a millisecond, and which control set it; `price` is null where it was infinite
        cost_ms, value     as predicted; `took_ms` is the measured processor time of the engine, null if no answer was ranked and for probes with `predicted`
        state              ranked | cached | passed | dropped | refused | failed: all but the first two mean "not ranked", and never "invalid"
        actions, predicted of a probe that was ranked in full: the actions that rank, and of each the sum of the ten best scores that it would pass on
        items, logits      of a cached answer: its first items, and their logits before calibration
    """

    request_id: Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
    user_id: WireId
    time_ms: TimeMs
    version: Annotated[int, Field(ge=0, le=INT64_MAX)]
    table: Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX)]
    action: ActionName
    arm: Literal["policy", "probe", "random", "undropped"]
    state: Literal["ranked", "cached", "passed", "dropped", "refused", "failed"]
    propensity: Probability
    price: Annotated[float, Field(ge=0)] | None
    source: Literal["none", "plan", "queue", "floor"]
    cost_ms: Milliseconds
    value: Annotated[float, Field(ge=0)]
    candidates: Count
    behaviours: Count
    needs_user: bool = False
    user_value: Annotated[float, Field(gt=0)] | None = None
    retrieval_top: float | None = None
    cached_s: Annotated[float, Field(ge=0)] | None = None
    took_ms: Milliseconds | None = None
    actions: Annotated[list[ActionName], Field(max_length=64)] = []
    predicted: Annotated[list[float], Field(max_length=64)] | None = None
    items: Annotated[list[WireId], Field(max_length=64)] = []
    logits: Annotated[list[float], Field(max_length=64)] = []


class StatisticsReport(Record):
    """Record of statistics-reports: the statistics `names` of items and `user_names` of users hold every event that the log had a second before, in windows
    that end at `as_of_ms`."""

    at_ms: TimeMs
    as_of_ms: TimeMs
    names: Annotated[list[Name], Field(max_length=FEATURES_PER_SCHEMA_MAX)]
    user_names: Annotated[list[Name], Field(max_length=FEATURES_PER_SCHEMA_MAX)] = []


RECORDS: dict[str, type[Record]] = {
    "item-features": ItemFeaturesRecord,
    "new-items": NewItemsRecord,
    "model-checkpoints": CheckpointRecord,
    "user-features": UserFeaturesRecord,
    "user-behaviours": BehavioursRecord,
    "impressions": ImpressionRecord,
    "index-events": IndexEvent,
    "server-reports": ServerReport,
    "allocation-outcomes": AllocationOutcome,
    "statistics-reports": StatisticsReport,
}


def is_name(text: str) -> bool:
    """Whether a text is a well-formed name of a feature, kind or outcome."""
    return _is_name(text) is not None


def encode_record(record: BaseModel) -> bytes:
    """The JSON bytes of a record or of one update, including fields at their defaults, so that a reader need not know our defaults."""
    return record.model_dump_json(by_alias=True).encode()


def join_updates(encoded: Iterable[bytes]) -> bytes:
    """The record of updates that `encode_record` has encoded one by one; the same bytes as of the whole record."""
    return b'{"schema":1,"updates":[' + b",".join(encoded) + b"]}"


def json_schema(topic: str) -> dict[str, Any]:
    """The JSON Schema of a topic's records."""
    return RECORDS[topic].model_json_schema(by_alias=True) | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": topic}
