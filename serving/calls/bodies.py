"""Request bodies: bytes to models of schemas/requests.py and ids of the catalogue's kind; every refusal names what was wrong.

Here: the checks in the order in which they cost memory (size, depth, JSON, shape, number of candidates, ids). Not here: reading the bytes
(http_api.py), what an error is in HTTP (http_errors.py).
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.errors import RejectedInput
from schemas.events import describe_errors
from schemas.ids import Id, IdKind, decode_id
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX, JSON_DEPTH_MAX, TEXT_ID_BYTES_MAX
from schemas.requests import InlineBehaviour
from serving.core.json_depth import json_depth

B = TypeVar("B", bound=BaseModel)
_DECIMAL = b"-,0123456789"


def decode_body(kind: type[B], raw: bytes) -> B:
    """A body, strictly. Raises RejectedInput: `json_too_deep`, `not_json`, `too_many_candidates`, `bad_request`."""
    depth = json_depth(raw, JSON_DEPTH_MAX)
    if depth > JSON_DEPTH_MAX:
        raise RejectedInput("json_too_deep", f"the body nests {depth} levels deep, expected at most {JSON_DEPTH_MAX}; send a flat request")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _rejected(error) from error


def _rejected(error: ValidationError) -> RejectedInput:
    errors = error.errors(include_url=False)
    for one in errors:
        if one["type"] == "json_invalid":
            return RejectedInput("not_json", f"the body is not JSON: {one['ctx']['error']}; send one JSON object in UTF-8", "malformed")
        if one["type"] == "too_long" and one["loc"] == ("item_ids",):
            return too_many_candidates(one["ctx"]["actual_length"], one["ctx"]["max_length"])
    return RejectedInput("bad_request", describe_errors(error), "schema")


def too_many_candidates(count: int, allowed: int) -> RejectedInput:
    """The one error for a list of candidates that is too long."""
    return RejectedInput("too_many_candidates", f"item_ids has {count} ids, expected at most {allowed}; send fewer or split the request")


def decode_candidates(ids: Sequence[Id] | np.ndarray, kind: IdKind, candidates_max: int) -> Sequence[Id] | np.ndarray:
    """Candidates in the catalogue's kind: int64 array, or list of text. Raises RejectedInput (`too_many_candidates`, `bad_id`).

    Ids that came as an array of numbers are taken as they are (10^4 of them: 2 us); those that came as plain numbers, or as ASCII text, are
    checked all at once (0.2 ms), and so are numbers in text, which is how those beyond 2**53 travel (0.6 ms); others one by one (4 ms).
    """
    if len(ids) > candidates_max:
        raise too_many_candidates(len(ids), candidates_max)
    if isinstance(ids, np.ndarray):
        return _own_array(ids, kind)
    kinds = set(map(type, ids))
    if kind is IdKind.INT64 and kinds == {int}:
        return np.fromiter(ids, np.int64, len(ids))
    if kind is IdKind.INT64 and kinds == {str} and (numbers := _decode_decimals(ids)) is not None:  # type: ignore[arg-type]
        return numbers
    if kind is IdKind.TEXT and kinds == {str} and all(map(str.isascii, ids)) and max(map(len, ids)) <= TEXT_ID_BYTES_MAX:  # type: ignore[arg-type]
        return ids
    decoded = [decode_id(one, kind) for one in ids]
    return np.fromiter(decoded, np.int64, len(decoded)) if kind is IdKind.INT64 else decoded


def _decode_decimals(ids: Sequence[str]) -> np.ndarray | None:
    """Numbers in text, all at once; None where one of them is anything else, which is then found by looking at each."""
    try:
        joined = ",".join(ids).encode()
        if joined.translate(None, _DECIMAL):
            return None
        numbers = from_json(b"[" + joined + b"]")
        return np.fromiter(numbers, np.int64, len(ids)) if len(numbers) == len(ids) else None  # "1,2" would be two
    except (ValueError, OverflowError):  # a lone surrogate, "1-2", "007"; a number beyond int64
        return None


def _own_array(ids: np.ndarray, kind: IdKind) -> np.ndarray:
    """A copy that is aligned and writable: compiled code has one form for such arrays, and would be compiled anew for bytes of a body."""
    if kind is not IdKind.INT64 or ids.dtype != np.int64 or ids.ndim != 1:
        raise RejectedInput(
            "bad_id", f"ids are an array of {ids.dtype}, {ids.ndim} dimensions; this catalogue's ids are {kind.value}, in a list"
        )
    return ids.copy()


def decode_behaviours(behaviours: Sequence[InlineBehaviour], kind: IdKind) -> BehaviourColumns:
    """Behaviours that came in a request, oldest first."""
    return EMPTY.append([(decode_id(b.item_id, kind), b.kind, b.time_ms, b.features) for b in behaviours], BEHAVIOURS_PER_REQUEST_MAX)
