"""Answers asked for now, so that `aif verify-answers` has something to check on any running system."""

from schemas.requests import PrerankRequest
from serving.audit.parity import RecordedAnswer
from serving.audit.topic_history import find_users, read_history
from serving.client import client_of
from serving.http_calls import make_body
from serving.query import draw_items
from serving.settings import ServerSettings

_USERS, _CANDIDATES, _DEADLINE_MS = 3, 200, 10_000


def ask_answers(settings: ServerSettings, url: str | None = None) -> list[RecordedAnswer]:
    """Rank 200 items of the live version for three users of the topics. Each request carries the user's history, so it can be recomputed.

    Raises Unavailable where the broker, the index store or the server does not answer, or no version or user is there.
    """
    candidates = draw_items(settings.index.store, _CANDIDATES, seed=0)
    recorded = []
    with client_of(settings.serve, url) as client:
        for user in find_users(settings, _USERS):
            fields = {"user_id": user, "item_ids": candidates, "top_k": len(candidates), "deadline_ms": _DEADLINE_MS}
            body = make_body(PrerankRequest, fields | read_history(settings, user))
            recorded.append(RecordedAnswer(body, client.prerank(body)))
    return recorded
