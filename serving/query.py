"""Rankings as `aif query` and `aif verify-answers` ask for them: user, candidates, and the record of the answer.

Ids are sent as text; a server with an int64 catalogue reads them as numbers.
"""

import json
import random
from pathlib import Path
from typing import Any

from infra.files import append_whole
from infra.index.control_log import ControlLog
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.store import find_index_store
from schemas.errors import RejectedInput, Unavailable
from schemas.ids import Id, decode_index_key
from schemas.index.digest import merge_parts
from schemas.requests import PrerankRequest, RankAnswer
from serving.audit.recorded_answers import RecordedAnswer
from serving.audit.topic_history import find_users, read_history
from serving.client import client_of
from serving.http_calls import make_body
from serving.settings import ServerSettings

_FRESH_USERS, _FRESH_CANDIDATES, _FRESH_DEADLINE_MS = 3, 200, 10_000


def read_items(path: Path) -> list[Id]:
    """One id per line; empty lines are skipped. Raises RejectedInput (`bad_items_file`)."""
    try:
        items: list[Id] = [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RejectedInput("bad_items_file", f"{path} does not read: {error}; give a text file with one id a line") from error
    if not items:
        raise RejectedInput("bad_items_file", f"{path} names no item; give a text file with one id a line")
    return items


def draw_items(store_url: str, count: int, seed: int) -> list[Id]:
    """`count` ids of the live version as it was sealed (all of them if there are fewer). Raises Unavailable (`no_version`, `no_items`)."""
    store = find_index_store(store_url)
    current = ControlLog(store).refresh().current
    if current is None:
        raise Unavailable("no_version", f"no version is live in {store_url}; publish a checkpoint and start `aif worker`")
    manifest = read_manifest(store, current)
    kind, keys = manifest.layout.id_kind, list[bytes]()
    for seal in manifest.seals:
        increments = read_incremental_part(store, seal.incremental)
        for block in merge_parts(manifest.layout, read_full_part(store, seal.full, manifest.layout), increments):
            keys += block.keys
    if not keys:
        version = current.version
        hint = f"publish items and run `aif index revise {version}`, or name candidates with --items"
        raise Unavailable("no_items", f"version {version} had no item when it was sealed; {hint}")
    return [str(decode_index_key(key, kind)) for key in random.Random(seed).sample(keys, min(count, len(keys)))]


def ask(settings: ServerSettings, url: str | None, user: str, fields: dict[str, Any], record: Path | None = None) -> RankAnswer:
    """Rank once for a user. With `record` the user's history from the topics is in the request, and request and answer are appended to that file.

    Raises what the server answers, and Unavailable where it, or the broker, does not answer.
    """
    body = make_body(PrerankRequest, {"user_id": user, **fields, **({} if record is None else read_history(settings, user))})
    with client_of(settings.serve, url) as client:
        answer = client.prerank(body)
    if record is not None:
        line = json.dumps({"request": body.model_dump(mode="json"), "answer": answer.model_dump(mode="json")})
        append_whole(record, f"{line}\n".encode())
    return answer


def ask_answers(settings: ServerSettings, url: str | None = None) -> list[RecordedAnswer]:
    """Rank 200 items of the live version for three users of the topics. Each request carries the user's history, so it can be recomputed.

    Raises Unavailable where the broker, the index store or the server does not answer, or no version or user is there.
    """
    candidates = draw_items(settings.index.store, _FRESH_CANDIDATES, seed=0)
    fields = {"item_ids": candidates, "top_k": len(candidates), "deadline_ms": _FRESH_DEADLINE_MS}
    with client_of(settings.serve, url) as client:
        users = find_users(settings, _FRESH_USERS)
        bodies = [make_body(PrerankRequest, {"user_id": user, **fields, **read_history(settings, user)}) for user in users]
        return [RecordedAnswer(body, client.prerank(body)) for body in bodies]
