"""The body of an HTTP request: read and unpacked within its bound, and JSON to the models of schemas/requests.py.

Invariant (I8): at most BODY_BYTES_MAX bytes are kept, packed or unpacked. The rest is read and thrown away, so that the client can read its 413. A body
that is too slow or ends too early gets an error answer too.
A small body whose length is declared is awaited once, as a whole. Any other body comes in pieces, and each piece costs a turn of the event loop.
"""

import asyncio
import contextlib
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from granian.rsgi import ProtocolClosed, ProtocolError
from pydantic import BaseModel, ValidationError

from schemas.decoding import ERRORS_NAMED_MAX, describe_errors
from schemas.errors import RejectedInput
from schemas.limits import BODIES_BYTES_MAX, BODY_BYTES_MAX, KIB
from serving.calls.request_ids import too_many_candidates
from serving.core.json_bounds import check_json, check_keys
from serving.protocols.front import Intake

B = TypeVar("B", bound=BaseModel)

# A body up to this size is read whole, and its length is counted before it has arrived. Only half of BODIES_BYTES_MAX is reserved in this way: otherwise
# clients that declare bodies and never send them would shut out the others.
_WHOLE_BYTES_MAX = 256 * KIB
_ANNOUNCED_BYTES_MAX = BODIES_BYTES_MAX // 2
_THROWN_AWAY_BYTES_MAX = 4 * BODY_BYTES_MAX  # of one body that is too large; the connection of a client that sends more is closed
_BODY_S_MAX = 10.0
_LOOK_S = 1.0  # between two checks of the bodies without a waiting task
_WINDOW_BITS: Mapping[str, int] = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # for zlib; HTTP's "deflate" is the zlib format


async def read_body(scope: Any, protocol: Any, intake: Intake) -> bytes:
    """The whole body, unpacked. Raises RejectedInput: `body_too_large`, `body_too_slow`, `body_cut`, `bad_encoding`; Unavailable."""
    try:
        with intake.reading() as take:
            async with asyncio.timeout(_BODY_S_MAX):
                raw = await _collect_body(scope, protocol, take, intake.reading_bytes < _ANNOUNCED_BYTES_MAX)
    except (ProtocolError, ProtocolClosed) as error:
        raise _cut() from error
    except TimeoutError as error:
        raise RejectedInput("body_too_slow", f"the body was not complete after {_BODY_S_MAX:g} s; send it at once") from error
    encoding = scope.headers.get("content-encoding")
    return raw if encoding is None else await asyncio.to_thread(unpack, raw, encoding)


class UnwantedBodies:
    """Bodies of requests that were refused, read after the answer: a connection with an unread body could never carry another request.

    Granian's own threads read a small body while no task of ours waits for it. In a flood, a second turn of the event loop for each body would cost as much
    as the refusal itself. A body that never ends must still be cancelled: each new body checks two older ones, and a timer checks all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._coming: deque[tuple[float, Any]] = deque()  # (when to cancel it, the future that Granian fills)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many bodies may still be arriving."""
        return len(self._coming)

    async def throw_away(self, scope: Any, protocol: Any) -> None:
        """Reads and drops the body of one request that was already answered. Raises nothing."""
        declared = _declared_bytes(scope)
        if declared is None or declared > _WHOLE_BYTES_MAX or len(self._coming) * _WHOLE_BYTES_MAX > BODIES_BYTES_MAX:
            await _throw_away_pieces(protocol)
            return
        for _ in range(min(2, len(self._coming))):
            self._look_after_one()
        with contextlib.suppress(ProtocolError, ProtocolClosed):
            self._coming.append((self._clock() + _BODY_S_MAX, protocol()))
        if self._timer is None:
            self._set_timer()

    def _look_after_one(self) -> None:
        ends_s, body = self._coming.popleft()
        if body.done():
            return
        if ends_s <= self._clock():
            body.cancel()  # this closes the connection too
            return
        self._coming.append((ends_s, body))

    def _look_after_all(self) -> None:
        for _ in range(len(self._coming)):
            self._look_after_one()
        self._timer = None
        if self._coming:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_after_all)


async def _throw_away_pieces(protocol: Any) -> None:
    with contextlib.suppress(ProtocolError, ProtocolClosed, TimeoutError):
        async with asyncio.timeout(_BODY_S_MAX):
            size = 0
            async for chunk in protocol:
                size += len(chunk)
                if size > _THROWN_AWAY_BYTES_MAX:
                    break


def unpack(raw: bytes, encoding: str) -> bytes:
    """The bytes behind a Content-Encoding. Raises RejectedInput (`bad_encoding`, `body_too_large`)."""
    coding = encoding.lower()
    if coding == "identity":
        return raw
    if coding not in _WINDOW_BITS:
        raise RejectedInput("bad_encoding", f"Content-Encoding is {encoding[:40]!r}, expected gzip, deflate or none")
    inflater = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        unpacked = inflater.decompress(raw, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise RejectedInput("bad_encoding", f"the body is not {encoding}: {error}", "malformed") from error
    if len(unpacked) > BODY_BYTES_MAX:
        raise _too_large(f"more than {BODY_BYTES_MAX} bytes when unpacked")
    if not inflater.eof or inflater.unused_data:
        raise RejectedInput("bad_encoding", f"the {encoding} body ends too early or too late; send one complete stream", "malformed")
    return unpacked


def _declared_bytes(scope: Any) -> int | None:
    """The length that the request's head declares; None if it declares none or not a number."""
    declared = scope.headers.get("content-length") or ""
    return int(declared[:19]) if declared.isascii() and declared.isdigit() else None


async def _collect_body(scope: Any, protocol: Any, take: Callable[[int], None], believed: bool) -> bytes:
    """`believed`: whether a small body may be counted by its declared length before it has arrived."""
    declared = _declared_bytes(scope)
    if believed and declared is not None and declared <= _WHOLE_BYTES_MAX:
        take(declared)
        return bytes(await protocol())
    return await _collect_pieces(declared or 0, protocol, take)


async def _collect_pieces(declared: int, protocol: Any, take: Callable[[int], None]) -> bytes:
    kept_max = 0 if declared > BODY_BYTES_MAX else BODY_BYTES_MAX
    if declared > _THROWN_AWAY_BYTES_MAX:
        raise _too_large(f"{declared} bytes")
    chunks: list[bytes] = []
    size, empty = 0, 0
    async for chunk in protocol:
        size, empty = size + len(chunk), empty + (not chunk)
        if size <= kept_max:
            take(len(chunk))
            chunks.append(bytes(chunk))
        else:
            chunks.clear()
        if size > _THROWN_AWAY_BYTES_MAX:
            break
    if size > kept_max:
        raise _too_large(f"{declared} bytes" if kept_max == 0 else f"more than {BODY_BYTES_MAX} bytes")
    if empty > 1:  # Granian ends a body with one empty piece, and puts another where it could not read on
        raise _cut()
    return b"".join(chunks)


def _cut() -> RejectedInput:
    return RejectedInput(
        "body_cut",
        "the body ended early or has a malformed chunk; send Content-Length bytes, or chunks of a hexadecimal size, CRLF, as many bytes, CRLF",
        "malformed",
    )


def _too_large(size: str) -> RejectedInput:
    return RejectedInput("body_too_large", f"the body has {size}, expected at most {BODY_BYTES_MAX}; send fewer candidates or behaviours")


def decode_body(kind: type[B], raw: bytes) -> B:
    """The body as a `kind`, validated strictly; the checks that are cheapest in memory come first.

    Raises RejectedInput: `json_too_deep`, `json_too_large`, `not_json`, `duplicate_key`, `too_many_candidates`, `bad_request`.
    """
    check_json(raw)
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise _rejected(error) from error
    check_keys(raw, _count_keys(body))
    return body


def _count_keys(body: BaseModel) -> int:
    """The keys that were in the body's JSON text, each once for its object. The models have no objects deeper than those of a behaviour."""
    count = len(body.model_fields_set)
    for name in body.model_fields_set:
        value = getattr(body, name)
        if isinstance(value, dict):
            count += len(value)
        elif isinstance(value, BaseModel):
            count += len(value.model_fields_set)
        elif name == "behaviours":
            count += sum(len(one.model_fields_set) + len(one.features) for one in value or ())
    return count


def _rejected(error: ValidationError) -> RejectedInput:
    for one in error.errors(include_url=False) if error.error_count() <= ERRORS_NAMED_MAX else ():
        if one["type"] == "json_invalid":
            return RejectedInput("not_json", f"the body is not JSON: {one['ctx']['error']}; send one JSON object in UTF-8", "malformed")
        if one["type"] == "too_long" and one["loc"] == ("item_ids",):
            return too_many_candidates(one["ctx"]["actual_length"], one["ctx"]["max_length"])
    return RejectedInput("bad_request", describe_errors(error), "schema")
