"""Requests that schemathesis makes of the OpenAPI document, valid ones and others, against the real HTTP port with the real engine behind it."""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error, positive_data_acceptance

from schemas.limits import CANDIDATES_MAX
from serving.calls.carried_state import CarriedStates
from serving.protocols.openapi import openapi_json
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version, running_engine
from tests.serving.front import Front, open_front

DOCUMENT = schemathesis.openapi.from_dict(json.loads(openapi_json(CANDIDATES_MAX)))


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    carried = CarriedStates(SecretStr("a key of the tests"), "index", 600)
    with running_engine(make_version(SPECS["full"], 40)) as engine, open_front(engine, carried=carried) as opened:
        yield opened


@pytest.mark.campaign
@pytest.mark.timeout(1_200)
@DOCUMENT.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_document_tells(case: schemathesis.Case, front: Front) -> None:
    # A schema cannot say which values fit together, so some bodies that it allows are refused, by name. A body that is too large has the status 413, and a
    # deadline of a millisecond the status 504: both are in the document.
    response = case.call(base_url=front.url)
    assert response.status_code != 500
    if response.status_code != 413:
        case.validate_response(response, excluded_checks=[positive_data_acceptance, not_a_server_error])
