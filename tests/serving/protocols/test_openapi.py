"""The OpenAPI document: committed as it is made, served as it is committed, and true of the routes."""

import json
import re
from pathlib import Path

import httpx
import pytest

from serving.protocols.openapi import openapi_document, openapi_json
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front

COMMITTED = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_committed_document_is_the_one_that_is_made() -> None:
    assert COMMITTED.read_bytes() == openapi_json(), "run python -m serving.protocols.openapi > docs/openapi.json"


def test_every_reference_in_it_leads_somewhere() -> None:
    document = json.loads(openapi_json())
    references = set(re.findall(r"#/components/schemas/(\w+)", openapi_json().decode()))
    assert references <= set(document["components"]["schemas"])


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_server_has_every_route_of_the_document_and_serves_it(method: str) -> None:
    with open_front(FakeEngine()) as front, httpx.Client(base_url=front.url) as client:
        assert client.get("/openapi.json").content == openapi_json()
        for path, operations in openapi_document()["paths"].items():
            if method in operations:
                answer = client.request(method, path.replace("{version}", "7"), content=b"{}" if method == "post" else None)
                assert answer.status_code == (422 if method == "post" else 200), (path, answer.text)
