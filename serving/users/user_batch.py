"""The changes that records of the user topics make in the server's view of users, as one database batch.

The rules of order are those of schemas/users.py: profile and behaviours each carry the last offset folded, and a change that is not newer changes nothing.
"""

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from infra.kafka.dead_letters import truncate_oversized
from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database
from schemas.decoding import STATISTICS_OP, Rejection, decode_updates, decode_user_features
from schemas.errors import RejectedInput
from schemas.events import Behaviour, BehavioursRecord
from schemas.fields import corrupted_as
from schemas.ids import Id, IdKind, encode_index_key
from schemas.topics import USER_FEATURES
from schemas.users import BehaviourEvent
from serving.core.user_view import BLOCK, Head, append_events, decode_head, encode_block_key, encode_head

HEADS, PROFILES, STATISTICS, BEHAVIOURS = "heads", "profiles", "statistics", "behaviours"
_LENGTH = struct.Struct(">I")


@dataclass
class UserChange:
    """One record's change of one user: a new profile or new statistics (without features: forget them), or more behaviours."""

    user: Id
    offset: int
    is_profile: bool
    is_statistics: bool = False  # and of the profile's topic
    features: Mapping[str, Any] = field(default_factory=dict)
    events: list[BehaviourEvent] = field(default_factory=list)

    def __len__(self) -> int:
        return max(1, len(self.events))


@dataclass(frozen=True, slots=True)
class DecodedUserRecord:
    """A record as changes of users, and the updates that were refused, with reasons."""

    record: SourceRecord
    changes: Sequence[UserChange]
    rejections: Sequence[Rejection] = ()

    def __len__(self) -> int:
        return sum(map(len, self.changes))


def decode_user_record(record: SourceRecord, kind: IdKind, partitions: int) -> DecodedUserRecord:
    """A record of either topic. Raises nothing: a mistake becomes a rejection (protocol A10)."""
    try:
        if record.topic == USER_FEATURES:
            return DecodedUserRecord(record, [_decode_profile(record, kind, partitions)])
        return _decode_behaviours(record, kind, partitions)
    except RejectedInput as error:
        return DecodedUserRecord(record, [], [Rejection(0, error.code, error.message, error.disposition)])


def _decode_profile(record: SourceRecord, kind: IdKind, partitions: int) -> UserChange:
    profile = decode_user_features(record.key, record.value, kind, record.partition, partitions)
    return UserChange(profile.user_id, record.offset, True, profile.op == STATISTICS_OP, profile.features)


def _decode_behaviours(record: SourceRecord, kind: IdKind, partitions: int) -> DecodedUserRecord:
    decoded = decode_updates(BehavioursRecord, Behaviour, record.value, kind, record.partition, partitions, lambda b: b.user_id)
    changes: dict[Id, UserChange] = {}
    for _, b in decoded.accepted:
        change = changes.setdefault(b.user_id, UserChange(b.user_id, record.offset, False))
        change.events.append(BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features))
    return DecodedUserRecord(record, list(changes.values()), decoded.rejected)


class UserBatch:
    """The users of one batch: read from the database, changed by `fold`, written by `encode`. `room`: how many new users may be added."""

    def __init__(self, database: Database, users: Sequence[Id], room: int) -> None:
        self._database, self._room = database, room
        keys = {user: encode_index_key(user) for user in dict.fromkeys(users)}
        stored = database.multi_get(HEADS, list(keys.values()))
        self._keys = keys
        self._before = {user: None if raw is None else decode_head(raw) for user, raw in zip(keys, stored, strict=True)}
        self._heads = {user: head or Head() for user, head in self._before.items()}
        partial = [user for user, head in self._heads.items() if head.appended % BLOCK]
        tails = database.multi_get(BEHAVIOURS, [encode_block_key(keys[u], self._heads[u].tail) for u in partial])
        self._blocks: dict[bytes, bytes] = {
            encode_block_key(keys[u], self._heads[u].tail): raw or b"" for u, raw in zip(partial, tails, strict=True)
        }
        self._written: set[bytes] = set()
        self._features: dict[tuple[str, Id], bytes] = {}
        self._touched: dict[Id, None] = {}
        self.new_users = 0

    def fold(self, change: UserChange) -> bool:
        """Applies a change. False if it is of a new user for whom there is no room; an old change, which changes nothing, still returns True."""
        user, head = change.user, self._heads[change.user]
        is_new = self._before[user] is None and user not in self._touched
        if is_new and self.new_users >= self._room:
            return False
        self.new_users += is_new
        self._touched[user] = None
        if change.is_profile:
            if change.offset > head.profile_offset:
                family = STATISTICS if change.is_statistics else PROFILES
                self._features[family, user] = json.dumps(dict(change.features), separators=(",", ":")).encode()
                self._heads[user] = dataclasses.replace(head, profile_offset=change.offset)
        elif change.offset > head.behaviours_offset:
            self._append(user, head, change)
        return True

    def _append(self, user: Id, head: Head, change: UserChange) -> None:
        key = self._keys[user]
        for number, block in append_events(self._blocks.get(encode_block_key(key, head.tail), b""), head, change.events).items():
            self._blocks[encode_block_key(key, number)] = block
            self._written.add(encode_block_key(key, number))
        self._heads[user] = Head(head.profile_offset, change.offset, head.appended + len(change.events))

    def encode(self) -> Batch:
        """All changes as a batch for the database."""
        batch = self._database.new_batch()
        for user in self._touched:
            key, before, after = self._keys[user], self._before[user] or Head(), self._heads[user]
            batch.put(HEADS, key, encode_head(after))
            for number in range(before.first, after.first):
                self._written.discard(encode_block_key(key, number))
                batch.delete(BEHAVIOURS, encode_block_key(key, number))
        for (family, user), features in self._features.items():
            batch.put(family, self._keys[user], features)
        for block_key in self._written:
            batch.put(BEHAVIOURS, block_key, self._blocks[block_key])
        return batch


# --- refused records: stored until their dead letters are in their topic -------------------------------------------------


def refused_key(record: SourceRecord) -> bytes:
    """The key under which a record with refused updates is stored; sorts by topic, partition and offset."""
    return f"{record.topic}/{record.partition}/{record.offset:020d}".encode()


def encode_refused(refused: DecodedUserRecord) -> bytes:
    """The bytes of a record and its rejections: length of the head, head as JSON, then the record's key, value and header values byte for byte.

    A record is stored once, however many of its updates were refused. Its dead letters (up to 256 of 4 MiB each) are made when sent, one at a time. An
    oversized record is stored as its dead letters keep it: truncated.
    """
    record = truncate_oversized(refused.record)
    head = {
        "at": [record.topic, record.partition, record.offset, record.timestamp_ms],
        "rejections": [astuple(one) for one in refused.rejections],
        "names": [name for name, _ in record.headers],
        "lengths": [None if part is None else len(part) for part in (record.key, record.value, *(value for _, value in record.headers))],
    }
    raw = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(raw)), raw, *_parts(record)])


def decode_refused(raw: bytes) -> DecodedUserRecord:
    """The record, without its changes, and its rejections. Raises Corrupted (`bad_refused_record`)."""
    what = f"a refused record of {len(raw)} bytes in the view of users does not read"
    with corrupted_as("bad_refused_record", what, "remove the view's folder"):
        end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
        head = json.loads(raw[_LENGTH.size : end])
        parts: list[bytes | None] = []
        for length in head["lengths"]:
            parts.append(None if length is None else raw[end : end + length])
            end += length or 0
        if end != len(raw):
            raise ValueError(f"it ends at {len(raw)}, its head says {end}")
        topic, partition, offset, timestamp_ms = head["at"]
        key, value, *values = parts
        record = SourceRecord(topic, partition, offset, key, value, tuple(zip(head["names"], values, strict=True)), timestamp_ms)
        return DecodedUserRecord(record, (), [Rejection(*one) for one in head["rejections"]])


def _parts(record: SourceRecord) -> list[bytes]:
    return [record.key or b"", record.value or b"", *(value or b"" for _, value in record.headers)]
