"""The bytes of a server's view of users, and whether a stored view fits the current log. Pure.

    heads       index key of the user                -> (offset of the profile, offset of the last behaviours, behaviours ever appended)
    profiles    index key of the user                -> features as JSON
    behaviours  length, index key, number of a block -> up to BLOCK events

    block       its number of events | item id, time, code of the kind of each, 17 bytes | JSON: [names of kinds, text ids or null, features or null]

Events are fixed-size rows, because a user with 100,000 of them is read while a request waits: 3 ms, where lines of JSON took 100.
Invariants: appending an event rewrites one block, never a whole history. All blocks except the last are full. The newest BEHAVIOURS_PER_USER_MAX events of
a user are kept; blocks that lie wholly before them are dropped.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.behaviour_columns import BehaviourColumns
from schemas.errors import Corrupted
from schemas.ids import Id
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent

VIEW_TOPICS = (USER_FEATURES, USER_BEHAVIOURS)
BLOCK = 128  # events; an append rewrites half a block on average, 1 KB
# A compacted topic drops the record that deleted a profile after a day (Kafka's default), so an older view may have missed it.
UNSEEN_MS_MAX = 12 * 3_600_000

_HEAD = struct.Struct(">qqQ")
_LENGTH = struct.Struct(">H")
_NUMBER = struct.Struct(">Q")
_EVENT = struct.Struct("<qqB")
_EVENTS = np.dtype([("item", "<i8"), ("time", "<i8"), ("kind", "u1")])


@dataclass(frozen=True, slots=True)
class Head:
    """How far a user is folded. `appended`: all behaviours so far, dropped ones included."""

    profile_offset: int = -1
    behaviours_offset: int = -1
    appended: int = 0

    @property
    def tail(self) -> int:
        """Number of the block that gets the next event."""
        return self.appended // BLOCK

    @property
    def first(self) -> int:
        """Number of the oldest block that is kept."""
        return max(0, self.appended - BEHAVIOURS_PER_USER_MAX) // BLOCK


def _damaged(what: str) -> Corrupted:
    return Corrupted("bad_user_view", f"the view of users holds {what}; it is built again from the log")


def encode_head(head: Head) -> bytes:
    """24 bytes."""
    return _HEAD.pack(head.profile_offset, head.behaviours_offset, head.appended)


def decode_head(raw: bytes) -> Head:
    """The inverse of `encode_head`. Raises Corrupted (`bad_user_view`)."""
    if len(raw) != _HEAD.size:
        raise _damaged(f"a user's head of {len(raw)} bytes, expected {_HEAD.size}")
    return Head(*_HEAD.unpack(raw))


def encode_block_key(user_key: bytes, number: int) -> bytes:
    """The key of a block. A user's blocks sort together, oldest first; with the length in front, no user's key is a prefix of another's."""
    return _LENGTH.pack(len(user_key)) + user_key + _NUMBER.pack(number)


def decode_profile(raw: bytes) -> Mapping[str, Any]:
    """The features of a profile. Raises Corrupted (`bad_user_view`)."""
    try:
        features = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"a profile that is no JSON: {error}") from error
    if not isinstance(features, dict):
        raise _damaged(f"a profile of type {type(features).__name__}, expected a JSON object")
    return features


def decode_events(blocks: Iterable[bytes]) -> BehaviourColumns:
    """The newest BEHAVIOURS_PER_USER_MAX events of a user's blocks, oldest first. Raises Corrupted (`bad_user_view`)."""
    rows, counts, rest_of, codes = list[bytes](), list[int](), list[int](), list[list[int]]()
    names, texts, features, length, last = dict[str, int](), list[Id](), list[Mapping[str, Any]](), 0, b""
    try:
        for block in blocks:
            count, cut = block[0], _rows_end(block)
            rows.append(block[1:cut])
            if block[cut:] != last:
                kinds, ids, given = _decode_rest(block, cut)
                codes.append([names.setdefault(kind, len(names)) for kind in kinds])
                texts += ids or ()
                features += [] if given is None else [{}] * (length - len(features)) + given
                last = block[cut:] if ids is None and given is None else b""  # most blocks of a user have the same names and nothing else
            counts.append(count)
            rest_of.append(len(codes) - 1)
            length += count
        if texts and len(texts) != length:
            raise ValueError("numbers and texts as ids")
        code_RK = np.full((len(codes), 256), -1, np.int32)
        for row, of_names in enumerate(codes):
            code_RK[row, : len(of_names)] = of_names
        row_L = np.frombuffer(b"".join(rows), _EVENTS)
        kind_L = code_RK[np.repeat(rest_of, counts), row_L["kind"]] if length else np.zeros(0, np.int32)
        if (kind_L < 0).any():
            raise ValueError("a kind without a name")
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise _damaged(f"behaviours that do not read: {error}") from error
    features += [{}] * (length - len(features)) if features else []
    item_L, time_L = (np.ascontiguousarray(row_L[name]) for name in ("item", "time"))
    return BehaviourColumns.of(texts or item_L, time_L, kind_L, list(names), features or None)[-BEHAVIOURS_PER_USER_MAX:]


def _rows_end(block: bytes) -> int:
    """Where the rows of a block end. Raises ValueError for one that is cut off, IndexError for an empty one."""
    end = 1 + _EVENT.size * block[0]
    if len(block) <= end or not block[0]:
        raise ValueError(f"a block of {len(block)} bytes for {block[0]} events")
    return end


def _decode_rest(block: bytes, cut: int) -> tuple[list[str], list[str] | None, list[Mapping[str, Any]] | None]:
    """(names of kinds, text ids, features) of a block. Raises ValueError, TypeError, RecursionError."""
    names, ids, features = json.loads(block[cut:])
    for values, kind, lengths in ((names, str, range(257)), (ids, str, (block[0],)), (features, dict, (block[0],))):
        if values is not None and (type(values) is not list or len(values) not in lengths or set(map(type, values)) - {kind}):
            raise ValueError(f"{str(values)[:40]} of {block[0]} events")
    return names or [], ids, features


def append_events(tail: bytes, head: Head, events: Sequence[BehaviourEvent]) -> dict[int, bytes]:
    """The blocks that change, by number, when `events` follow `tail`, the bytes of block `head.tail` (empty when it is new). Raises Corrupted."""
    changed, at = dict[int, bytes](), 0
    while at < len(events):
        number, room = divmod(head.appended + at, BLOCK)
        some = events[at : at + BLOCK - room]
        changed[number] = _append_to_block(tail if number == head.tail else b"", some)
        at += len(some)
    return changed


def _append_to_block(block: bytes, events: Sequence[BehaviourEvent]) -> bytes:
    try:
        cut = _rows_end(block) if block else 1
        names, ids, features = _decode_rest(block, cut) if block else ([], None, None)
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(f"behaviours that do not read: {error}") from error
    before = block[0] if block else 0
    names = list(dict.fromkeys([*names, *(event.kind for event in events)]))
    rows = [_EVENT.pack(0 if isinstance(e.item_id, str) else e.item_id, e.time_ms, names.index(e.kind)) for e in events]
    if isinstance(events[0].item_id, str):
        ids = [*(ids or ()), *(str(event.item_id) for event in events)]
    if features is not None or any(event.features for event in events):
        features = [*(features or [{}] * before), *(event.features for event in events)]
    rest = json.dumps([names, ids, features], separators=(",", ":")).encode()
    return bytes([before + len(events)]) + block[1:cut] + b"".join(rows) + rest


@dataclass(frozen=True, slots=True)
class ViewState:
    """Where a view stands.

    - next_offsets: by topic and partition
    - topic_ids: of the topics it was made from
    - seen_ms: when the log was last read to its end, or the view begun
    """

    next_offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    users: int = 0
    seen_ms: int = 0


def encode_view_state(state: ViewState) -> bytes:
    """The state as JSON."""
    return json.dumps(
        {"next": state.next_offsets, "topic_ids": dict(state.topic_ids), "users": state.users, "seen_ms": state.seen_ms}
    ).encode()


def decode_view_state(raw: bytes) -> ViewState:
    """The inverse of `encode_view_state`. Raises Corrupted (`bad_user_view`)."""
    try:
        body = json.loads(raw)
        offsets = {topic: {int(p): int(offset) for p, offset in by.items()} for topic, by in body["next"].items()}
        return ViewState(offsets, dict(body["topic_ids"]), int(body["users"]), int(body["seen_ms"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _damaged(f"a state that does not read: {error}") from error


@dataclass(frozen=True, slots=True)
class TopicRange:
    """A topic now: its id, and per partition its first offset and the one after its last."""

    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


def find_misfit(state: ViewState, log: Mapping[str, TopicRange], now_ms: int) -> str:
    """Why a view cannot continue from its offsets and must be built again, as "code: reason"; empty if it can go on."""
    for topic, found in log.items():
        if state.topic_ids.get(topic, found.topic_id) != found.topic_id:
            return f"other_topic: {topic} has another id than the topic that the view was made from"
        for partition, offset in state.next_offsets.get(topic, {}).items():
            if partition not in found.ends or offset > found.ends[partition]:
                return f"log_shorter: {topic} partition {partition} ends at {found.ends.get(partition)}, the view goes on at {offset}"
            if offset < found.starts[partition]:
                return f"log_gone: {topic} partition {partition} starts at {found.starts[partition]}, the view goes on at {offset}"
    asleep_ms = abs(now_ms - state.seen_ms)  # one that was ahead hides so much of a sleep
    if state.next_offsets and asleep_ms > UNSEEN_MS_MAX:
        away = f"{asleep_ms // 3_600_000} h away from the time when the view was last up to date"
        return f"too_old: this machine's clock is {away}; a profile deleted since may be gone from the log"
    return ""
