"""A ranking as the body of the JSON routes: bytes straight from the engine's arrays.

Invariant: the bytes equal those of the pydantic model, field by field (a test checks it). The same serializer writes both, so numbers look the same.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from pydantic_core import to_json

from schemas.ids import Id, encode_wire_id
from serving.calls.rank_call import Ranked
from serving.engine.work import RankResult

_ITEMS_PER_TURN = 1_000  # of the event loop: 0.5 ms. In one piece, 10,000 items kept all other requests waiting for 7 ms


async def encode_answer(ranked: Ranked, took_ms: float) -> bytes:
    """The body of a 200 answer. Nothing is validated, because every value comes from this process."""
    result = ranked.result
    head = {
        "request_id": ranked.request_id,
        "version_token": str(result.token),
        "rung": ranked.rung.value,
        "degraded": ranked.degraded,
    }
    tail = {
        "candidates": result.candidates,
        "unknown_count": result.unknown_count,
        "unknown_items": encode_wire_ids(result.unknown),
        "freshness": {"age_s": ranked.ages.worst_s, "lagging_shards": ranked.ages.lagging, "watermark": result.watermark},
        "final": ranked.final,
        "took_ms": took_ms,
    }
    items = b",".join([part async for part in _encode_items(result)])
    return b"".join((_encode(head)[:-1], b',"items":[', items, b"],", _encode(tail)[1:]))


async def _encode_items(result: RankResult) -> AsyncIterator[bytes]:
    """The items, separated by commas. Between two parts the event loop answers others."""
    rows = zip(encode_wire_ids(result.ids), result.scores_A.tolist(), result.probabilities_AT.tolist(), strict=True)
    while part := [{"item_id": one, "score": score, "probabilities": of_tasks} for one, score, of_tasks in islice(rows, _ITEMS_PER_TURN)]:
        yield _encode(part)[1:-1]
        if len(part) == _ITEMS_PER_TURN:
            await asyncio.sleep(0)


def _encode(values: object) -> bytes:
    return to_json(values, inf_nan_mode="null")


def encode_wire_ids(ids: Sequence[Id]) -> Sequence[Id]:
    """Ids as they travel in JSON. If the smallest and the greatest id fit into a JSON number, all do; this is the common case and needs no loop."""
    if ids and isinstance(ids[0], int) and all(isinstance(encode_wire_id(one), int) for one in (min(ids), max(ids))):
        return ids
    return [encode_wire_id(one) for one in ids]
