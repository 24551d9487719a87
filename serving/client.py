"""Typed clients of the HTTP routes, one for programs with threads and one for asyncio. Errors come back as the classes of schemas/errors.py.

    with Client("http://127.0.0.1:8100") as client:
        client.rank(user, items, top_k=10)      # in a program: a RankAnswer
        client.rank_frame(user, items)          # in a notebook: a DataFrame

After its deadline a ranking is not worth repeating; a caller who wants to retry finds the time in Unavailable's `retry_after_s`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr

from infra.closeable import Closeable
from schemas.errors import Misconfigured, Unavailable
from schemas.ids import Id, encode_wire_id
from schemas.requests import AllocationRequest, AtLeast, InlineBehaviour, PrerankRequest, RankAnswer, RankRequest, UserAnswer, UserRequest
from serving.http_calls import (
    READY,
    authorities_of,
    bearer_headers,
    check_url,
    decode_answer,
    decode_object,
    encode_body,
    make_body,
    name_unreachable,
)

if TYPE_CHECKING:
    import pandas as pd

    from serving.settings import ServeSection

A = TypeVar("A", bound=BaseModel)

_TIMEOUT_S = 65.0  # longer than the longest deadline a request may name
_POLL_S = 0.05


class UserOptions(TypedDict, total=False):
    """Options of call 1, as in UserRequest. `carry_state`: the answer is to hold the state itself, for a call 2 to any server."""

    request_id: str | None
    features: Mapping[str, Any] | None
    behaviours: Sequence[InlineBehaviour] | None
    version_token: str | None
    deadline_ms: int | None
    carry_state: bool


class RankOptions(TypedDict, total=False):
    """Options of call 2, as in RankRequest. `request_id`, `version_token` and `user_state` are those of call 1's answer.

    `retrieval_scores`: one per item; under load the best by them are ranked. `user_value`, `request_class`: for the allocation of computation.
    """

    top_k: int
    request_id: str | None
    version_token: str | None
    context: Mapping[str, Any]
    consistency: str | AtLeast
    deadline_ms: int | None
    user_state: str | None
    retrieval_scores: Sequence[float] | None
    user_value: float | None
    request_class: str | None


class Client(Closeable):
    """Client of one server. Thread-safe; close it, or use it as a context manager.

    Every call raises what the server answers: RejectedInput, Unavailable, Incompatible or Corrupted; and Unavailable (`server_unreachable`) if it does not.
    """

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S, token: SecretStr | str | None = None, ca: Path | None = None) -> None:
        """`token`: the server's bearer token. `ca`: a PEM file to trust instead of the system's authorities.

        Raises Misconfigured (`bad_url`, `bad_token`, `tls_unusable`); a request to a server whose certificate is not trusted raises it, too (`tls_untrusted`).
        """
        self.url = check_url(url)
        self._timeout_s = timeout_s
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, headers=bearer_headers(token), verify=authorities_of(url, ca))

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def user(self, user_id: Id, **options: Unpack[UserOptions]) -> UserAnswer:
        """Call 1: make the user half now. Pass the answer's `version_token` and `request_id` to `rank`; with `carry_state`, its `user_state` too."""
        return self._post("/v1/user", _user_request(user_id, options), UserAnswer)

    def rank(self, user_id: Id, item_ids: Sequence[Id], **options: Unpack[RankOptions]) -> RankAnswer:
        """Call 2: the best `top_k` (100) of some candidates. It computes the user half if there was no call 1."""
        return self._post("/v1/rank", _rank_request(user_id, item_ids, options), RankAnswer)

    def rank_frame(self, user_id: Id, item_ids: Any, **options: Unpack[RankOptions]) -> "pd.DataFrame":
        """`rank` for a notebook: columns item_id, score and one probability per task, best first; `frame.attrs` has the rest of the answer.

        `item_ids`: a list, a NumPy array or a column of a DataFrame. The frame's ids are of the same kind, so it can be merged with their source.
        Misconfigured (`pandas_missing`).
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise Misconfigured(
                "pandas_missing", "rank_frame makes a pandas DataFrame and pandas is not installed; install it, or call rank"
            ) from error
        given = list(_plain(item_ids))
        kind = str if any(isinstance(one, str) for one in given) else int  # numbers beyond 2**53 come back as text
        answer = self.rank(user_id, given, **options)
        rows = [{"item_id": kind(one.item_id), "score": one.score, **_by_task(one.probabilities)} for one in answer.items]
        frame = pd.DataFrame(rows, columns=None if rows else ["item_id", "score"])
        frame.attrs.update(answer.model_dump(exclude={"items"}))
        return frame

    def prerank(self, request: PrerankRequest) -> RankAnswer:
        """Both calls in one, also with the user's features and behaviours in the request."""
        return self._post("/v1/prerank", request, RankAnswer)

    def status(self) -> dict[str, Any]:
        """The server's description of itself."""
        return self._look("/v1/status")

    def allocation(self) -> dict[str, Any]:
        """Mode, price and actions of the server's allocation of computation."""
        return self._look("/v1/allocation")

    def switch_allocation(self, mode: str) -> dict[str, Any]:
        """Set the mode (off, shadow, queue, value) until the server ends."""
        return decode_object(self._send("POST", "/v1/allocation/mode", encode_body(make_body(AllocationRequest, {"mode": mode}))))

    def explain_allocation(self, request_id: str) -> dict[str, Any]:
        """A recent decision of this server with its inputs, made again. RejectedInput (`unknown_request`) for another one."""
        return self._look(f"/v1/allocation/requests/{quote(request_id, safe='')}")

    def ready(self) -> bool:
        """Whether the server answers and says that it is ready."""
        return self._why_not_ready(self._timeout_s) is None

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return once the server is ready; Unavailable (`not_ready`) with its reason after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while (why := self._why_not_ready(max(_POLL_S, end - time.monotonic()))) is not None:
            if time.monotonic() > end:
                raise _not_ready(self.url, timeout_s, why)
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _why_not_ready(self, within_s: float) -> str | None:
        try:
            return _reason(self._http.get(READY, timeout=within_s))
        except httpx.RequestError as error:
            return str(error) or repr(error)

    def _look(self, path: str) -> dict[str, Any]:
        return decode_object(self._send("GET", path))

    def _post(self, path: str, body: BaseModel, kind: type[A]) -> A:
        return decode_answer(kind, self._send("POST", path, encode_body(body)))

    def _send(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        try:
            return self._http.request(method, path, content=content, headers=_content_type(content))
        except httpx.RequestError as error:
            raise name_unreachable(self.url, error) from error


class AsyncClient:
    """`Client` for one event loop, to be awaited: the calls that rank, `status` and readiness, with the same options and errors. Close it, or use it with
    `async with`."""

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S, token: SecretStr | str | None = None, ca: Path | None = None) -> None:
        """As of `Client`."""
        self.url = check_url(url)
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout_s, headers=bearer_headers(token), verify=authorities_of(url, ca))

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def user(self, user_id: Id, **options: Unpack[UserOptions]) -> UserAnswer:
        """Call 1: make the user half now, in parallel with retrieval."""
        return await self._post("/v1/user", _user_request(user_id, options), UserAnswer)

    async def rank(self, user_id: Id, item_ids: Sequence[Id], **options: Unpack[RankOptions]) -> RankAnswer:
        """Call 2: the best `top_k` (100) of some candidates. It computes the user half if there was no call 1."""
        return await self._post("/v1/rank", _rank_request(user_id, item_ids, options), RankAnswer)

    async def prerank(self, request: PrerankRequest) -> RankAnswer:
        """Both calls in one, also with the user's features and behaviours in the request."""
        return await self._post("/v1/prerank", request, RankAnswer)

    async def status(self) -> dict[str, Any]:
        """The server's description of itself."""
        return decode_object(await self._send("GET", "/v1/status"))

    async def ready(self) -> bool:
        """Whether the server answers and says that it is ready."""
        return await self._why_not_ready(self._timeout_s) is None

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return once the server is ready; Unavailable (`not_ready`) with its reason after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while (why := await self._why_not_ready(max(_POLL_S, end - time.monotonic()))) is not None:
            if time.monotonic() > end:
                raise _not_ready(self.url, timeout_s, why)
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _why_not_ready(self, within_s: float) -> str | None:
        try:
            return _reason(await self._http.get(READY, timeout=within_s))
        except httpx.RequestError as error:
            return str(error) or repr(error)

    async def _post(self, path: str, body: BaseModel, kind: type[A]) -> A:
        return decode_answer(kind, await self._send("POST", path, encode_body(body)))

    async def _send(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        try:
            return await self._http.request(method, path, content=content, headers=_content_type(content))
        except httpx.RequestError as error:
            raise name_unreachable(self.url, error) from error


def client_of(serve: "ServeSection", url: str | None = None) -> Client:
    """A client of the server that these settings describe, or of another one under the same token and certificate."""
    return Client(url or serve.url, token=serve.token, ca=serve.tls_cert)


def _user_request(user_id: Id, options: UserOptions) -> UserRequest:
    fields: dict[str, Any] = {"user_id": encode_wire_id(_plain(user_id)), **options}
    if fields.get("features") is not None:
        fields["features"] = dict(fields["features"])
    if fields.get("behaviours") is not None:
        fields["behaviours"] = list(fields["behaviours"])
    return make_body(UserRequest, fields)


def _rank_request(user_id: Id, item_ids: Sequence[Id], options: RankOptions) -> RankRequest:
    ids = [encode_wire_id(_plain(one)) for one in _plain(item_ids)]
    fields = {"user_id": encode_wire_id(_plain(user_id)), "item_ids": ids, **options}
    if options.get("retrieval_scores") is not None:
        fields["retrieval_scores"] = [float(one) for one in options["retrieval_scores"] or ()]
    return make_body(RankRequest, fields | {"context": dict(options.get("context") or {})})


def _plain(value: Any) -> Any:
    """Python's values of what NumPy or pandas gave: a notebook takes its ids out of a frame."""
    return value.tolist() if hasattr(value, "tolist") else value


def _content_type(content: bytes | None) -> dict[str, str] | None:
    return {"content-type": "application/json"} if content else None


def _reason(answer: httpx.Response) -> str | None:
    """Why the server is not ready, by its answer; None if it is."""
    if answer.status_code == 200:
        return None
    try:
        return str(answer.json()["reason"])
    except (ValueError, TypeError, KeyError, RecursionError):  # a proxy answered
        return f"HTTP {answer.status_code}: {answer.text[:200]}"


def _not_ready(url: str, timeout_s: float, reason: str) -> Unavailable:
    return Unavailable("not_ready", f"{url} is not ready after {timeout_s:g} s: {reason}")


def _by_task(probabilities: Sequence[float]) -> Mapping[str, float]:
    """The first task of a model is the click."""
    return {"probability" if task == 0 else f"probability_{task}": value for task, value in enumerate(probabilities)}
