"""JSON bodies to the models of schemas/requests.py; every refusal names what was wrong.

Here: the checks, cheapest in memory first: nesting depth and number of values, JSON, shape, number of candidates. Not here: reading the bytes
(http_body.py), the ids in a request (calls/request_ids.py), how errors are reported (http_errors.py).
"""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from schemas.errors import RejectedInput
from schemas.events import ERRORS_NAMED_MAX, describe_errors
from serving.calls.request_ids import too_many_candidates
from serving.core.json_bounds import check_json

B = TypeVar("B", bound=BaseModel)


def decode_body(kind: type[B], raw: bytes) -> B:
    """The body as a `kind`, validated strictly.

    Raises RejectedInput: `json_too_deep`, `json_too_large`, `not_json`, `too_many_candidates`, `bad_request`.
    """
    check_json(raw)
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _rejected(error) from error


def _rejected(error: ValidationError) -> RejectedInput:
    for one in error.errors(include_url=False) if error.error_count() <= ERRORS_NAMED_MAX else ():
        if one["type"] == "json_invalid":
            return RejectedInput("not_json", f"the body is not JSON: {one['ctx']['error']}; send one JSON object in UTF-8", "malformed")
        if one["type"] == "too_long" and one["loc"] == ("item_ids",):
            return too_many_candidates(one["ctx"]["actual_length"], one["ctx"]["max_length"])
    return RejectedInput("bad_request", describe_errors(error), "schema")
