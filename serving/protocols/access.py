"""Who may ask: one bearer token for the whole server, and no open port to the world by accident.

The health and readiness probes are answered without a token: an orchestrator that asks them has none, and the answer reveals nothing else.
"""

import hmac
import ipaddress
from collections.abc import Sequence

from pydantic import SecretStr

from schemas.errors import Misconfigured, RejectedInput
from schemas.requests import BEARER_TOKEN

_TOKEN_CHARS_MIN = 16
_SCHEME = "bearer "


class Access:
    """Lets in the requests that carry the token, or all of them if no token is set."""

    def __init__(self, token: SecretStr | None) -> None:
        self._token = None if token is None else token.get_secret_value().encode()

    @property
    def open(self) -> bool:
        """Whether requests need no token."""
        return self._token is None

    def check(self, authorization: Sequence[str]) -> None:
        """`authorization`: the values of all such headers. Raises RejectedInput (`unauthorized`), also if there are several: a proxy in between might have
        judged another one. The comparison takes the same time for every wrong token."""
        if self._token is None:
            return
        if len(authorization) > 1:
            raise RejectedInput(
                "unauthorized", f"the request has {len(authorization)} authorization headers, expected one; send only the token's"
            )
        given = authorization[0] if authorization else ""
        matches = hmac.compare_digest(given[len(_SCHEME) :].encode(errors="replace"), self._token)
        if not (given[: len(_SCHEME)].lower() == _SCHEME and matches):
            raise RejectedInput(
                "unauthorized", "this server needs a token; send it as `Authorization: Bearer <token>` (AIF_SERVE__TOKEN there)"
            )


def check_exposure(host: str, token: SecretStr | None, allow_open: bool) -> None:
    """Raises Misconfigured: `bad_token`, or `open_to_the_network` for an address beyond loopback without a token."""
    if token is not None and not (len(token.get_secret_value()) >= _TOKEN_CHARS_MIN and BEARER_TOKEN.fullmatch(token.get_secret_value())):
        raise Misconfigured(
            "bad_token",
            f"AIF_SERVE__TOKEN must have at least {_TOKEN_CHARS_MIN} characters, all of them visible ASCII: no space, no end of a line;"
            " make a longer one, or leave those out",
        )
    if token is None and not allow_open and not _is_loopback(host):
        raise Misconfigured(
            "open_to_the_network",
            f"address {host} is reachable from other machines and no token is set; set AIF_SERVE__TOKEN, or AIF_SERVE__ALLOW_OPEN=true",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
