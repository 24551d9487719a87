"""The OpenAPI document: committed as it is made, served as it is committed, and true of the routes."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.limits import BODY_BYTES_MAX, DEADLINE_MS_MAX, HTTP_HEADERS_MAX
from serving.protocols.http_reply import _STATUS as STATUS
from serving.protocols.openapi import openapi_document, openapi_json
from serving.settings import ServeSection
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front

COMMITTED = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_committed_document_is_the_one_that_is_made() -> None:
    assert COMMITTED.read_bytes() == openapi_json(), "run python -m serving.protocols.openapi > docs/openapi.json"


def test_every_reference_in_it_leads_somewhere() -> None:
    document = json.loads(openapi_json())
    references = set(re.findall(r"#/components/schemas/(\w+)", openapi_json().decode()))
    assert references <= set(document["components"]["schemas"])


def test_everything_in_it_has_a_description() -> None:
    document = openapi_document()
    fields = [(name, *one) for name, schema in document["components"]["schemas"].items() for one in schema.get("properties", {}).items()]
    posts = [operation for path in document["paths"].values() for operation in path.values()]
    fields += [("parameter", one["name"], one) for operation in posts for one in operation.get("parameters", [])]
    assert len(fields) > 80 and not [(name, field) for name, field, schema in fields if not schema.get("description")]


PRERANK, INFER = "/v1/prerank", "/v2/models/prerank/infer"


@pytest.mark.parametrize("path", [PRERANK, INFER])
def test_every_refusal_has_a_status_and_the_fields_that_the_document_tells(path: str) -> None:
    document, seen = openapi_document(), set[int]()
    with open_front(FakeEngine()) as front, httpx.Client(base_url=front.url, timeout=60) as client:
        for content, headers in (
            (b"{", {}),
            (b"{}", {}),
            (b"{}", {"content-encoding": "br"}),
            (bytes(BODY_BYTES_MAX + 1), {}),
            (b"{}", {f"h{number}": "1" for number in range(HTTP_HEADERS_MAX)}),
        ):
            answer = client.post(path, content=content, headers=headers)
            told = document["paths"][path]["post"]["responses"][str(answer.status_code)]
            assert answer.headers["content-type"] in told["content"]
            schema = document["components"]["schemas"][told["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
            assert set(schema["required"]) <= answer.json().keys() <= schema["properties"].keys(), answer.text
            seen.add(answer.status_code)
    assert seen == {400, 413, 415, 431} | ({422} if path == PRERANK else set())
    assert {str(status) for status in (*seen, *STATUS.values())} - {"499"} <= document["paths"][path]["post"]["responses"].keys()


def bounds_of(schema: dict[str, Any], *names: str) -> list[Any]:
    """The values of these bounds of a field that may be null."""
    return [one[name] for one in schema.get("anyOf", [schema]) for name in names if name in one]


def test_the_bounds_in_it_are_those_of_the_server() -> None:
    """One more than each bound is refused, and the bound itself is not."""
    settings = ServeSection(port=0, candidates_max=7, deadline_ms=DEADLINE_MS_MAX)
    with open_front(FakeEngine(), settings=settings) as front, httpx.Client(base_url=front.url, timeout=60) as client:
        document = client.get("/openapi.json").json()
        fields = document["components"]["schemas"]["PrerankRequest"]["properties"]
        [most_items], [most_top_k] = bounds_of(fields["item_ids"], "maxItems"), bounds_of(fields["top_k"], "maximum")
        [most_id], [most_ms] = bounds_of(fields["request_id"], "maxLength"), bounds_of(fields["deadline_ms"], "maximum")
        [behaviours] = bounds_of(fields["behaviours"], "maxItems")
        assert most_items == 7
        for body, more in (
            ({"item_ids": [1] * most_items}, {"item_ids": [1] * (most_items + 1)}),
            ({"top_k": most_top_k}, {"top_k": most_top_k + 1}),
            ({"request_id": "a" * most_id}, {"request_id": "a" * (most_id + 1)}),
            ({"deadline_ms": most_ms}, {"deadline_ms": most_ms + 1}),
            ({"behaviours": [{"item_id": 1}] * behaviours}, {"behaviours": [{"item_id": 1}] * (behaviours + 1)}),
        ):
            for sent, status in ((body, 200), (more, 422)):
                assert client.post(PRERANK, json={"user_id": 1, "item_ids": [1], **sent}).status_code == status, str(sent)[:80]
        for parameter in document["paths"][PRERANK]["post"]["parameters"]:
            for value, status in ((parameter["schema"]["maximum"], 200), (parameter["schema"]["maximum"] + 1, 400)):
                headers = {parameter["name"]: str(value)}
                assert client.post(PRERANK, json={"user_id": 1, "item_ids": [1]}, headers=headers).status_code == status, headers


def test_tensors_as_raw_bytes_are_told_too() -> None:
    post = openapi_document()["paths"][INFER]["post"]
    assert (
        "application/octet-stream" in post["requestBody"]["content"] and "application/octet-stream" in post["responses"]["200"]["content"]
    )


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_server_has_every_route_of_the_document_and_serves_it(method: str) -> None:
    with open_front(FakeEngine()) as front, httpx.Client(base_url=front.url, timeout=60) as client:
        assert client.get("/openapi.json").content == openapi_json()
        for path, operations in openapi_document()["paths"].items():
            if method in operations and "{request_id}" not in path:
                answer = client.request(method, path.replace("{version}", "7"), content=b"{}" if method == "post" else None)
                wrong = 400 if path.startswith("/v2") else 422
                assert answer.status_code == (wrong if method == "post" else 200), (path, answer.text)


@pytest.mark.parametrize("index", [False, True], ids=["without an index", "with one"])
def test_what_a_route_without_a_body_refuses_is_told_too(index: bool) -> None:
    document, seen, right = openapi_document(), set[int](), {"authorization": f"Bearer {'t' * 20}"}
    with open_front(FakeEngine(), settings=ServeSection(port=0, token="t" * 20), index=index) as front, httpx.Client(timeout=60) as client:
        many = right | {f"h{number}": "1" for number in range(HTTP_HEADERS_MAX)}
        for path, operations in document["paths"].items():
            looks = "get" in operations and "{request_id}" not in path
            asked = [("GET", right), ("GET", {}), ("POST", right), ("GET", many)] if looks else []
            for method, headers in asked:
                answer = client.request(method, front.url + path.replace("{version}", "999"), headers=headers)
                told = operations["get"]["responses"][str(answer.status_code)]["content"]
                assert answer.headers["content-type"].partition(";")[0] in told, path
                if reference := told.get("application/json", {}).get("schema", {}).get("$ref"):
                    assert set(document["components"]["schemas"][reference.rpartition("/")[2]]["required"]) <= answer.json().keys(), path
                seen.add(answer.status_code)
    assert seen == {200, 401, 404 if index else 503, 405, 431}
