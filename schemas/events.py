"""The records of every input topic: strict, bounded, plain JSON. What is accepted here is a pure function of the record's bytes (A2).

    item-features      ItemFeaturesRecord   1 to 256 updates of one partition, each an upsert (whole record), a delete, or statistics over the record
    new-items          NewItemsRecord       1 to 256 multimodal embeddings of one partition
    model-checkpoints  CheckpointRecord     where a checkpoint lies and what it must be
    user-features      UserFeaturesRecord   profile and aggregates of a user (compacted, so one user a record)
    user-behaviours    BehavioursRecord     1 to 256 behaviours of users of one partition
    impressions        ImpressionRecord     one request: its user, the items shown, clicks and later outcomes
    index-events       IndexEvent           what happened to a version (a hint, never the truth)
    server-reports     ServerReport         what a server observed of the version it serves, every few seconds
    allocation-outcomes AllocationOutcome   what a server decided to compute for a request, and what that cost
    statistics-reports StatisticsReport     which statistics of items are kept current, every second

`decode_updates` checks each update of a readable record alone (A5): a bad update does not reject its neighbours.
A model's FeatureSchema is not used: acceptance must not depend on which model is live.
"""

import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints, ValidationError, WithJsonSchema
from pydantic_core import CoreSchema, core_schema, from_json

from schemas.errors import RejectedInput
from schemas.ids import INT64_MAX, INT64_MIN, Id, IdKind, decode_id, encode_kafka_key, partition_of
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
    RECORD_BYTES_MAX,
    REQUEST_ID_CHARS_MAX,
    TASKS_MAX,
    TEXT_ID_BYTES_MAX,
    UPDATES_PER_RECORD_MAX,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """Beside a union: what it takes, in words. pydantic itself names a fault for each type of the union, at names of its own ("user_id.constrained-int")."""

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
    """One item's whole feature record at `version`, or its removal. The higher version wins, then the higher offset. "statistics": some values that hold over
    those of the record until they are replaced or the item is deleted; `version` is the time in ms as of which they were counted, and the later wins."""

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
    """Record of user-features, whose key is the user's id as text: the latest offset wins, a record without a value forgets the profile. `time_ms`: since when
    it holds; training joins it to no request before. None: it has always held."""

    user_id: WireId
    features: RawFeatures = {}
    time_ms: TimeMs | None = None


class CheckpointRecord(Record):
    """Record of model-checkpoints: a pointer and what it must point to. Its offset becomes the version number."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    size_bytes: Annotated[int, Field(gt=0, le=CHECKPOINT_BYTES_MAX)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    model_id: Label
    feature_schema: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    label: Label | None = None


class ShownItem(_Strict):
    """One item of an impression: its position, its bid at that time, the ranking teacher's eCPM if there was one, the click, and its other outcomes: names
    of tasks that a model may have beside the click, such as "buy"."""

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
    """Record of server-reports, keyed by server: `seconds` of one server, all of them on one version.

    answers            rankings that were given; of these `not_finite` hold a score or a probability that is no number
    failed             requests that ended in an error of the server's own
    parity_checked     answers that the reference computed again; `parity_mismatched` of them were off by more than a rounding
    latency_..., probability_...   of the answers and of what they hold; null where there were none
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
    probability_p05: Probability | None = None
    probability_p50: Probability | None = None
    probability_p95: Probability | None = None


class AllocationOutcome(Record):
    """Record of allocation-outcomes, keyed by user: the decision on one request, and its cost (schemas/allocation.py). Servers lose some under load.

    arm, propensity    who chose the action, and the chance with which this request got it
    price, source      the price of a millisecond, and which control set it; `price` is null where it was infinite
    cost_ms, value     as predicted; `took_ms` is the measured processor time of the engine, null if no answer was ranked
    state              ranked | cached | passed | dropped | refused | failed: all but the first two mean "not ranked", and never "invalid"
    predicted          of a probe: the sum of the ten best predicted values that each action would have passed on, in the order of the table's actions
    items, logits      of a cached answer: its first items, and what the model said of them; their clicks calibrate cached answers by age
    """

    request_id: Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
    user_id: WireId
    time_ms: TimeMs
    version: Annotated[int, Field(ge=0, le=INT64_MAX)]
    table: Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX)]
    action: Annotated[str, StringConstraints(pattern=r"^[a-z]{1,16}(/[0-9]{1,6})?$")]
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
    predicted: Annotated[list[float], Field(max_length=64)] | None = None
    items: Annotated[list[WireId], Field(max_length=64)] = []
    logits: Annotated[list[float], Field(max_length=64)] = []


class StatisticsReport(Record):
    """Record of statistics-reports: the statistics `names` of items hold every event that the log had a second before, in windows that end at `as_of_ms`."""

    at_ms: TimeMs
    as_of_ms: TimeMs
    names: Annotated[list[Name], Field(max_length=FEATURES_PER_SCHEMA_MAX)]


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

ERRORS_NAMED_MAX = 4_096
_ERRORS_SHOWN = 3

U = TypeVar("U", bound=_Strict)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one update was not accepted; `index` is its place in the record (0 for an unreadable record)."""

    index: int
    code: str
    reason: str
    disposition: str  # malformed | schema | semantic


@dataclass(frozen=True, slots=True)
class Decoded(Generic[U]):
    """The accepted updates of one record, as (index in the record, update), and the rejections: together every update once."""

    accepted: list[tuple[int, U]]
    rejected: list[Rejection]


def decode_record(record_type: type[R], value: bytes | None) -> R:
    """A whole record. Raises RejectedInput whose disposition says malformed (not JSON), schema (wrong shape) or semantic."""
    if value is None:
        raise RejectedInput("empty_record", "the record has no value; this topic needs one", "malformed")
    if len(value) > RECORD_BYTES_MAX:
        raise RejectedInput("record_too_large", f"the record has {len(value)} bytes, expected at most {RECORD_BYTES_MAX}", "malformed")
    try:
        return record_type.model_validate_json(value)
    except ValidationError as error:
        malformed = error.error_count() == 1 and error.errors(include_url=False)[0]["type"] == "json_invalid"
        raise RejectedInput(
            "not_json" if malformed else "bad_record", describe_errors(error), "malformed" if malformed else "schema"
        ) from error
    except ValueError as error:  # bad UTF-8 and the rest of the ValueError family
        raise RejectedInput("not_json", f"the record is not JSON: {error}", "malformed") from error


def decode_user_features(key: bytes | None, value: bytes | None, kind: IdKind, partition: int, partitions: int) -> UserFeaturesRecord:
    """A record of user-features, its user id in the catalogue's kind; without a value it forgets the profile, so it is one without features.

    Raises RejectedInput: as `decode_record`, and `bad_id`, `wrong_partition`, `wrong_key` (compaction would drop or keep it instead of another user's).
    """
    try:
        record = UserFeaturesRecord(user_id=(key or b"").decode()) if value is None else decode_record(UserFeaturesRecord, value)
    except ValueError as error:
        raise RejectedInput("bad_id", f"the key {key!r} of a record without a value is not a user id") from error
    user = decode_id(record.user_id, kind)
    check_partition(user, partition, partitions)
    if key != (expected := encode_kafka_key(user)):
        raise RejectedInput(
            "wrong_key", f"the record of user {user!r} has the key {key and key[:80]!r}, expected the id as text: {expected!r}"
        )
    return record.model_copy(update={"user_id": user})


def check_partition(owner: Id, partition: int, partitions: int) -> None:
    """Raise RejectedInput (`wrong_partition`) unless records of this id belong to the partition."""
    expected = partition_of(owner, partitions)
    if expected != partition:
        raise RejectedInput(
            "wrong_partition",
            f"id {owner!r} belongs to partition {expected} of {partitions}, the record came in {partition}; partition by murmur2 of the id as text",
        )


def decode_updates(
    record_type: type[Record],
    update_type: type[U],
    value: bytes | None,
    kind: IdKind,
    partition: int,
    partitions: int,
    owner: Callable[[U], Id],
) -> Decoded[U]:
    """The updates of one record of item-features, new-items or user-behaviours, each judged alone.

    `owner(update)` is the id whose hash must be this record's partition. Ids come back in the catalogue's kind.
    """
    try:
        updates = list(enumerate(decode_record(record_type, value).updates))  # type: ignore[attr-defined] # the three kinds of record have it
        rejected: list[Rejection] = []
    except RejectedInput as error:
        if error.code != "bad_record":
            return Decoded([], [Rejection(0, error.code, error.message, error.disposition)])
        updates, rejected = _decode_each(update_type, value or b"", error)
    accepted: list[tuple[int, U]] = []
    names = [name for name in ("item_id", "user_id") if name in update_type.model_fields]
    for index, update in updates:
        try:
            accepted.append((index, _check_ids(update, names, kind, partition, partitions, owner)))
        except RejectedInput as error:
            rejected.append(Rejection(index, error.code, error.message, error.disposition))
    return Decoded(accepted, rejected)


def _decode_each(update_type: type[U], value: bytes, error: RejectedInput) -> tuple[list[tuple[int, U]], list[Rejection]]:
    """Decodes updates one by one, if the record itself is valid; otherwise the whole record is one rejection."""
    raw = from_json(value)  # accepts NaN, so that only the update that contains it is refused
    whole = [Rejection(0, error.code, error.message, error.disposition)]
    if isinstance(raw, dict) and "updates" not in raw and {"item_id", "user_id"} & raw.keys():
        bare = 'an update without its record; expected {"updates": [...]} with 1 to 256 of them'
        return [], [Rejection(0, error.code, bare, error.disposition)]
    if not isinstance(raw, dict) or raw.keys() - {"schema"} != {"updates"}:
        return [], whole
    number, updates = raw.get("schema", 1), raw["updates"]
    if type(number) is not int or number != 1 or not isinstance(updates, list) or not 1 <= len(updates) <= UPDATES_PER_RECORD_MAX:
        return [], whole
    accepted: list[tuple[int, U]] = []
    rejected: list[Rejection] = []
    for index, one in enumerate(updates):
        try:
            accepted.append((index, update_type.model_validate(one)))
        except ValidationError as bad:
            rejected.append(Rejection(index, "bad_update", describe_errors(bad), "schema"))
    return accepted, rejected


def _check_ids(update: U, names: Sequence[str], kind: IdKind, partition: int, partitions: int, owner: Callable[[U], Id]) -> U:
    """The update with its ids (its fields `names`) in the catalogue's kind. Raises RejectedInput (`bad_id`, `wrong_partition`)."""
    for name in names:
        given = getattr(update, name)
        if (checked := decode_id(given, kind)) is not given:
            update = update.model_copy(update={name: checked})
    check_partition(owner(update), partition, partitions)
    return update


def is_name(text: str) -> bool:
    """Whether a text is a well-formed name of a feature, kind or outcome."""
    return _is_name(text) is not None


def describe_errors(error: ValidationError) -> str:
    """The first few validation errors in one line: place, problem, value. pydantic must build all errors to name one, so of too many none is named."""
    if error.error_count() > ERRORS_NAMED_MAX:
        return f"{error.error_count()} faults, too many to be named; expected the shape in its JSON schema"
    # Where something is missing, pydantic's input is all that is around it.
    parts = [
        f"{'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}"
        + ("" if e["type"] == "missing" else f" (got {_shown(e.get('input'))[:60]!r})")
        for e in error.errors(include_url=False)[:_ERRORS_SHOWN]
    ]
    more = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _shown(value: object) -> str:
    """A value as text. Of a list or dict only its beginning: a large one takes as long as reading it."""
    return reprlib.repr(value) if isinstance(value, list | dict) else str(value)


def encode_record(record: Record) -> bytes:
    """The JSON bytes of a record, including fields at their defaults, so that a reader need not know our defaults."""
    return record.model_dump_json(by_alias=True).encode()


def json_schema(topic: str) -> dict[str, Any]:
    """The JSON Schema of a topic's records."""
    return RECORDS[topic].model_json_schema(by_alias=True) | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": topic}
