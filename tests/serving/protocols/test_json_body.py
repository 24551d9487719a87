"""The cost of refusing a JSON body: it is read in the event loop, and a client that sends nonsense must not keep all others waiting."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from schemas.errors import RejectedInput
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX, BODY_BYTES_MAX, CANDIDATES_MAX
from schemas.requests import InlineBehaviour, RankRequest, UserRequest
from serving.protocols import http_api
from serving.protocols.http_body import decode_body
from tests import plain_http
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front

MANY = CANDIDATES_MAX // 2


def rank(ids: bytes, more: bytes = b"") -> bytes:
    return b'{"user_id":1,"item_ids":[' + ids + b"]" + more + b"}"


def cpu_s(call: Callable[[], object]) -> float:
    """The least of three runs, as processor time of this thread."""

    def once() -> float:
        start_s = time.thread_time()
        call()
        return time.thread_time() - start_s

    return min(once() for _ in range(3))


def refuse(raw: bytes) -> None:
    with pytest.raises(RejectedInput):
        decode_body(RankRequest, raw)


WRONG: dict[str, Callable[[], bytes]] = {
    "no ids": lambda: rank(b",".join([b"1.5"] * MANY)),
    "unknown fields": lambda: rank(b"1", b"".join(b',"a%d":1' % place for place in range(8 * MANY))),
    "wrong features": lambda: rank(b"1", b',"context":{' + b",".join(b'"a%d":{}' % place for place in range(8 * MANY)) + b"}"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_body_costs_little_more_to_refuse_than_a_right_one_of_its_size_to_read(what: str) -> None:
    wrong = WRONG[what]()
    assert len(wrong) <= BODY_BYTES_MAX
    right = rank(b",".join(b"%d" % place for place in range(MANY)))
    right_s = cpu_s(lambda: decode_body(RankRequest, right)) * max(1.0, len(wrong) / len(right))
    assert cpu_s(lambda: refuse(wrong)) < 4 * right_s


def long_history() -> str:
    one = InlineBehaviour(item_id=1, features={f"feature_{place}": 0.5 for place in range(5)})
    return UserRequest.model_construct(user_id=1, behaviours=[one] * BEHAVIOURS_PER_REQUEST_MAX).model_dump_json(exclude_unset=True)


def test_bodies_that_wait_for_a_thread_are_bounded_with_those_that_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, began, go_on = long_history(), threading.Event(), threading.Event()

    def decode(*given: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return decode_body(*given)

    monkeypatch.setattr(http_api, "decode_body", decode)
    monkeypatch.setattr("serving.protocols.front.BODIES_BYTES_MAX", len(raw) * 3 // 2)
    with open_front(FakeEngine()) as front, ThreadPoolExecutor(1) as threads:
        first = threads.submit(plain_http.post, front.url + "/v1/user", content=raw, timeout=60)
        assert began.wait(60)
        second = plain_http.post(front.url + "/v1/user", content=raw, timeout=60)
        go_on.set()
        assert (second.status_code, second.json()["code"], first.result().status_code) == (429, "overloaded", 200)


def test_long_histories_are_decoded_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, at_work, most = long_history(), list[int](), list[int]()

    def decode(*given: Any) -> Any:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.1)
        at_work.pop()
        return decode_body(*given)

    monkeypatch.setattr(http_api, "decode_body", decode)
    with open_front(FakeEngine()) as front, ThreadPoolExecutor(3) as threads:
        sent = [threads.submit(plain_http.post, front.url + "/v1/user", content=raw, timeout=60) for _ in range(3)]
        assert [one.result().status_code for one in sent] == [200] * 3 and most == [1] * 3


def test_whoever_brings_a_long_history_keeps_nobody_waiting() -> None:
    raw = long_history()
    with open_front(FakeEngine()) as front, httpx.Client(base_url=front.url, timeout=60) as client, ThreadPoolExecutor(1) as threads:

        def longest_wait() -> float:
            """Of requests during the long one, as a share of the time that the long one takes."""
            start_s, waited_s = time.perf_counter(), list[float]()
            long = threads.submit(plain_http.post, front.url + "/v1/user", content=raw, timeout=60)
            while not long.done():
                sent_s = time.perf_counter()
                assert client.get("/v2/health/live").status_code == 200
                waited_s.append(time.perf_counter() - sent_s)
            assert long.result().json()["behaviours"] == BEHAVIOURS_PER_REQUEST_MAX
            return max(waited_s) / (time.perf_counter() - start_s)

        assert min(longest_wait() for _ in range(4)) < 0.4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rank", b'{"user_id": 1, "item_ids": [1], "user_id": 2}'),
        ("/v1/rank", b'{"user_id": 1, "item_ids": [1], "context": {"a": 1, "\\u0061": 2}}'),
        ("/v1/rank", b'{"user_id": 1, "item_ids": [1], "request_id": "a:b\\":", "consistency": "latest", "consistency": "latest"}'),
        ("/v1/user", b'{"user_id": 1, "behaviours": [{"item_id": 1}, {"item_id": 2, "kind": "a", "item_id": 3}]}'),
        ("/v1/user", b'{"user_id": 1, "behaviours": [{"item_id": 1, "features": {"a": 1, "a": 2}}]}'),
        ("/v2/models/prerank/infer", b'{"inputs": [{"name": "user_id", "shape": [1], "datatype": "INT64", "data": [1], "data": [2]}]}'),
        ("/v2/models/prerank/infer", b'{"inputs": [], "parameters": {"context.a": 1, "context.a": 2}}'),
    ],
)
def test_a_key_that_an_object_has_twice_is_refused(path: str, body: bytes) -> None:
    with open_front(FakeEngine()) as front:
        answer = plain_http.post(front.url + path, content=body, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, "duplicate_key"), answer.text
    assert "1 repeat one of the same object" in answer.text


def test_colons_in_texts_are_no_keys() -> None:
    features = {"a": "x:y", "b": ["::", '"\\:']}
    behaviours = [{"item_id": 1, "features": features}] * 50
    body = {"user_id": 1, "item_ids": [1, 2], "request_id": "a:b", "features": features, "behaviours": behaviours, "context": features}
    with open_front(FakeEngine()) as front:
        answer = plain_http.post(front.url + "/v1/prerank", content=json.dumps(body).encode(), timeout=60)
    assert answer.status_code == 200, answer.text
