"""Every reader of bytes with a valid sample: what it accepts is used as its callers use it, and anything else is an error of the project.

Here: `READERS`. Not here: row changes as far as the kernels (rows.py), the network in front of the bodies (the tests of the protocols).
`seal` of a reader puts the right checksum on forged bytes, so that what follows the checksum is reached.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from infra.kafka.dead_letters import decode_dead_letter, encode_dead_letter
from infra.kafka.reader import SourceRecord
from schemas.allocation import Requests, decode_table, encode_table, stack_costs, stack_values
from schemas.decoding import Rejection, decode_record
from schemas.errors import AifError
from schemas.events import RECORDS, AllocationOutcome
from schemas.ids import IdKind, decode_index_key
from schemas.index.control import ControlState, Init, fold_entry
from schemas.index.control_entry import encode_entry
from schemas.index.control_fold import decode_fold, encode_fold
from schemas.index.digest import ShardDigest, checksum, merge_parts
from schemas.index.layout import decode_block, encode_block
from schemas.index.manifest import UNIQUE_DIGITS, checked_name, decode_manifest, decode_seal, encode_manifest, encode_seal, seal_path
from schemas.index.shard_snapshot import decode_snapshot, encode_snapshot
from schemas.knapsack import choose, find_price
from schemas.model.checkpoint import encode_checkpoint
from schemas.model.checkpoint_file import read_checkpoint_file
from schemas.requests import AllocationRequest, FinalRequest, PrefixRequest, PrerankRequest, RankRequest, UserRequest
from schemas.statistics import HOUR_MS
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, NEW_ITEMS, SERVER_REPORTS, USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent
from serving.allocation.tables import built_in_table
from serving.core.infer_body import decode_infer_body
from serving.core.user_view import (
    Head,
    ViewState,
    append_events,
    decode_events,
    decode_head,
    decode_view_state,
    encode_head,
    encode_view_state,
)
from serving.protocols.grpc_api import decode_infer, decode_message
from serving.protocols.http_body import decode_body, unpack
from serving.protocols.inference_messages import pb
from serving.protocols.open_inference import plan_request
from serving.users.user_batch import DecodedUserRecord, decode_refused, decode_user_record, encode_refused
from streams.allocation.join import is_plausible, join_outcomes
from streams.allocation.program import actions_of
from streams.core.item import (
    StoredEmbedding,
    StoredFeatures,
    decode_item,
    encode_item,
    pack_features,
    unpack_features,
)
from streams.core.shard_state import (
    ShardState,
    ShardVersion,
    decode_shard_state,
    decode_shard_version,
    encode_shard_state,
    encode_shard_version,
)
from streams.shard.decode import decode_source_record
from streams.shard.outbox import OutboxEntry, decode_outbox_entry, encode_outbox_entry
from streams.statistics.events import decode_events as decode_statistics
from streams.training.event_decoder import EventDecoder
from streams.versions.server_reports import decode_report
from tests.fuzz import forge
from tests.schemas.catalogue import small_spec
from tests.schemas.index import test_manifest, test_shard_snapshot
from tests.schemas.index.entries import INIT, lived, log
from tests.schemas.index.test_layout import block_of, layout
from tests.schemas.model.samples import make_network


@dataclass(frozen=True)
class Reader:
    """`sample` is a JSON document, which is changed as one, or bytes. `read` takes the bytes; `raises` is what it may raise."""

    name: str
    sample: Callable[[], Any]
    read: Callable[[bytes], object]
    seal: Callable[[bytes], bytes] = lambda raw: raw
    raises: tuple[type[Exception], ...] = (AifError,)

    def forge(self, chance: random.Random) -> bytes:
        """A changed sample."""
        sample = self.sample()
        if isinstance(sample, bytes):
            return self.seal(forge.damage(chance, sample))
        changed = forge.change(chance, sample) if chance.random() < 0.9 else sample
        raw = forge.encode(changed)
        return self.seal(raw) if chance.random() < 0.8 else forge.damage(chance, self.seal(raw))

    def original(self) -> bytes:
        """The sample itself."""
        sample = self.sample()
        return self.seal(sample if isinstance(sample, bytes) else forge.encode(sample))


# --- the index ---------------------------------------------------------------------------------------------------------------


def _resealed(raw: bytes) -> bytes:
    return raw[:-8] + hashlib.blake2b(raw[:-8], digest_size=8).digest()


def _read_block(kind: IdKind, raw: bytes) -> None:
    """As a load does: into the merged view and its digest."""
    digest = ShardDigest(layout(kind), "m", "l")
    for block in merge_parts(layout(kind), [decode_block(layout(kind), raw)], []):
        digest.update(block)


def _read_increment(kind: IdKind, raw: bytes) -> None:
    size = int.from_bytes(raw[:1])
    key, value = raw[1 : 1 + size], raw[1 + size :]
    digest = ShardDigest(layout(kind), "m", "l")
    for block in merge_parts(layout(kind), [], [(key, value)]):
        digest.update(block)


def _increment(kind: IdKind) -> bytes:
    block = block_of(kind, 1)
    return bytes([len(block.keys[0])]) + block.keys[0] + block.stamps.tobytes() + block.rows.tobytes()


def _with_check(raw: bytes) -> bytes:
    """The right `check` of a control entry or fold, where it is an object at all."""
    try:
        fields = json.loads(raw)
        fields.pop("check", None)
        return forge.encode(fields | {"check": checksum(forge.encode(fields))})
    except (ValueError, TypeError, AttributeError):
        return raw


def _with_name(raw: bytes) -> bytes:
    """A snapshot's right name, where it is an object at all."""
    try:
        fields = json.loads(raw) | {"unique": "0" * UNIQUE_DIGITS}
        return forge.encode(fields | {"unique": checked_name("0" * UNIQUE_DIGITS, forge.encode(fields))})
    except (ValueError, TypeError):
        return raw


def _read_seal(raw: bytes) -> None:
    decode_seal(raw, seal_path(1, 1, 1, checked_name("0" * UNIQUE_DIGITS, raw)))


def _fold(raw: bytes) -> None:
    """As every reader of the control log does, first and in the middle of a log."""
    for state in (ControlState(), log(*lived(5, 7))):
        fold_entry(state, state.next_number, raw)


def _entries() -> list[Any]:
    return [json.loads(encode_entry(one)) for one in (INIT, *lived(8))]


@cache
def _checkpoint() -> bytes:
    return encode_checkpoint(make_network(small_spec()), "m", {})


# --- topics --------------------------------------------------------------------------------------------------------------------

BODIES: dict[str, Any] = {
    ITEM_FEATURES: {
        "schema": 1,
        "updates": [
            {"op": "upsert", "item_id": 1, "version": 3, "features": {"price": 1.5, "brand": "x", "tags": ["a", 2], "stock": True}},
            {"op": "delete", "item_id": 2, "version": 4},
        ],
    },
    NEW_ITEMS: {"schema": 1, "updates": [{"item_id": 1, "embedding": [0.5] * 16}, {"item_id": 2, "embedding": [3e38]}]},
    USER_FEATURES: {"schema": 1, "user_id": 1, "features": {"country": "nl", "age": 3}, "time_ms": 5},
    USER_BEHAVIOURS: {"schema": 1, "updates": [{"user_id": 1, "item_id": 2, "kind": "click", "time_ms": 5, "features": {"a": [1, "b"]}}]},
    IMPRESSIONS: {
        "schema": 1,
        "request_id": "r",
        "user_id": 1,
        "time_ms": 5,
        "context": {"hour": 3},
        "items": [{"item_id": 1, "position": 0, "bid": 1.0, "teacher_ecpm": 0.5, "clicked": True, "outcomes": ["buy"]}],
    },
    SERVER_REPORTS: {
        "schema": 1,
        "server_id": "a",
        "at_ms": 1,
        "version": 1,
        "version_token": "1.0-00000000",
        "seconds": 5.0,
        "answers": 3,
    },
    "allocation-outcomes": {
        "schema": 1,
        "request_id": "r",
        "user_id": 1,
        "time_ms": 5,
        "version": 7,
        "table": "v7-1",
        "action": "full/9",
        "arm": "probe",
        "state": "ranked",
        "propensity": 0.5,
        "price": 0.1,
        "source": "queue",
        "cost_ms": 2.0,
        "value": 1.0,
        "candidates": 9,
        "behaviours": 3,
        "took_ms": 2.5,
        "actions": ["full/5", "full/9"],
        "predicted": [1.0, 2.0],
    },
    "statistics-reports": {"schema": 1, "at_ms": 5, "as_of_ms": 4, "names": ["taken_28"]},
    "model-checkpoints": {"uri": "/a", "size_bytes": 1, "sha256": "0" * 64, "model_id": "m", "feature_schema": "0" * 16, "label": None},
    "index-events": {"kind": "live", "version": 1, "revision": 0, "shard": None, "reason": ""},
}


def _source(topic: str, value: bytes) -> SourceRecord:
    return SourceRecord(topic, 0, 9, b"1", value, (("h", value[:9]),), 1)


def _read_items(topic: str, raw: bytes) -> None:
    for kind in IdKind:
        decoded = decode_source_record(_source(topic, raw), kind, 1)
        assert len(decoded) > 0, "every record is accepted or rejected"
        EventDecoder(1, 1, kind).decode(topic, [_source(topic, raw)])


def _read_user(topic: str, raw: bytes) -> None:
    for kind in IdKind:
        decoded = decode_user_record(_source(topic, raw), kind, 1)
        assert len(decoded) + len(decoded.rejections) > 0
        for one in decoded.changes:
            decode_events(append_events(b"", Head(), one.events).values())
        if decoded.rejections:
            refused = DecodedUserRecord(decoded.record, (), decoded.rejections)
            assert decode_refused(encode_refused(refused)).record == refused.record
        EventDecoder(1, 1, kind).decode(topic, [_source(topic, raw)])


def _count(topic: str, raw: bytes) -> None:
    for kind in IdKind:
        events, ahead = decode_statistics([_source(topic, raw)], Init(1, 1, kind, {}, {}), 1_000)
        for _, keys, _, _ in (*events, *ahead):
            for key in keys:
                decode_index_key(key, kind)
        assert all(event[3] <= 1_000 + HOUR_MS for event in events)


def _join(raw: bytes) -> None:
    """As `aif allocate fit` does with an outcome."""
    outcome = decode_record(AllocationOutcome, raw)
    if is_plausible(outcome):
        actions = actions_of([outcome])
        samples = join_outcomes([outcome], [], actions).samples
        for numbers in (samples.predicted_RA, *vars(samples.requests).values()):
            assert not np.isinf(np.square(numbers.astype(float))).any()


def _allocate(raw: bytes) -> None:
    """As a server does with the file of a table."""
    table = decode_table(raw, 7)
    requests = Requests(*(np.array([x]) for x in (9.0, 3.0, 1.0, np.nan, 0.5, np.nan)))
    value_RA, cost_RA = stack_values(table, requests), stack_costs(table, requests)
    choose(value_RA, cost_RA, find_price(value_RA, cost_RA, float(cost_RA[0, 0])))


def _letter(raw: bytes) -> None:
    decode_dead_letter([(name, raw) for name, _ in encode_dead_letter(_source(NEW_ITEMS, b""), Rejection(0, "a", "b", "c"))[2]])


# --- databases -----------------------------------------------------------------------------------------------------------------


def _outbox(raw: bytes) -> None:
    decode_outbox_entry(bytes(8), raw)


EVENT = BehaviourEvent(2, "click", 5, {"a": [1]})


# --- bodies --------------------------------------------------------------------------------------------------------------------

RANK = {
    "user_id": 1,
    "item_ids": [1, 2, 3],
    "top_k": 2,
    "context": {"hour": 3},
    "consistency": {"topic": ITEM_FEATURES, "partition": 0, "offset": 9},
}
FINAL = {"user_id": 1, "item_ids": [1, 2, 3], "top_k": 2, "context": {"hour": 3}}
INLINE = {**RANK, "features": {"country": "nl"}, "behaviours": [{"item_id": 1, "kind": "click", "time_ms": 5}]}
INFER = {
    "id": "a",
    "inputs": [
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "item_ids", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
    ],
    "parameters": {"timeout": 2_000_000, "priority": 1, "context.hour": 3},
    "outputs": [{"name": "scores"}],
}


def _infer(raw: bytes) -> None:
    plan_request(decode_infer_body(raw, None), IdKind.INT64, None, 100)


def _infer_grpc(raw: bytes) -> None:
    plan_request(decode_infer(decode_message(pb.ModelInferRequest, raw)), IdKind.INT64, None, 100)


def _message() -> bytes:
    message = pb.ModelInferRequest(model_name="aif", id="a")
    for name, ids in (("user_id", [1]), ("item_ids", [1, 2, 3])):
        one = message.inputs.add(name=name, datatype="INT64", shape=[len(ids)])
        one.contents.int64_contents.extend(ids)
    return bytes(message.SerializeToString())


def _infer_binary() -> bytes:
    inputs = [{"name": "item_ids", "datatype": "INT64", "shape": [3], "parameters": {"binary_data_size": 24}}]
    head = forge.encode(INFER | {"inputs": [INFER["inputs"][0], *inputs]})
    return len(head).to_bytes(2, "little") + head + bytes(24)


READERS: Sequence[Reader] = (
    *(Reader(f"block of {k}", lambda k=k: encode_block(layout(k), block_of(k, 3)), lambda raw, k=k: _read_block(k, raw), _resealed) for k in IdKind),
    *(Reader(f"increment of {k}", lambda k=k: _increment(k), lambda raw, k=k: _read_increment(k, raw)) for k in IdKind),
    Reader("manifest", lambda: json.loads(encode_manifest(test_manifest.MANIFEST)), decode_manifest),
    Reader("seal", lambda: json.loads(encode_seal(test_manifest.seal(1))), _read_seal),
    Reader("snapshot", lambda: json.loads(encode_snapshot(test_shard_snapshot.SNAPSHOT)), decode_snapshot, _with_name),
    *(Reader(f"control entry {one['kind']}", lambda one=one: one, _fold, _with_check) for one in _entries()),
    Reader("control fold", lambda: json.loads(encode_fold(log(*lived(5, 7)), b"last")), decode_fold, _with_check),
    Reader("checkpoint", _checkpoint, read_checkpoint_file),
    *(Reader(f"record of {topic}", lambda body=body: body, lambda raw, t=topic: decode_record(RECORDS[t], raw)) for topic, body in BODIES.items()),
    *(Reader(f"{t} in a shard and in training", lambda t=t: BODIES[t], lambda raw, t=t: _read_items(t, raw), raises=()) for t in (ITEM_FEATURES, NEW_ITEMS)),
    *(
        Reader(f"{t} in a server and in training", lambda t=t: BODIES[t], lambda raw, t=t: _read_user(t, raw), raises=())
        for t in (USER_FEATURES, USER_BEHAVIOURS)
    ),
    Reader(
        "impressions in training",
        lambda: BODIES[IMPRESSIONS],
        lambda raw: EventDecoder(1, 1, IdKind.INT64).decode(IMPRESSIONS, [_source(IMPRESSIONS, raw)]),
        raises=(),
    ),
    *(
        Reader(f"{t} in the statistics", lambda t=t: BODIES[t], lambda raw, t=t: _count(t, raw), raises=())
        for t in (USER_BEHAVIOURS, IMPRESSIONS)
    ),
    Reader("outcome in a fit", lambda: BODIES["allocation-outcomes"], _join),
    Reader("allocation table", lambda: json.loads(encode_table(replace(built_in_table((5, 9)), version=7))), _allocate),
    Reader("report", lambda: BODIES[SERVER_REPORTS], lambda raw: decode_report(_source(SERVER_REPORTS, raw))),
    Reader("dead letter", lambda: b"1", _letter),
    Reader("shard state", lambda: json.loads(encode_shard_state(ShardState())), decode_shard_state),
    Reader("shard version", lambda: json.loads(encode_shard_version(ShardVersion(5, "building", "cpu"))), decode_shard_version),
    Reader(
        "stored item",
        lambda: encode_item(StoredFeatures((1, 2, 0), False, b"\x80", (1, 2, 0), 5), StoredEmbedding((1, 0), (1, 0), 5)),
        decode_item,
    ),
    Reader("stored features", lambda: pack_features({"price": 1.5, "tags": ["a", 1], "gone": None}), unpack_features),
    Reader("outbox entry", lambda: encode_outbox_entry(OutboxEntry(0, "t", 1, b"k", b"v", (("h", b"x"),))), _outbox),
    Reader("user head", lambda: encode_head(Head(1, 2, 3)), decode_head),
    Reader("user events", lambda: append_events(b"", Head(), [EVENT] * 2)[0], lambda raw: decode_events([raw])),
    Reader("user view state", lambda: json.loads(encode_view_state(ViewState({USER_FEATURES: {0: 1}}, {"a": "b"}, 1, 2))), decode_view_state),
    Reader("refused record", lambda: encode_refused(DecodedUserRecord(_source(NEW_ITEMS, b"v"), (), [Rejection(0, "a", "b", "c")])), decode_refused),
    Reader("rank body", lambda: RANK, lambda raw: decode_body(RankRequest, raw)),
    Reader("prerank body", lambda: INLINE, lambda raw: decode_body(PrerankRequest, raw)),
    Reader("user body", lambda: {k: v for k, v in INLINE.items() if k not in ("item_ids", "top_k", "context")}, lambda raw: decode_body(UserRequest, raw)),
    Reader("final body", lambda: FINAL, lambda raw: decode_body(FinalRequest, raw).as_rank_request()),
    Reader("prefix body", lambda: {"user_id": 1, "candidates": 9}, lambda raw: decode_body(PrefixRequest, raw)),
    Reader("allocation body", lambda: {"mode": "queue"}, lambda raw: decode_body(AllocationRequest, raw)),
    Reader("infer body", lambda: INFER, _infer),
    Reader("binary infer body", _infer_binary, lambda raw: decode_infer_body(raw[2:], str(int.from_bytes(raw[:2], "little")))),
    Reader("gRPC message", _message, _infer_grpc),
    Reader("gzip body", lambda: gzip.compress(b"{}", mtime=0), lambda raw: unpack(raw, "gzip")),
)  # fmt: skip
