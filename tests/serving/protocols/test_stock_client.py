"""A stock tritonclient ranks without a line of ours: over HTTP and gRPC, blocking and with asyncio, int64 and text ids."""

import asyncio
import json
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from grpc.aio import AioRpcError
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from tritonclient.utils import InferenceServerException

from infra.processes import wait_until
from schemas.ids import IdKind
from schemas.token import VersionToken
from serving.settings import ServeSection
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

CANDIDATES = np.arange(90, 130)  # 0 to 99 are known


@dataclass
class Stock:
    """One of the four clients, called as if it were blocking."""

    module: Any
    call: Callable[..., Any]

    def tensor(self, name: str, values: list[Any] | np.ndarray, datatype: str, **options: Any) -> Any:
        array = np.array(values, dtype=np.object_) if datatype == "BYTES" else np.array(values, dtype=np.int64)
        made = self.module.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, **options)
        return made

    def inputs(self, items: Any = CANDIDATES, id_type: str = "INT64", user: Any = 1, **more: Any) -> list[Any]:
        made = [self.tensor("user_id", [user], id_type), self.tensor("item_ids", items, id_type)]
        return made + [self.tensor(name, [value], "INT64" if name == "top_k" else "BYTES") for name, value in more.items()]


def http(front: Front) -> Stock:
    """Closed here and now: by the garbage collector it would be closed in any thread, and gevent in a thread that ends was seen to end the process."""

    def call(name: str, *args: Any, **kw: Any) -> Any:
        with triton_http.InferenceServerClient(front.http) as client:
            return getattr(client, name)(*args, **kw)

    return Stock(triton_http, call)


def grpc(front: Front) -> Stock:
    client = triton_grpc.InferenceServerClient(front.grpc)
    return Stock(triton_grpc, lambda name, *args, **kw: getattr(client, name)(*args, **kw))


def http_aio(front: Front) -> Stock:
    async def call(name: str, *args: Any, **kw: Any) -> Any:
        async with triton_http_aio.InferenceServerClient(front.http) as client:
            return await getattr(client, name)(*args, **kw)

    return Stock(triton_http_aio, lambda *args, **kw: asyncio.run(call(*args, **kw)))


def grpc_aio(front: Front) -> Stock:
    async def call(name: str, *args: Any, **kw: Any) -> Any:
        async with triton_grpc_aio.InferenceServerClient(front.grpc) as client:
            return await getattr(client, name)(*args, **kw)

    return Stock(triton_grpc_aio, lambda *args, **kw: asyncio.run(call(*args, **kw)))


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with open_front(FakeEngine(previous=VersionToken(6, 0, "1" * 8))) as opened:
        yield opened


@pytest.fixture(params=[http, grpc, http_aio, grpc_aio], ids=["http", "grpc", "http-asyncio", "grpc-asyncio"])
def stock(request: pytest.FixtureRequest, front: Front) -> Stock:
    return request.param(front)


def plain(answer: Any) -> dict[str, Any]:
    """Metadata and statistics as plain values, whatever the transport."""
    if isinstance(answer, dict):
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


def parameters(answer: Any) -> dict[str, Any]:
    response = answer.get_response()
    if isinstance(response, dict):
        return response["parameters"]
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}


def best(engine: FakeEngine, version: int, items: Any, count: int) -> list[int]:
    known = sorted((i for i in items if engine.known(i)), key=lambda i: (-engine.score(i, version), i))
    return known[:count]


def test_health_and_metadata_say_what_the_server_is(stock: Stock) -> None:
    assert all(stock.call(name) is True for name in ("is_server_live", "is_server_ready"))
    assert stock.call("is_model_ready", "prerank") is True
    assert stock.call("is_model_ready", "prerank", "6") is True
    server = plain(stock.call("get_server_metadata"))
    assert server["name"] == "aif" and "binary_tensor_data" in server["extensions"]
    model = plain(stock.call("get_model_metadata", "prerank"))
    assert (model["name"], model["versions"]) == ("prerank", ["7", "6"])
    assert {one["name"]: one["datatype"] for one in model["inputs"]} == {
        "user_id": "INT64",
        "item_ids": "INT64",
        "request_id": "BYTES",
        "top_k": "INT64",
        "version_token": "BYTES",
    }
    assert [(one["name"], one["datatype"]) for one in model["outputs"]] == [("item_ids", "INT64"), ("scores", "FP32")]


def test_an_inference_answers_the_best_known_candidates(stock: Stock, front: Front) -> None:
    answer = stock.call("infer", "prerank", stock.inputs(top_k=5))
    expected = best(front.engine, 7, CANDIDATES.tolist(), 5)
    assert answer.as_numpy("item_ids").tolist() == expected
    assert answer.as_numpy("scores").tolist() == [front.engine.score(i, 7) for i in expected]
    said = parameters(answer)
    assert said["version_token"] == str(front.engine.current) and said["rung"] in ("inline", "cached")
    assert said["degraded"].split(",") == ["unknown_items", "cold_user"] and (said["candidates"], said["unknown_count"]) == (40, 30)
    assert json.loads(said["watermark"]) == front.engine.watermark


def test_the_version_in_the_path_is_the_version_of_the_tables_and_is_kept_to(stock: Stock, front: Front) -> None:
    answer = stock.call("infer", "prerank", stock.inputs(top_k=9), model_version="6")
    assert answer.as_numpy("item_ids").tolist() == best(front.engine, 6, CANDIDATES.tolist(), 9)
    assert parameters(answer)["version_token"] == str(front.engine.previous)
    response = answer.get_response()
    assert (response["model_version"] if isinstance(response, dict) else response.model_version) == "6"
    with pytest.raises(InferenceServerException, match="unknown_version"):
        stock.call("infer", "prerank", stock.inputs(), model_version="5")
    with pytest.raises(InferenceServerException, match="other_version"):
        stock.call("infer", "prerank", stock.inputs(version_token=str(front.engine.current)), model_version="6")


def test_the_token_of_an_answer_pins_the_next_one_and_ids_come_back(stock: Stock, front: Front) -> None:
    answer = stock.call(
        "infer",
        "prerank",
        stock.inputs(version_token=str(front.engine.previous), request_id="r-1"),
        parameters={"consistency": "pinned", "context.hour": 5},
    )
    said = parameters(answer)
    assert (said["version_token"], said["request_id"]) == (str(front.engine.previous), "r-1")
    named = stock.call("infer", "prerank", stock.inputs(), request_id="mine").get_response()
    assert (named["id"] if isinstance(named, dict) else named.id) == "mine"


def test_an_output_may_be_asked_for_alone(stock: Stock) -> None:
    with pytest.raises(InferenceServerException, match="no output 'score'"):
        stock.call("infer", "prerank", stock.inputs(), outputs=[stock.module.InferRequestedOutput("score")])
    answer = stock.call("infer", "prerank", stock.inputs(), outputs=[stock.module.InferRequestedOutput("scores")])
    assert answer.as_numpy("scores").shape == (10,) and answer.as_numpy("item_ids") is None


def test_the_statistics_count_what_was_answered_by_version(stock: Stock) -> None:
    def counts(version: str) -> tuple[int, int]:
        stats = plain(stock.call("get_inference_statistics", "prerank", version))["model_stats"]
        [one] = [entry for entry in stats if entry["version"] == version]
        return int(one.get("inference_count", 0)), int(one.get("inference_stats", {}).get("fail", {}).get("count", 0))

    before = counts("6")
    for _ in range(3):
        stock.call("infer", "prerank", stock.inputs(), model_version="6")
    with pytest.raises(InferenceServerException):
        stock.call("infer", "prerank", stock.inputs(top_k=0), model_version="6")
    assert counts("6") == (before[0] + 3, before[1] + 1)
    everything = plain(stock.call("get_inference_statistics"))["model_stats"]
    assert {entry["version"] for entry in everything} == {"6", "7"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.inputs()[:1], "item_ids"),
        (lambda s: s.inputs()[1:], "user_id"),
        (lambda s: [*s.inputs(), s.inputs()[0]], "twice"),
        (lambda s: [*s.inputs(), s.tensor("colour", [1], "INT64")], "colour"),
        (lambda s: s.inputs(id_type="BYTES", items=["1"], user="1"), "expected INT64"),
        (lambda s: [s.inputs()[0], s.tensor("item_ids", [[1, 2]], "INT64")], "no batch dimension"),
        (lambda s: [s.inputs()[0], s.tensor("item_ids", np.zeros(0), "INT64")], "expected [1 or more]"),
        (lambda s: s.inputs(items=np.arange(20_001)), "20001 ids, expected at most 20000"),
        (lambda s: s.inputs(top_k=-1), "top_k"),
        (lambda s: s.inputs(version_token="newest"), "bad_version_token"),
        (lambda s: s.inputs(request_id=b"\xff\xfe"), "UTF-8"),
        (lambda s: s.inputs(request_id="r" * 500), "request_id"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(stock: Stock, change: Callable[[Stock], list[Any]], named: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        stock.call("infer", "prerank", change(stock))
    assert named in caught.value.message()
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert stock.call("is_server_live") is True


def test_a_model_or_version_that_is_not_there_is_not_ready_so_that_a_client_may_wait_for_it(stock: Stock) -> None:
    assert stock.call("is_model_ready", "prerank", "9") is False
    assert stock.call("is_model_ready", "resnet") is False


def test_another_model_and_an_unknown_parameter_are_named(stock: Stock) -> None:
    for name, args, code in (
        ("infer", ("resnet", stock.inputs()), "unknown_model"),
        ("get_model_metadata", ("resnet",), "unknown_model"),
        ("get_model_metadata", ("prerank", "5"), "unknown_version"),
    ):
        with pytest.raises(InferenceServerException, match=code) as caught:
            stock.call(name, *args)
        assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
    with pytest.raises(InferenceServerException, match="top_n"):
        stock.call("infer", "prerank", stock.inputs(), parameters={"top_n": 5})
    with pytest.raises(InferenceServerException, match="sequence_"):
        stock.call("infer", "prerank", stock.inputs(), sequence_id=3)
    elsewhere = stock.inputs()
    elsewhere[0].set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match=r"shared_memory_region.* not supported"):
        stock.call("infer", "prerank", elsewhere)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("get_model_config", ("prerank",)),
        ("get_model_repository_index", ()),
        ("load_model", ("prerank",)),
        ("get_trace_settings", ()),
        ("get_log_settings", ()),
        ("get_system_shared_memory_status", ()),
        ("unregister_cuda_shared_memory", ()),
    ],
)
def test_an_extension_of_tritons_that_is_not_here_is_refused_with_what_is(stock: Stock, name: str, args: tuple[str, ...]) -> None:
    with pytest.raises(InferenceServerException, match=r"there is no such .*; Triton's .* repository, .* are not here") as caught:
        stock.call(name, *args)
    assert caught.value.status() in ("404", "StatusCode.UNIMPLEMENTED")


def test_a_stream_gets_a_clear_error_and_no_empty_answer_before_it(front: Front) -> None:
    answers = queue.SimpleQueue[tuple[Any, Any]]()
    with triton_grpc.InferenceServerClient(front.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("prerank", grpc(front).inputs())
        result, error = answers.get(timeout=20)
    assert result is None and "no_such_method" in str(error) and "stream extensions are not here" in str(error)

    async def call() -> None:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "prerank", "inputs": grpc_aio(front).inputs()}

        async with triton_grpc_aio.InferenceServerClient(front.grpc) as client:
            async for answer in client.stream_infer(requests()):
                answers.put(answer)

    with pytest.raises(AioRpcError, match="stream extensions are not here"):
        asyncio.run(call())
    assert answers.empty()


def test_a_timeout_in_microseconds_or_the_header_is_the_requests_deadline() -> None:
    with open_front(FakeEngine(stuck=True)) as stuck:
        for make in (http, grpc):
            stock = make(stuck)
            with pytest.raises(InferenceServerException, match="deadline of 31 ms"):
                stock.call("infer", "prerank", stock.inputs(), timeout=30_500)
            with pytest.raises(InferenceServerException, match="deadline of 32 ms"):
                stock.call("infer", "prerank", stock.inputs(), headers={"x-aif-deadline-ms": "32"})
            with pytest.raises(InferenceServerException, match="bad_deadline"):
                stock.call("infer", "prerank", stock.inputs(), headers={"x-aif-deadline-ms": "soon"})


def test_text_ids_travel_as_bytes() -> None:
    with open_front(FakeEngine(text_ids=True), IdKind.TEXT) as front:
        for make in (http, grpc, http_aio, grpc_aio):
            stock = make(front)
            answer = stock.call("infer", "prerank", stock.inputs(items=["12", "7", "99", "500"], id_type="BYTES", user="anna"))
            expected = sorted(["12", "7", "99"], key=lambda i: -front.engine.score(i, 7))
            assert [one.decode() for one in answer.as_numpy("item_ids").tolist()] == expected
            assert json.loads(parameters(answer)["unknown_items"]) == ["500"]
            assert stock.call("get_model_metadata", "prerank") is not None


def test_the_access_log_has_a_line_for_each_request_of_both_ports_with_the_id_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serving.access")
    with (
        capture_logs(processors=[merge_contextvars]) as lines,
        open_front(FakeEngine(), settings=ServeSection(port=0, access_log=True)) as front,
    ):
        for open_client, ids in ((http, ("a", "b")), (grpc, ("c", "d"))):
            stock = open_client(front)
            for one in ids:
                stock.call("infer", "prerank", stock.inputs(), request_id=one)
            with pytest.raises(InferenceServerException):
                stock.call("infer", "prerank", stock.inputs()[:1])
            assert stock.call("is_server_live")
        wait_until(lambda: len(lines) == 8, 10, "eight lines")
    seen = [(one["method"], one["status"], one.get("request_id")) for one in lines]
    assert seen[:4] == [("POST", 200, "a"), ("POST", 200, "b"), ("POST", 400, None), ("GET", 200, None)]
    assert seen[4:] == [("gRPC", "OK", "c"), ("gRPC", "OK", "d"), ("gRPC", "INVALID_ARGUMENT", None), ("gRPC", "OK", None)]
    assert all(one["event"] == "request" and one["took_ms"] > 0 and one["bytes"] > 0 for one in lines if one["status"] in (200, "OK"))


def test_json_tensors_and_packed_bodies_are_the_same_request(front: Front) -> None:
    stock = http(front)
    expected = stock.call("infer", "prerank", stock.inputs()).as_numpy("item_ids").tolist()
    as_json = [stock.tensor("user_id", [1], "INT64", binary_data=False), stock.tensor("item_ids", CANDIDATES, "INT64", binary_data=False)]
    outputs = [triton_http.InferRequestedOutput(name, binary_data=False) for name in ("item_ids", "scores")]
    answer = stock.call("infer", "prerank", as_json, outputs=outputs)
    assert answer.as_numpy("item_ids").tolist() == expected
    for packed in ("gzip", "deflate"):
        answer = stock.call("infer", "prerank", stock.inputs(), request_compression_algorithm=packed, response_compression_algorithm=packed)
        assert answer.as_numpy("item_ids").tolist() == expected
    answer = grpc(front).call("infer", "prerank", grpc(front).inputs(), compression_algorithm="gzip")
    assert answer.as_numpy("item_ids").tolist() == expected


def test_ten_thousand_ids_go_through_without_a_loop_over_them(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    submit = front.engine.submit_rank
    monkeypatch.setattr(front.engine, "submit_rank", lambda work: (seen.append(work.item_ids), submit(work))[1])
    items = np.random.default_rng(1).permutation(10_000).astype(np.int64)
    for make in (http, grpc):
        stock = make(front)
        stock.call("infer", "prerank", stock.inputs(items=items))
    for ids in seen:
        assert isinstance(ids, np.ndarray) and ids.dtype == np.int64 and np.array_equal(ids, items)
        assert ids.flags.aligned and ids.flags.writeable, "compiled code has one form of array; another would be compiled during a request"
