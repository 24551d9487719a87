"""The Open Inference Protocol over gRPC: messages to calls, answers to messages. Runs in the same event loop as the HTTP port.

- Messages are parsed here, not by the library: it would answer INTERNAL to a malformed message, which is the sender's fault.
- Only unary calls: in Python a stream is slower. They are registered as calls with a stream of messages, of which the first is read. On the wire both
  are the same. But this way a call that is one too many is refused before its message is read, and a call whose message never comes can be ended. The
  library's unary form would wait for the message permanently.
- Answers carry their tensors as raw bytes (`raw_output_contents`), in whichever form the inputs came.
An error is a status, and a message that begins with our code:

- RejectedInput: INVALID_ARGUMENT; UNAUTHENTICATED without the token, NOT_FOUND for an unknown model or version, UNIMPLEMENTED for a method
- Incompatible: FAILED_PRECONDITION, the version of the token is gone
- Unavailable: RESOURCE_EXHAUSTED for too many requests in work, DEADLINE_EXCEEDED, UNAVAILABLE for the rest; the trailers have retry-after-ms and
  grpc-retry-pushback-ms
- anything else: INTERNAL with an id that is in the log
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import structlog
from google.protobuf.message import DecodeError, Message

from schemas.errors import AifError, Incompatible, RejectedInput, Unavailable
from schemas.limits import BODIES_BYTES_MAX, BODY_BYTES_MAX, FEATURES_PER_SCHEMA_MAX
from schemas.requests import DEADLINE_HEADER
from serving.calls.deadline import decode_deadline_header
from serving.core.infer_body import INPUTS_MAX, InferCall, WantedOutput
from serving.core.tensors import BYTES, DTYPES, Tensor, count_elements, decode_raw, encode_raw
from serving.protocols.front import Front
from serving.protocols.http_reply import encode_error
from serving.protocols.inference_messages import pb
from serving.protocols.open_inference import MODEL_NAME, NOT_HERE, InferAnswer

SERVICE = "inference.GRPCInferenceService"
_SMALL_INTEGERS = {"INT8": "int_contents", "INT16": "int_contents", "UINT8": "uint_contents", "UINT16": "uint_contents"}
_CONTENTS: Mapping[str, str] = {
    **_SMALL_INTEGERS,
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
_PARAMETERS_MAX = 2 * FEATURES_PER_SCHEMA_MAX  # features of the context, and a few of the protocol's own
_INFER, _STREAM = "ModelInfer", "ModelStreamInfer"
_MESSAGE_S_MAX = 10.0
# A message has nearly always come when its call has. The library keeps the part that has come and does not say how much: each may be BODY_BYTES_MAX.
_SLOW_S = 0.25
_SLOW_MAX = BODIES_BYTES_MAX // BODY_BYTES_MAX
_Handler = Callable[[Any, Any], Awaitable[bytes]]
Code = grpc.StatusCode
_REFUSED = Code.RESOURCE_EXHAUSTED.name
_PUSHBACK = "grpc-retry-pushback-ms"  # stock clients with a retry policy wait for so long
_MESSAGE_CHARS_MAX = 2_000  # it travels in the trailers, which clients bound at 8 KiB
_STATUS: Mapping[str, grpc.StatusCode] = {
    "unauthorized": Code.UNAUTHENTICATED,
    "unknown_model": Code.NOT_FOUND,
    "unknown_version": Code.NOT_FOUND,
    "no_such_method": Code.UNIMPLEMENTED,
    "overloaded": Code.RESOURCE_EXHAUSTED,
    "deadline_passed": Code.DEADLINE_EXCEEDED,
    "watermark_not_reached": Code.DEADLINE_EXCEEDED,
}

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.grpc")


class GrpcApi:
    """The methods of the service; each turns the bytes of one message into those of another."""

    def __init__(self, front: Front) -> None:
        self._front, self._inference = front, front.inference
        self._slow: dict[asyncio.Timeout, None] = {}  # of messages that are still coming after _SLOW_S, the oldest first

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler]:
        """Method name → handler."""
        about = self._inference
        methods: Mapping[str, tuple[Any, Callable[[Any], Message]]] = {
            "ServerLive": (pb.ServerLiveRequest, lambda _: pb.ServerLiveResponse(live=True)),
            "ServerReady": (pb.ServerReadyRequest, lambda _: pb.ServerReadyResponse(ready=about.server_ready()[0])),
            "ModelReady": (
                pb.ModelReadyRequest,
                lambda asked: pb.ModelReadyResponse(ready=self._is_model_ready(asked.name, asked.version)),
            ),
            "ServerMetadata": (pb.ServerMetadataRequest, lambda _: pb.ServerMetadataResponse(**about.server_metadata())),
            "ModelMetadata": (
                pb.ModelMetadataRequest,
                lambda asked: pb.ModelMetadataResponse(**about.model_metadata(asked.name, asked.version)),
            ),
            "ModelStatistics": (
                pb.ModelStatisticsRequest,
                lambda asked: pb.ModelStatisticsResponse(model_stats=about.model_statistics(asked.name, asked.version)),
            ),
        }
        looks = {name: grpc.stream_unary_rpc_method_handler(self._handler(name, kind, look)) for name, (kind, look) in methods.items()}
        return {**looks, _INFER: grpc.stream_unary_rpc_method_handler(self._infer_handler())}

    def stream_handler(self) -> dict[str, grpc.RpcMethodHandler]:
        """Of the method that stock clients have and this server lacks.

        Its message is read first: an asyncio client whose call ends while it sends reports an internal error of its library.
        """

        async def refuse(raw: bytes, context: Any, received_s: float) -> bytes:
            raise RejectedInput("no_such_method", f"{_STREAM}: there is no such method; {NOT_HERE}; call {_INFER} for each ranking")

        return {_STREAM: grpc.stream_stream_rpc_method_handler(self._guarded(_STREAM, refuse))}

    def _is_model_ready(self, model: str, version: str) -> bool:
        """Also of one that is not there, as Triton answers it: clients ask until it has come."""
        try:
            return self._inference.model_ready(model, version)[0]
        except RejectedInput:
            return False

    def _handler(self, name: str, kind: Any, look: Callable[[Any], Message]) -> _Handler:
        async def answer(raw: bytes, context: Any, received_s: float) -> bytes:
            return look(decode_message(kind, raw)).SerializeToString()

        return self._guarded(name, answer)

    def _infer_handler(self) -> _Handler:
        async def answer(raw: bytes, context: Any, received_s: float) -> bytes:
            message = decode_message(pb.ModelInferRequest, raw)
            call = decode_infer(message)
            return encode_infer(
                await self._inference.infer(message.model_name, message.model_version, call, received_s, _budget_ms(context))
            )

        return self._guarded(_INFER, answer)

    def _guarded(self, name: str, answer: Callable[[bytes, Any, float], Awaitable[bytes]]) -> _Handler:
        """Wraps `answer`: reads the message, records the metrics, turns an error into a status."""

        async def handle(_: Any, context: Any) -> bytes:
            received_s, status, encoded = time.monotonic(), "OK", b""
            with self._front.intake.enter():
                try:
                    encoded = await answer(await self._read_message(context, name), context, received_s)
                except Exception as error:
                    status = report_error(context, error, name)
                except asyncio.CancelledError:  # the client cancelled the call, or went away
                    status = grpc.StatusCode.CANCELLED.name
                    raise
                finally:
                    took_s = time.monotonic() - received_s
                    asyncio.get_running_loop().call_soon(self._record, name, status, took_s, len(encoded))  # when the answer is on its way
            return encoded

        return handle

    def _record(self, name: str, status: str, seconds: float, size: int) -> None:
        self._front.record(f"grpc {name}", status, seconds, name == _INFER and status != _REFUSED)
        self._front.log("gRPC", name, status, seconds, size)

    async def _read_message(self, context: Any, name: str) -> bytes:
        """The one message of a call. Raises RejectedInput (`body_too_slow`, `bad_message`), Unavailable for an inference that is one too many."""
        intake = self._front.intake
        if name == _INFER:
            intake.check()
        try:
            with intake.reading() as take:
                async with asyncio.timeout(_MESSAGE_S_MAX) as limit:
                    slow = asyncio.get_running_loop().call_later(_SLOW_S, self._note_slow, limit)
                    try:
                        raw = await context.read()
                    finally:
                        slow.cancel()
                        self._slow.pop(limit, None)
                take(0 if raw is grpc.aio.EOF else len(raw))
        except TimeoutError as error:
            within = f"within {_MESSAGE_S_MAX:g} s, or {_SLOW_S:g} s with {_SLOW_MAX} such calls after it"
            raise RejectedInput("body_too_slow", f"the message did not come {within}; send it at once") from error
        if raw is grpc.aio.EOF:
            raise RejectedInput("bad_message", "the call has no message; send one", "malformed")
        if name == _INFER:
            intake.check_number()
        return bytes(raw)

    def _note_slow(self, limit: asyncio.Timeout) -> None:
        """One more message is slow. Beyond _SLOW_MAX the oldest is given up: so they take no more memory than bodies over HTTP may."""
        self._slow[limit] = None
        if len(self._slow) > _SLOW_MAX:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())


def _budget_ms(context: Any) -> int | None:
    """What the client's library and the metadata leave of time, the smaller of the two."""
    left_s, named_ms = context.time_remaining(), decode_deadline_header(dict(context.invocation_metadata()).get(DEADLINE_HEADER))
    given_ms = [named_ms, None if left_s is None else max(0, int(left_s * 1000))]
    return min((one for one in given_ms if one is not None), default=None)


def report_error(context: Any, error: Exception, method: str) -> str:
    """Makes the error's status that of the call, whose handler then returns; its message is dropped. Returns the status's name.

    Not by the library's `abort`: the call keeps the error that it raises, and the error's frames keep the call. So a message of up to 8 MiB stayed in memory
    until Python's collector ran, after a hundred such calls.
    """
    message, trailers, error_id = encode_grpc_error(error)
    if not isinstance(error, AifError):
        logger.error("request_failed", error_id=error_id, method=method, exc_info=error)
    status = grpc_status(error)
    context.set_code(status)
    context.set_details(message)
    context.set_trailing_metadata(trailers)
    return status.name


def grpc_status(error: Exception) -> grpc.StatusCode:
    """The gRPC status of an error."""
    if not isinstance(error, AifError):
        return Code.INTERNAL
    if error.code in _STATUS:
        return _STATUS[error.code]
    if isinstance(error, RejectedInput):
        return Code.INVALID_ARGUMENT
    if isinstance(error, Unavailable):
        return Code.UNAVAILABLE
    return Code.FAILED_PRECONDITION if isinstance(error, Incompatible) else Code.INTERNAL


def encode_grpc_error(error: Exception) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """(message, trailers, id under which the caller must log an unexpected error; empty for an error of ours)."""
    answer, error_id = encode_error(error)
    trailers = [("aif-code", answer.code)]
    if answer.retry_after_s:
        wait_ms = str(max(1, round(answer.retry_after_s * 1000)))
        trailers += [("retry-after-ms", wait_ms), (_PUSHBACK, wait_ms)]
    if isinstance(error, Unavailable) and error.receipt is not None:
        trailers.append(("aif-receipt", json.dumps(error.receipt)))
    return f"{answer.code}: {answer.message}"[:_MESSAGE_CHARS_MAX], tuple(trailers), error_id


def decode_message(kind: Any, raw: bytes) -> Any:
    """A message of `kind`. Raises RejectedInput (`bad_message`)."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise RejectedInput("bad_message", f"the message is no {kind.DESCRIPTOR.name}: {error}; send protobuf", "malformed") from error


def decode_infer(message: Any) -> InferCall:
    """The call in a ModelInferRequest. Raises RejectedInput (`bad_request`, `bad_tensor`)."""
    raws = message.raw_input_contents
    for listed, what, most in (
        (message.inputs, "inputs", INPUTS_MAX),
        (message.outputs, "outputs", INPUTS_MAX),
        (message.parameters, "parameters", _PARAMETERS_MAX),
    ):
        if len(listed) > most:
            raise RejectedInput("bad_request", f"the call has {len(listed)} {what}, expected at most {most}; send fewer")
    for owner in (*message.inputs, *message.outputs):
        if owner.parameters:
            raise RejectedInput(
                "bad_request", f"{owner.name[:80]}: parameters {', '.join(owner.parameters)[:120]} are not supported; leave them out"
            )
    if raws and len(raws) != len(message.inputs):
        raise RejectedInput("bad_tensor", f"{len(raws)} raw_input_contents for {len(message.inputs)} inputs; send one for each, or none")
    inputs = [_decode_input(one, raws[place] if raws else None) for place, one in enumerate(message.inputs)]
    return InferCall(message.id, inputs, [WantedOutput(one.name[:80]) for one in message.outputs], _decode_parameters(message.parameters))


def _decode_input(one: Any, raw: bytes | None) -> Tensor:
    name, shape = one.name[:80], tuple(one.shape)
    if raw is None:
        return _decode_contents(name, one.datatype, shape, one.contents)
    if one.HasField("contents"):
        raise RejectedInput("bad_tensor", f"{name}: values both in contents and in raw_input_contents; send one of them")
    return decode_raw(name, one.datatype, shape, raw)


def _decode_contents(name: str, datatype: str, shape: Sequence[int], contents: Any) -> Tensor:
    count = count_elements(name, datatype, shape)
    if datatype not in _CONTENTS:
        raise RejectedInput("bad_tensor", f"{name}: {datatype} travels only in raw_input_contents")
    values = getattr(contents, _CONTENTS[datatype])
    if len(values) != count:
        message = f"{name}: shape {list(shape)} has {count} values, {_CONTENTS[datatype]} has {len(values)}; correct one of them"
        raise RejectedInput("bad_tensor", message)
    if datatype == BYTES:
        return Tensor(name, datatype, tuple(shape), list(values))
    try:
        return Tensor(name, datatype, tuple(shape), np.array(values, DTYPES[datatype]))
    except OverflowError as error:
        raise RejectedInput("bad_tensor", f"{name}: a value does not fit {datatype}: {error}") from error


def _decode_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise RejectedInput("bad_request", f"parameter {name[:80]!r} has no value; give it one or leave it out")
        plain[name] = getattr(value, kind)
    return plain


def encode_infer(answer: InferAnswer) -> bytes:
    """The bytes of a ModelInferResponse."""
    outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in answer.outputs]
    message = pb.ModelInferResponse(
        model_name=MODEL_NAME,
        model_version=answer.version,
        id=answer.id,
        outputs=outputs,
        raw_output_contents=[encode_raw(one) for one in answer.outputs],
    )
    for name, value in answer.parameters.items():
        setattr(message.parameters[name], _choice(value), value)
    return bytes(message.SerializeToString())


def _choice(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param"
    return "double_param" if isinstance(value, float) else "string_param"
