"""Reads the records of schemas/events.py. Acceptance is a pure function of the record's bytes (A2).

`decode_updates` checks each update of a readable record alone (A5): a bad update does not reject its neighbours.
"""

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from schemas.errors import RejectedInput
from schemas.events import Record, UserFeaturesRecord
from schemas.ids import Id, IdKind, check_partition, decode_id, encode_kafka_key
from schemas.limits import RECORD_BYTES_MAX, UPDATES_PER_RECORD_MAX

STATISTICS_OP: Literal["statistics"] = "statistics"
ERRORS_NAMED_MAX = 4_096
_STATISTICS_KEY = b"\xff"
_ERRORS_SHOWN = 3

U = TypeVar("U", bound=BaseModel)
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
    """A record of user-features, its user id in the catalogue's kind; without a value it forgets the profile or the statistics, so it is one without features.

    Raises RejectedInput: as `decode_record`, and `bad_id`, `wrong_partition`, `wrong_key` (compaction would drop or keep it instead of another user's).
    """
    try:
        record = _forgetting(key or b"") if value is None else decode_record(UserFeaturesRecord, value)
    except ValueError as error:
        raise RejectedInput("bad_id", f"the key {key!r} of a record without a value is not a user id") from error
    user = decode_id(record.user_id, kind)
    check_partition(user, partition, partitions)
    if key != (expected := user_features_key(user, record.op == STATISTICS_OP)):
        raise RejectedInput("wrong_key", f"the record of user {user!r} has the key {key and key[:80]!r}, expected {expected!r}")
    return record.model_copy(update={"user_id": user})


def user_features_key(user: Id, is_statistics: bool) -> bytes:
    """The key of a record of user-features. No text begins with the byte 0xFF, so statistics of a user have the key of no profile."""
    return _STATISTICS_KEY * is_statistics + encode_kafka_key(user)


def _forgetting(key: bytes) -> UserFeaturesRecord:
    op: Literal["upsert", "statistics"] = STATISTICS_OP if key.startswith(_STATISTICS_KEY) else "upsert"
    return UserFeaturesRecord(op=op, user_id=key.removeprefix(_STATISTICS_KEY).decode())


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
