"""The pre-ranking server as any HTTP client sees it: plain JSON, without our own client."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from schemas.errors import Unavailable
from schemas.ids import Id, encode_wire_id

_TIMEOUT_S = 30.0
_COME_BACK = 429
_ORDERED = 300  # of AIF's items, by the ranker
FIRST = 10  # items of a final answer


@dataclass(frozen=True, slots=True)
class Ranked:
    """An answer and how long it took, from before the request to after the body."""

    answer: dict[str, Any]
    took_ms: float

    @property
    def ids(self) -> list[Id]:
        """The ranked ids as they came."""
        return [item["item_id"] for item in self.answer["items"]]

    @property
    def version(self) -> str:
        """The version of its token, without the revision."""
        return str(self.answer["version_token"]).split(".", 1)[0]


class PlainClient:
    """One keep-alive connection to a server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S)

    def prerank(self, body: Mapping[str, Any]) -> Ranked:
        """Both calls in one. A request that the server sends back for later is repeated, and counts from its first attempt. Raises Unavailable if the server
        refuses, with its own words, or is away."""
        started = time.perf_counter()
        return Ranked(self._post("/v1/prerank", body), (time.perf_counter() - started) * 1e3)

    def rank_in_two_stages(self, user_id: Id, item_ids: Sequence[Id]) -> Ranked:
        """The signal, so that the server computes the user's prefix; then AIF's best 300 items, of which the ranker's first ten are the answer. In between a
        real caller retrieves its candidates. Raises as `prerank`."""
        request_id = self._post("/v1/prefix", {"user_id": user_id})["request_id"]
        stages = {"top_k": _ORDERED, "final": {"top_k": FIRST}, "deadline_ms": 30_000}
        return self.prerank({"user_id": user_id, "request_id": request_id, "item_ids": item_ids, **stages})

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            reply = self._http.post(path, json=body)
            while reply.status_code == _COME_BACK and time.perf_counter() - started < _TIMEOUT_S:
                time.sleep(min(float(reply.json().get("retry_after_s", 0.1)), 1.0))
                reply = self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise Unavailable("server_away", f"{self.url}{path} gave no answer ({error!r}); look at the log of the server") from error
        if not reply.is_success:
            raise Unavailable("server_refused", f"{path} answered {reply.status_code}: {reply.text[:500]}")
        answer: dict[str, Any] = reply.json()
        return answer

    def score(self, user_id: Id, item_id: Id) -> float | None:
        """The score of one item; None while the index has none of that id."""
        items = self.prerank({"user_id": encode_wire_id(user_id), "item_ids": [encode_wire_id(item_id)]}).answer["items"]
        return items[0]["score"] if items else None

    def time_change(self, user_id: Id, item_id: Id, publish: Callable[[], object], within_s: float) -> float | None:
        """Milliseconds from before `publish()` to an answer with another score of the item; None if it keeps its score for `within_s`."""
        before, started = self.score(user_id, item_id), time.perf_counter()
        publish()
        while time.perf_counter() - started < within_s:
            if self.score(user_id, item_id) != before:
                return (time.perf_counter() - started) * 1e3
            time.sleep(0.001)
        return None

    def is_ready(self) -> bool:
        """Whether it says that it can rank."""
        try:
            return self._http.get("/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()


def wire_ids(ids: np.ndarray | Sequence[Id]) -> list[Id]:
    """Ids as JSON takes them."""
    return [encode_wire_id(i) for i in (ids.tolist() if isinstance(ids, np.ndarray) else ids)]
