"""A small typed client of the HTTP routes. Errors come back as the classes of schemas/errors.py.

    with AifClient("http://127.0.0.1:8100") as client:
        client.rank_frame(user, items)          # in a notebook: a DataFrame
        client.rank(user, items, top_k=10)      # in a program: a RankAnswer

Here: one connection pool; bodies and answers as models of schemas/requests.py. Not here: retries. After its deadline a ranking is not worth repeating;
a caller who wants to retry finds the time in Unavailable's `retry_after_s`.
"""

import contextlib
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from infra.closeable import Closeable
from schemas.errors import AifError, Corrupted, Incompatible, Misconfigured, RejectedInput, Unavailable
from schemas.events import describe_errors
from schemas.ids import Id, encode_wire_id
from schemas.requests import (
    BEARER_TOKEN,
    AtLeast,
    ErrorAnswer,
    InlineBehaviour,
    PrerankRequest,
    RankAnswer,
    RankRequest,
    UserAnswer,
    UserRequest,
)

if TYPE_CHECKING:
    import pandas as pd

    from serving.settings import ServeSection

A = TypeVar("A", bound=BaseModel)

_TIMEOUT_S = 65.0  # longer than the longest deadline a request may name
_POLL_S = 0.05
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for servers without TLS: to read the system's takes 40 ms, ten requests' time


class AifClient(Closeable):
    """Client of one server. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S, token: SecretStr | str | None = None, ca: Path | None = None) -> None:
        """`token`: the server's bearer token. `ca`: a PEM file to trust instead of the system's authorities.

        Raises Misconfigured (`bad_url`, `bad_token`, `tls_unusable`); a request to a server whose certificate is not trusted raises it, too (`tls_untrusted`).
        """
        self.url = check_url(url)
        authorities = _NO_AUTHORITIES if ca is None and httpx.URL(url).scheme == "http" else trust(ca)
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, headers=bearer_headers(token), verify=authorities)

    def __repr__(self) -> str:
        return f"AifClient({self.url!r})"

    def user(
        self,
        user_id: Id,
        *,
        request_id: str | None = None,
        features: Mapping[str, Any] | None = None,
        behaviours: Sequence[InlineBehaviour] | None = None,
        version_token: str | None = None,
        deadline_ms: int | None = None,
        carry_state: bool = False,
    ) -> UserAnswer:
        """Call 1: makes the user half now. Pass the answer's `version_token` and `request_id` to `rank`; with `carry_state`, its `user_state` too."""
        fields = {
            "user_id": encode_wire_id(_plain(user_id)),
            "request_id": request_id,
            "features": None if features is None else dict(features),
            "behaviours": None if behaviours is None else list(behaviours),
            "version_token": version_token,
            "deadline_ms": deadline_ms,
            "carry_state": carry_state,
        }
        return self._post("/v1/user", make_body(UserRequest, fields), UserAnswer)

    def rank(
        self,
        user_id: Id,
        item_ids: Sequence[Id],
        *,
        top_k: int = 100,
        request_id: str | None = None,
        version_token: str | None = None,
        context: Mapping[str, Any] | None = None,
        consistency: str | AtLeast = "latest",
        deadline_ms: int | None = None,
        user_state: str | None = None,
    ) -> RankAnswer:
        """Call 2: the top-k of some candidates. RejectedInput, Unavailable, Incompatible as the server says."""
        fields = {
            "user_id": encode_wire_id(_plain(user_id)),
            "item_ids": [encode_wire_id(_plain(one)) for one in _plain(item_ids)],
            "top_k": top_k,
            "request_id": request_id,
            "version_token": version_token,
            "context": dict(context or {}),
            "consistency": consistency,
            "deadline_ms": deadline_ms,
            "user_state": user_state,
        }
        return self._post("/v1/rank", make_body(RankRequest, fields), RankAnswer)

    def rank_frame(self, user_id: Id, item_ids: Any, **options: Any) -> "pd.DataFrame":
        """`rank` for a notebook: columns item_id, score and one probability per task, best first; `frame.attrs` says what it was made of.

        `item_ids`: a list, a NumPy array or a column of a DataFrame, and the frame's ids are of the same kind: it can be merged with what they came from.
        `options` as of `rank`. Misconfigured (`pandas_missing`).
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
        """Both calls in one."""
        return self._post("/v1/prerank", request, RankAnswer)

    def status(self) -> dict[str, Any]:
        """What the server says of itself."""
        answer = self._send("GET", "/v1/status")
        return dict(answer.json())

    def ready(self) -> bool:
        """Whether the server answers and says that it is ready."""
        try:
            return bool(self._http.get("/v2/health/ready").status_code == 200)
        except httpx.RequestError:
            return False

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns once the server is ready; Unavailable (`not_ready`) with its reason after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > end:
                raise Unavailable("not_ready", f"{self.url} is not ready after {timeout_s:g} s: {self._why_not_ready()}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _why_not_ready(self) -> str:
        try:
            return str(self._http.get("/v2/health/ready").json().get("reason", ""))
        except (httpx.RequestError, ValueError) as error:
            return str(error)

    def _post(self, path: str, body: BaseModel, kind: type[A]) -> A:
        answer = self._send("POST", path, body.model_dump_json(exclude_none=True).encode())
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise Incompatible("bad_answer", f"{self.url}{path} answered something else than {kind.__name__}: {error}") from error

    def _send(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, content=content, headers={"content-type": "application/json"} if content else None)
        except httpx.RequestError as error:
            raise name_unreachable(self.url, error) from error
        if answer.status_code != 200:
            raise decode_error(answer)
        return answer


def client_of(serve: "ServeSection", url: str | None = None) -> AifClient:
    """A client of the server that these settings describe, or of another one under the same token and certificate."""
    scheme = "http" if serve.tls_cert is None else "https"
    return AifClient(url or f"{scheme}://{serve.host}:{serve.port}", token=serve.token, ca=serve.tls_cert)


def _plain(value: Any) -> Any:
    """Python's values of what NumPy or pandas gave: a notebook takes its ids out of a frame."""
    return value.tolist() if hasattr(value, "tolist") else value


def check_url(url: str) -> str:
    """The address without a slash at its end. Misconfigured (`bad_url`) if it is none of a server."""
    with contextlib.suppress(httpx.InvalidURL):
        address = httpx.URL(url)
        if address.scheme in ("http", "https") and address.host:
            return url.rstrip("/")
    raise Misconfigured("bad_url", f"{url!r} is no address of a server; give http://HOST:PORT or https://HOST:PORT")


def name_unreachable(url: str, error: httpx.RequestError) -> Unavailable | Misconfigured:
    """Why a server did not answer: `tls_untrusted`, or `server_unreachable`."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        told = f"{url} has a certificate that is not trusted here ({error}); name its PEM file: AIF_SERVE__TLS_CERT, or ca="
        return Misconfigured("tls_untrusted", told)
    other = ", with TLS (https://)" if isinstance(error, httpx.RemoteProtocolError) and url.startswith("http://") else ""
    return Unavailable("server_unreachable", f"{url} does not answer ({str(error) or repr(error)}); is `aif serve` running there{other}?")


def bearer_headers(token: SecretStr | str | None) -> dict[str, str]:
    """The header that carries the token, if there is one. Misconfigured (`bad_token`) for one that no header can carry."""
    secret = token.get_secret_value() if isinstance(token, SecretStr) else token
    if secret is not None and not BEARER_TOKEN.fullmatch(secret):
        raise Misconfigured(
            "bad_token",
            "the token (AIF_SERVE__TOKEN, or token=) is empty or has a space, the end of a line or a letter beyond ASCII; leave it out",
        )
    return {} if secret is None else {"authorization": f"Bearer {secret}"}


def trust(ca: Path | None) -> ssl.SSLContext | bool:
    """For httpx: the system's authorities, or those of a PEM file instead. Misconfigured (`tls_unusable`)."""
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured("tls_unusable", f"{ca} cannot be used to trust a server: {error}; give a PEM file of certificates") from error


def _by_task(probabilities: Sequence[float]) -> Mapping[str, float]:
    """The first task of a model is the click."""
    return {"probability" if task == 0 else f"probability_{task}": value for task, value in enumerate(probabilities)}


def make_body(kind: type[A], fields: Mapping[str, Any]) -> A:
    """A request's body from plain values. RejectedInput (`bad_request`) where the server would refuse it anyway."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise RejectedInput("bad_request", describe_errors(error), "schema") from error


def decode_error(answer: httpx.Response) -> AifError:
    """The error that the server answered with, in the class that says who must act."""
    try:
        error = ErrorAnswer.model_validate_json(answer.content)
    except ValidationError:
        error = ErrorAnswer(code="bad_answer", message=f"HTTP {answer.status_code}: {answer.text[:200]}")
    status = answer.status_code
    if status in (429, 503, 504):
        return Unavailable(error.code, error.message, error.retry_after_s or 0.0)
    if status == 409:
        return Incompatible(error.code, error.message)
    return RejectedInput(error.code, error.message) if status < 500 else Corrupted(error.code, error.message)
