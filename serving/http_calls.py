"""One HTTP call to the server, as every client of it makes it: its address, token and certificate, its body, its answer or its error."""

import contextlib
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from schemas.decoding import describe_errors
from schemas.errors import AifError, Corrupted, Incompatible, Misconfigured, RejectedInput, Unavailable
from schemas.requests import BEARER_TOKEN, ErrorAnswer

A = TypeVar("A", bound=BaseModel)

_PORT_MAX = 65_535
READY = "/v2/health/ready"  # the path that answers 200 from a server that can rank

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for servers without TLS: to read the system's takes 40 ms, ten requests' time


def check_url(url: str) -> str:
    """The address without a slash at its end. Misconfigured (`bad_url`) unless it is the address of a server."""
    with contextlib.suppress(httpx.InvalidURL, UnicodeError):  # the latter: a part of the host's name is empty, or longer than 63
        address = httpx.URL(url)
        if address.scheme in ("http", "https") and address.host.encode("idna") and (address.port or 0) <= _PORT_MAX:
            return url.rstrip("/")
    raise Misconfigured("bad_url", f"{url!r} is no address of a server; give http://HOST:PORT or https://HOST:PORT")


def bearer_headers(token: SecretStr | str | None) -> dict[str, str]:
    """The header that carries the token, if there is one. Misconfigured (`bad_token`) for one that no header can carry."""
    secret = token.get_secret_value() if isinstance(token, SecretStr) else token
    if secret is not None and not BEARER_TOKEN.fullmatch(secret):
        raise Misconfigured(
            "bad_token",
            "the token (AIF_SERVE__TOKEN, or token=) is empty or has a space, the end of a line or a letter beyond ASCII; leave it out",
        )
    return {} if secret is None else {"authorization": f"Bearer {secret}"}


def authorities_of(url: str, ca: Path | None) -> ssl.SSLContext | bool:
    """For httpx: the system's authorities, or those of a PEM file instead. Nothing is read from disk for a server without TLS. Misconfigured
    (`tls_unusable`)."""
    if ca is None:
        return _NO_AUTHORITIES if httpx.URL(url).scheme == "http" else True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured("tls_unusable", f"{ca} cannot be used to trust a server: {error}; give a PEM file of certificates") from error


def make_body(kind: type[A], fields: Mapping[str, Any]) -> A:
    """A request's body from plain values. RejectedInput (`bad_request`) where the server would refuse it anyway."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise RejectedInput("bad_request", describe_errors(error), "schema") from error


def encode_body(body: BaseModel) -> bytes:
    """The JSON of a body, without the fields that say nothing."""
    return body.model_dump_json(exclude_none=True).encode()


def decode_answer(kind: type[A], answer: httpx.Response) -> A:
    """The answer to a call. Raises the error that the server answered with, and Incompatible (`bad_answer`) for an answer of another kind."""
    _check_status(answer)
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise Incompatible("bad_answer", f"{answer.url} answered something else than {kind.__name__}: {error}") from error


def decode_object(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer. Raises as `decode_answer`."""
    _check_status(answer)
    try:
        return dict(answer.json())
    except (ValueError, TypeError, RecursionError) as error:  # no JSON, or no object
        raise Incompatible("bad_answer", f"{answer.url} answered something else than a JSON object: {error}") from error


def _check_status(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        raise decode_error(answer)


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


def name_unreachable(url: str, error: httpx.RequestError) -> Unavailable | Misconfigured:
    """Why a server did not answer: `tls_untrusted`, or `server_unreachable`."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        told = f"{url} has a certificate that is not trusted here ({error}); name its PEM file: AIF_SERVE__TLS_CERT, or ca="
        return Misconfigured("tls_untrusted", told)
    other = ", with TLS (https://)" if isinstance(error, httpx.RemoteProtocolError) and url.startswith("http://") else ""
    return Unavailable("server_unreachable", f"{url} does not answer ({str(error) or repr(error)}); is `aif serve` running there{other}?")
