"""The server's own view of users: the fold of user-features and user-behaviours (schemas/users.py) in a RocksDB directory.

Invariants:
- One WriteBatch holds the changed users, the refused records and the next offsets. So no record is ever half folded, and a restart continues from the
  offsets. Folding a record twice changes nothing.
- A record that cannot be read, or is in the wrong partition for its user, is skipped and counted, never fatal (protocol A10). It is stored until its dead
  letters are in their topic (user_dead_letters.py). A new user for whom the view has no room is not wrong, only counted.
- A snapshot shows one moment and never changes afterwards. One thread folds, one deletes records whose letters were sent, any thread may read.
- Memory is bounded by the number of decoded users and of their behaviours; the least recently used user is dropped first. Everything is on disk, and
  losing the disk costs a replay of the log.
- The event loop looks in memory alone, under a lock that no thread holds while the disk works. So a disk that stalls delays no ranking of a user in memory.

Directory: <data_dir>/<hash of the view's identity>/<number>. Each server of an index on one host takes the first that no other process holds. A view from an
earlier run continues from its offsets, so a restart takes seconds. One that cannot be opened is deleted and built again, which costs time but never an answer.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from infra.kafka.reader import SourceRecord
from infra.rocks import Batch, Database, open_database
from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.ids import Id, IdKind, encode_index_key
from schemas.limits import BEHAVIOURS_PER_USER_MAX, DEAD_LETTERS_WAITING_BYTES_MAX, WRITE_BATCH_UPDATES_MAX
from serving.core.user_view import (
    Head,
    ViewState,
    decode_events,
    decode_head,
    decode_profile,
    decode_view_state,
    encode_block_key,
    encode_view_state,
)
from serving.users.user_batch import (
    BEHAVIOURS,
    HEADS,
    PROFILES,
    STATISTICS,
    DecodedUserRecord,
    UserBatch,
    UserChange,
    decode_user_record,
    encode_refused,
    refused_key,
)

META, REFUSED = "meta", "refused"
FAMILIES = (HEADS, PROFILES, STATISTICS, BEHAVIOURS, META, REFUSED)
STATE_KEY = b"state"
FORMAT = 3  # of the directory; another format has another folder, so a view of format 2, with events as JSON, is not read
_SERVERS_PER_HOST_MAX = 64
_log = logging.getLogger("aif.serving.users")

HistoryOffsets = tuple[int, int]  # last offset folded of user-features and of user-behaviours


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KnownUser:
    """An immutable snapshot of one user. A newer one shares the unchanged parts. `profile`: its own features with the statistics over them, `parts`.
    `offsets` differ whenever the history does."""

    profile: Mapping[str, Any]
    behaviours: BehaviourColumns
    offsets: HistoryOffsets
    parts: tuple[Mapping[str, Any], Mapping[str, Any]] = (MappingProxyType({}), MappingProxyType({}))

    @classmethod
    def of(cls, own: Mapping[str, Any], statistics: Mapping[str, Any], behaviours: BehaviourColumns, offsets: HistoryOffsets) -> Self:
        """A user of a profile's own features and statistics."""
        return cls({**own, **statistics} if statistics else own, behaviours, offsets, (own, statistics))


_UNKNOWN = KnownUser(MappingProxyType({}), EMPTY, (-1, -1))


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """`users_max` on disk; in memory `decoded_users_max` users with `decoded_behaviours_max` behaviours in all (20 bytes each, 250 with features)."""

    users_max: int = 100_000_000
    decoded_users_max: int = 10_000
    decoded_behaviours_max: int = 500_000


class UserStore:
    """The view in one open database, which it owns and closes. `partitions`: user partitions of the index; `skipped`: updates that were wrong or found no
    room."""

    def __init__(self, database: Database, id_kind: IdKind, partitions: int, bounds: StoreBounds | None = None) -> None:
        self._database, self._id_kind, self.partitions = database, id_kind, partitions
        self._bounds = bounds or StoreBounds()
        self._decoded: OrderedDict[Id, KnownUser] = OrderedDict()
        self._decoded_behaviours = 0
        self._disk = threading.Lock()  # of the database; taken before the other one
        self._lock = threading.Lock()  # of the decoded users
        self.state = self._read_state()
        self.refused_bytes = self._count_refused()
        self.skipped = 0
        self.damage: Corrupted | None = None  # what a reader found: the follower makes the view again

    def __len__(self) -> int:
        return self.state.users

    # --- looking -------------------------------------------------------------------------------------------------------

    def find(self, user: Id, within_s: float = -1) -> KnownUser:
        """A user's profile and history; an unknown user is cold, and so is one on a damaged disk. Reads the disk if the user is not in memory.

        Raises TimeoutError if that is not free `within_s` seconds (-1: no limit): threads must not pile up before a disk that stalls.
        """
        known = self.find_in_memory(user)
        if known is not None:
            return known
        try:
            with self._reading(within_s):
                head, told, blocks = self._read_user(encode_index_key(user))
            own, statistics = (decode_profile(raw) if raw else {} for raw in told)
            history = KnownUser.of(own, statistics, decode_events(blocks), (head.profile_offset, head.behaviours_offset))
        except Corrupted as error:
            self.damage = error
            return _UNKNOWN
        with self._reading(within_s):
            if self._read_head(encode_index_key(user)) == head:  # nothing was folded while it was decoded
                self._keep_decoded(user, history)
            return history

    @contextlib.contextmanager
    def _reading(self, within_s: float) -> Iterator[None]:
        if not self._disk.acquire(timeout=within_s):
            raise TimeoutError("the disk of the view of users is busy")
        try:
            yield
        finally:
            self._disk.release()

    def find_in_memory(self, user: Id) -> KnownUser | None:
        """The same from memory only; None if the user is not there."""
        with self._lock:
            history = self._decoded.get(user)
            if history is not None:
                self._decoded.move_to_end(user)
            return history

    def offsets_in_memory(self, user: Id) -> HistoryOffsets | None:
        """The offsets of the user's history, without marking it as used; None if the user is not in memory."""
        with self._lock:
            history = self._decoded.get(user)
            return None if history is None else history.offsets

    @property
    def decoded(self) -> tuple[int, int]:
        """How many users and how many behaviours are in memory."""
        return len(self._decoded), self._decoded_behaviours

    def _read_state(self) -> ViewState:
        raw = self._database.get(META, STATE_KEY)
        return ViewState() if raw is None else decode_view_state(raw)

    def _count_refused(self) -> int:
        return sum(len(raw) for _, raw in self._database.scan(REFUSED))

    def _read_head(self, key: bytes) -> Head:
        raw = self._database.get(HEADS, key)
        return Head() if raw is None else decode_head(raw)

    def _read_user(self, key: bytes) -> tuple[Head, Sequence[bytes | None], list[bytes]]:
        head = self._read_head(key)
        if head == Head():
            return head, (None, None), []
        scan = self._database.scan(BEHAVIOURS, encode_block_key(key, head.first), encode_block_key(key, head.tail + 1))
        return head, [self._database.get(family, key) for family in (PROFILES, STATISTICS)], [value for _, value in scan]

    def _keep_decoded(self, user: Id, history: KnownUser) -> None:
        """A history that is larger than the whole bound is not kept."""
        with self._lock:
            self._forget_decoded(user)
            self._decoded[user] = history
            self._decoded_behaviours += len(history.behaviours)
            self._keep_bounds()

    def _keep_bounds(self) -> None:
        while len(self._decoded) > self._bounds.decoded_users_max or self._decoded_behaviours > self._bounds.decoded_behaviours_max:
            self._forget_decoded(next(iter(self._decoded)))

    def _forget_decoded(self, user: Id) -> None:
        history = self._decoded.pop(user, None)
        if history is not None:
            self._decoded_behaviours -= len(history.behaviours)

    # --- folding -------------------------------------------------------------------------------------------------------

    def fold_record(self, record: SourceRecord) -> int:
        """Folds one record of either topic. Returns how many of its updates were skipped because they are wrong or do not fit."""
        return self.fold_records([record])

    def fold_records(self, records: Sequence[SourceRecord]) -> int:
        """Folds records, each partition's in offset order; those before the next offset are dropped. Returns how many updates were skipped."""
        skipped = 0
        for cut in self._cut(records):
            skipped += self._write(cut)
        self.skipped += skipped
        return skipped

    def note_seen(self, now_ms: int, topic_ids: Mapping[str, str]) -> None:
        """Records that the log was read to its end at `now_ms`, and the ids of its topics: a later start checks both before it goes on."""
        self._commit(self._database.new_batch(), dataclasses.replace(self.state, seen_ms=now_ms, topic_ids=dict(topic_ids)))

    def _cut(self, records: Sequence[SourceRecord]) -> Iterator[list[DecodedUserRecord]]:
        """Decoded records in batches of about WRITE_BATCH_UPDATES_MAX updates."""
        decoded: list[DecodedUserRecord] = []
        size = 0
        for record in records:
            if record.offset < self.state.next_offsets.get(record.topic, {}).get(record.partition, 0):
                continue
            decoded.append(decode_user_record(record, self._id_kind, self.partitions))
            size += len(decoded[-1]) + len(decoded[-1].rejections)
            if size >= WRITE_BATCH_UPDATES_MAX:
                yield decoded
                decoded, size = [], 0
        if decoded:
            yield decoded

    def _write(self, decoded: Sequence[DecodedUserRecord]) -> int:
        """One WriteBatch. Returns how many updates were skipped."""
        users = [change.user for one in decoded for change in one.changes]
        batch, folded = UserBatch(self._database, users, self._bounds.users_max - len(self)), list[UserChange]()
        for one in decoded:
            folded += [change for change in one.changes if batch.fold(change)]
        offsets = {topic: dict(by) for topic, by in self.state.next_offsets.items()}
        for one in decoded:
            offsets.setdefault(one.record.topic, {})[one.record.partition] = one.record.offset + 1
        after = dataclasses.replace(self.state, next_offsets=offsets, users=len(self) + batch.new_users)
        refused = {refused_key(one.record): encode_refused(one) for one in decoded if one.rejections}
        self._commit(batch.encode(), after, folded, refused)
        return sum(len(one.rejections) + len(one) for one in decoded) - sum(map(len, folded))

    def _commit(
        self, batch: Batch, state: ViewState, folded: Sequence[UserChange] = (), refused: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> None:
        batch.put(META, STATE_KEY, encode_view_state(state))
        for key, raw in refused.items():
            batch.put(REFUSED, key, raw)
        with self._disk:  # a reader of the disk sees a user before or after, on disk and in memory alike
            self._database.write(batch)
            self.state = state
            self.refused_bytes += sum(map(len, refused.values()))
            with self._lock:
                for change in folded:
                    self._fold_decoded(change)

    def _fold_decoded(self, change: UserChange) -> None:
        """Applies a change to a decoded user, by the rules of schemas/users.py. REQUIRES: the lock."""
        history = self._decoded.get(change.user)
        if history is None or change.offset <= history.offsets[not change.is_profile]:
            return
        profile_offset, behaviours_offset = history.offsets
        if change.is_profile:
            own, statistics = history.parts
            told = (own, change.features) if change.is_statistics else (change.features, statistics)
            self._decoded[change.user] = KnownUser.of(*told, history.behaviours, (change.offset, behaviours_offset))
            return
        rows = [(event.item_id, event.kind, event.time_ms, event.features) for event in change.events]
        behaviours = history.behaviours.append(rows, BEHAVIOURS_PER_USER_MAX)
        self._decoded[change.user] = KnownUser.of(*history.parts, behaviours, (profile_offset, change.offset))
        self._decoded_behaviours += len(behaviours) - len(history.behaviours)
        self._keep_bounds()

    # --- refused records -----------------------------------------------------------------------------------------------

    @property
    def is_full_of_refused(self) -> bool:
        """Whether so many refused records wait for their dead letters that nothing more should be folded."""
        return self.refused_bytes >= DEAD_LETTERS_WAITING_BYTES_MAX

    def read_refused(self, bytes_max: int, after: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Refused records after the key `after`, as (key, bytes of `encode_refused`): about `bytes_max` in all, at least one if there is any."""
        rows: list[tuple[bytes, bytes]] = []
        with self._disk:
            for row in self._database.scan(REFUSED, after + b"\0"):
                rows.append(row)
                bytes_max -= len(row[1])
                if bytes_max <= 0:
                    break
        return rows

    def forget_refused(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Deletes rows whose dead letters are in the topic. A row whose stored bytes differ by now (the view was built again) stays."""
        with self._disk:
            stored = self._database.multi_get(REFUSED, [key for key, _ in rows])
            batch, same = self._database.new_batch(), [row for row, now in zip(rows, stored, strict=True) if row[1] == now]
            for key, _ in same:
                batch.delete(REFUSED, key)
            self._database.write(batch)
            self.refused_bytes -= sum(len(raw) for _, raw in same)

    # --- the directory -------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Deletes everything, so that the log is folded again from its start."""
        with self._disk:
            self._database.close()
            with self._lock:
                self._decoded.clear()
                self._decoded_behaviours = 0
            shutil.rmtree(self._database.path)
            self._database = open_database(self._database.path, FAMILIES)
            self.state, self.refused_bytes, self.damage = ViewState(), 0, None

    @property
    def table_files(self) -> int:
        """Table files on disk; each is an open file."""
        return sum(1 for _ in self._database.path.glob("*.sst"))

    @property
    def is_open(self) -> bool:
        """Not after a reopening that failed, as on a disk that is still full."""
        return self._database.is_open

    def reopen(self) -> None:
        """Opens the database again, which a failed write (a full disk) has made unusable. A `rebuild` that failed has left an empty one: it says where the
        view stands, not the memory."""
        with self._disk:
            self._database.reopen()
            self.state, self.refused_bytes = self._read_state(), self._count_refused()

    def close(self) -> None:
        """Closes the database, so that another process can open the directory."""
        with self._disk:
            self._database.close()


# --- where it lies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewIdentity:
    """What a view shows: the users of one index, from the topics under one prefix."""

    index: str
    topic_prefix: str
    id_kind: IdKind
    partitions: int

    @property
    def folder(self) -> str:
        """Name of its folder."""
        text = json.dumps([FORMAT, self.index, self.topic_prefix, self.id_kind.value, self.partitions])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_user_store(data_dir: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    """Opens the first view that no other process holds. Raises Unavailable (`database_locked`, `disk_full`)."""
    folder = data_dir / identity.folder
    for number in range(_SERVERS_PER_HOST_MAX):
        try:
            return _open_or_remake(folder / str(number), identity, bounds)
        except Unavailable as error:
            if error.code != "database_locked":
                raise
    raise Unavailable(
        "database_locked", f"{_SERVERS_PER_HOST_MAX} servers hold views in {folder}; stop some, or give this one AIF_USERS__DATA_DIR"
    )


def _open_or_remake(path: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    try:
        return _open(path, identity, bounds)
    except (Corrupted, Incompatible) as error:
        _log.error("user store %s does not open (%s); rebuilding it from Kafka", path, error)
        shutil.rmtree(path)
        return _open(path, identity, bounds)


def _open(path: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    database = open_database(path, FAMILIES)
    try:
        return UserStore(database, identity.id_kind, identity.partitions, bounds)
    except BaseException:  # its state does not read
        database.close()
        raise
