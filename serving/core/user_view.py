"""The bytes of a server's view of users, and whether a stored view fits the current log. Pure.

    heads       index key of the user                -> (offset of the profile, offset of the last behaviours, behaviours ever appended)
    profiles    index key of the user                -> features as JSON
    behaviours  length, index key, number of a block -> up to BLOCK events, one JSON array each, a line apart

Invariants: appending an event rewrites one block, never a whole history. All blocks except the last are full. The newest BEHAVIOURS_PER_USER_MAX events of
a user are kept; blocks that lie wholly before them are dropped.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.errors import Corrupted
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent

VIEW_TOPICS = (USER_FEATURES, USER_BEHAVIOURS)
BLOCK = 64  # events; an append rewrites half a block on average, some KB
# A compacted topic drops the record that deleted a profile after a day (Kafka's default), so an older view may have missed it.
UNSEEN_MS_MAX = 12 * 3_600_000

_HEAD = struct.Struct(">qqQ")
_LENGTH = struct.Struct(">H")
_NUMBER = struct.Struct(">Q")
_ID_TYPES = ({int}, {str})
_EVENT_TYPES = [{str}, {int}, {dict}]  # kind, time, features


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


def encode_event(event: BehaviourEvent) -> bytes:
    """One event as a line of JSON."""
    return json.dumps([event.item_id, event.kind, event.time_ms, event.features], separators=(",", ":")).encode()


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
    lines = b"\n".join(blocks).replace(b"\n", b",")
    try:
        rows = json.loads(b"[" + lines + b"]")
        types = [set(map(type, column)) for column in zip(*rows, strict=True)]
        if rows and (len(types) != 4 or types[0] not in _ID_TYPES or types[1:] != _EVENT_TYPES):
            raise ValueError("an event is not an id, a kind, a time and features")
        return EMPTY.append(rows, BEHAVIOURS_PER_USER_MAX)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _damaged(f"behaviours that do not read: {error}") from error


def append_events(tail: bytes, head: Head, events: Sequence[BehaviourEvent]) -> dict[int, bytes]:
    """The blocks that change, by number, when `events` follow `tail`, the bytes of block `head.tail` (empty when it is new)."""
    changed: dict[int, list[bytes]] = {}
    for place, event in enumerate(events, head.appended):
        changed.setdefault(place // BLOCK, []).append(encode_event(event))
    return {n: b"\n".join([tail, *lines] if n == head.tail and tail else lines) for n, lines in changed.items()}


@dataclass(frozen=True, slots=True)
class ViewState:
    """Where a view stands. `next_offsets`: by topic and partition; `topic_ids`: of the topics it was made from; `seen_ms`: when the log was last read to its
    end, or the view begun."""

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
    asleep_ms = now_ms - state.seen_ms
    if state.next_offsets and asleep_ms > UNSEEN_MS_MAX:
        return f"too_old: the view was last up to date {asleep_ms // 3_600_000} h ago; a profile deleted since may be gone from the log"
    return ""
