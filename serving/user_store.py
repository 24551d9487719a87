"""The server's own view of users: the fold of user-features and user-behaviours in memory (schemas/users.py), rebuilt from the log at start.

Here: records to the fold, bounds, snapshots of one user. Not here: reading the topics (user_follower.py), model inputs.
Invariants: a record that cannot be read, or that lies in a partition its user does not hash to, is skipped and counted (protocol A10), never
fatal; folding a record twice changes nothing; a snapshot is of one moment and never changes afterwards. One writer thread, any readers.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.kafka.reader import SourceRecord
from schemas.errors import RejectedInput
from schemas.events import Behaviour, BehavioursRecord, UserFeaturesRecord, decode_record, decode_updates
from schemas.ids import Id, IdKind, decode_id, partition_of
from schemas.topics import USER_FEATURES
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile
from serving.user_states import HistoryOffsets

NEVER_SEEN: HistoryOffsets = (-1, -1)


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A snapshot of one user. `offsets` change whenever the history does."""

    profile: Mapping[str, Any]
    behaviours: Sequence[BehaviourEvent]
    offsets: HistoryOffsets

    @property
    def is_cold(self) -> bool:
        """Nothing is known of this user."""
        return not self.profile and not self.behaviours


_UNKNOWN = KnownUser({}, (), NEVER_SEEN)


class UserStore:
    """At most `users_max` users; each keeps its newest BEHAVIOURS_PER_USER_MAX behaviours."""

    def __init__(self, id_kind: IdKind, partitions: int, users_max: int) -> None:
        self._id_kind, self._partitions, self._users_max = id_kind, partitions, users_max
        self._histories: dict[Id, UserHistory] = {}
        self._lock = threading.Lock()
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._histories)

    def find(self, user: Id) -> KnownUser:
        """What is known of a user; a user never heard of is cold."""
        with self._lock:
            history = self._histories.get(user)
            if history is None:
                return _UNKNOWN
            return KnownUser(history.profile, tuple(history.behaviours), (history.profile_offset, history.behaviours_offset))

    def offsets_of(self, user: Id) -> HistoryOffsets:
        """The snapshot's offsets without the snapshot."""
        with self._lock:
            history = self._histories.get(user)
            return NEVER_SEEN if history is None else (history.profile_offset, history.behaviours_offset)

    def fold_record(self, record: SourceRecord) -> int:
        """Folds one record of either topic. Returns how many of its updates were skipped because they are wrong or do not fit."""
        try:
            skipped = self._fold_profile(record) if record.topic == USER_FEATURES else self._fold_behaviours(record)
        except RejectedInput:
            skipped = 1
        self.skipped += skipped
        return skipped

    def _fold_profile(self, record: SourceRecord) -> int:
        if record.value is None:
            user, features = decode_id(_text_key(record), self._id_kind), None
        else:
            body = decode_record(UserFeaturesRecord, record.value)
            user, features = decode_id(body.user_id, self._id_kind), body.features
        expected = partition_of(user, self._partitions)
        if expected != record.partition:
            raise RejectedInput("wrong_partition", f"user {user!r} belongs to partition {expected}, the record came in {record.partition}")
        with self._lock:
            history = self._history(user)
            if history is not None:
                fold_profile(history, record.offset, features)
        return int(history is None)

    def _fold_behaviours(self, record: SourceRecord) -> int:
        decoded = decode_updates(
            BehavioursRecord, Behaviour, record.value, self._id_kind, record.partition, self._partitions, lambda b: b.user_id
        )
        by_user: dict[Id, list[BehaviourEvent]] = {}
        for _, b in decoded.accepted:
            by_user.setdefault(b.user_id, []).append(BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features))
        skipped = len(decoded.rejected)
        with self._lock:
            for user, events in by_user.items():
                history = self._history(user)
                if history is None:
                    skipped += len(events)
                else:
                    fold_behaviours(history, record.offset, events)
        return skipped

    def _history(self, user: Id) -> UserHistory | None:
        """The user's history, made when there is room. REQUIRES: the lock."""
        history = self._histories.get(user)
        if history is None and len(self._histories) < self._users_max:
            history = self._histories[user] = UserHistory()
        return history


def _text_key(record: SourceRecord) -> str:
    try:
        return (record.key or b"").decode()
    except UnicodeDecodeError as error:
        raise RejectedInput("bad_id", f"the key {record.key!r} of a record without a value is not UTF-8") from error
