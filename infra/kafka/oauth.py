"""Tokens for SASL/OAUTHBEARER: from a token endpoint by the client credentials grant (RFC 6749, 4.4), or from a file that another program renews.

Standard library only.
"""

import base64
import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from schemas.errors import Unavailable

_FETCH_S_MAX = 10.0
_LIFE_S = 300.0  # of a token that does not say when it ends
_EARLY = 0.8  # share of a token's life after which the next one is fetched


class TokenSource:
    """Fetches tokens, and keeps each for most of its life, or to its end while no other can be had. Safe to share by threads. `secret` is called for each
    fetch, so a renewed file counts."""

    def __init__(self, url: str, client_id: str, secret: Callable[[], str], scope: str, file: Path | None) -> None:
        self._url, self._client_id, self._secret, self._scope, self._file = url, client_id, secret, scope, file
        self._lock = threading.Lock()
        self._token, self._ends_s, self._renew_s = "", 0.0, 0.0

    def fetch(self) -> tuple[str, float]:
        """The token and when it ends, in seconds since 1970. Raises Unavailable (`kafka_no_token`)."""
        with self._lock:
            now_s = time.time()
            if now_s >= self._renew_s:
                try:
                    self._token, life_s = self._read(now_s)
                    self._ends_s, self._renew_s = now_s + life_s, now_s + life_s * _EARLY
                except Unavailable:
                    if now_s >= self._ends_s:
                        raise
            return self._token, self._ends_s

    def _read(self, now_s: float) -> tuple[str, float]:
        try:
            if self._file is not None:
                token, life_s = self._file.read_text().strip(), None
            else:
                token, life_s = self._request()
            ends_s = _end_of(token)
        except (OSError, ValueError, KeyError, TypeError) as error:
            where = self._file or self._url
            raise Unavailable(
                "kafka_no_token",
                f"no OAuth token from {where}: {error!r}; look at kafka_security's token_url, client_id, secret or token_file",
            ) from error
        return token, max(1.0, ends_s - now_s) if ends_s is not None else life_s or _LIFE_S

    def _request(self) -> tuple[str, float | None]:
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        quoted = ":".join(urllib.parse.quote(part, safe="") for part in (self._client_id, self._secret()))
        headers = {"Authorization": f"Basic {base64.b64encode(quoted.encode()).decode()}", "Accept": "application/json"}
        request = urllib.request.Request(self._url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310 - the operator names it
        with urllib.request.urlopen(request, timeout=_FETCH_S_MAX) as answer:  # noqa: S310
            said = json.load(answer)
        return str(said["access_token"]), float(said["expires_in"]) if "expires_in" in said else None


def _end_of(token: str) -> float | None:
    """The time `exp` of a JWT, None of an opaque token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return float(claims["exp"]) if "exp" in claims else None
