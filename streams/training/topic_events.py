"""The log as training reads it: every event of the input topics up to now, decoded and checked like everywhere else.

Here: topics to `Events`. Not here: joining (impressions.py). Bad records are skipped and counted: the dead letters are written by those
who own the topics. Reading stops at the end offsets taken at the start, so a run on a busy log ends.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import SourceRecord, read_topic
from infra.processes import wait_until
from schemas.errors import RejectedInput
from schemas.events import (
    Behaviour,
    BehavioursRecord,
    ImpressionRecord,
    ItemFeaturesRecord,
    ItemFeaturesUpdate,
    NewItem,
    NewItemsRecord,
    UserFeaturesRecord,
    decode_record,
    decode_updates,
)
from schemas.ids import Id, IdKind, decode_id
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, NEW_ITEMS, USER_BEHAVIOURS, USER_FEATURES
from streams.training.impressions import Events

_WAIT_S_MAX = 900.0
_POLL_S = 0.2

R = TypeVar("R")
Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition (as text, for JSON) -> offset


class TopicEvents:
    """Reads the topics of one index. `skipped` counts records and updates that were refused, by topic."""

    def __init__(self, bootstrap: str, prefix: str, shards: int, user_partitions: int, kind: IdKind) -> None:
        self._bootstrap, self._prefix, self._kind = bootstrap, prefix, kind
        self._partitions = {ITEM_FEATURES: shards, NEW_ITEMS: shards, USER_BEHAVIOURS: user_partitions}
        self._until: Offsets | None = None
        self.skipped: Counter[str] = Counter()

    def wait_for_impressions(self, records: int) -> None:
        """Returns once the impressions topic holds at least `records`. Raises Unavailable (`timed_out`) after a quarter of an hour.

        Whoever publishes impressions last can start training early: what they refer to is in the log when the last of them is.
        """
        topic = self._prefix + IMPRESSIONS

        def held() -> int:
            return sum(end_offsets(self._bootstrap, topic).values()) - sum(start_offsets(self._bootstrap, topic).values())

        if records:
            wait_until(lambda: held() >= records, _WAIT_S_MAX, f"{records} records in {topic}", poll_s=_POLL_S)

    def ends(self) -> Offsets:
        """Where each topic ends now: what `read` goes up to."""
        return {
            topic: {str(p): offset for p, offset in end_offsets(self._bootstrap, self._prefix + topic).items()}
            for topic in (ITEM_FEATURES, NEW_ITEMS, USER_BEHAVIOURS, USER_FEATURES, IMPRESSIONS)
        }

    def read(self, until: Offsets | None = None) -> Events:
        """All five topics side by side, up to given ends (None: as they are now). Raises Incompatible (`offset_gone`)."""
        self._until = until
        with ThreadPoolExecutor(5) as pool:
            items = pool.submit(self._updates, ITEM_FEATURES, ItemFeaturesRecord, ItemFeaturesUpdate, lambda u: u.item_id)
            new_items = pool.submit(self._updates, NEW_ITEMS, NewItemsRecord, NewItem, lambda u: u.item_id)
            behaviours = pool.submit(self._updates, USER_BEHAVIOURS, BehavioursRecord, Behaviour, lambda u: u.user_id)
            users = pool.submit(self._records, USER_FEATURES, self._user)
            impressions = pool.submit(self._records, IMPRESSIONS, self._impression)
            return Events(items.result(), new_items.result(), users.result(), behaviours.result(), impressions.result())

    def _read(self, topic: str) -> list[SourceRecord]:
        """In the order of the log, partition by partition: how a broker interleaves them must not show in what is learnt."""
        end = None if self._until is None else {int(p): offset for p, offset in self._until[topic].items()}
        return sorted(read_topic(self._bootstrap, topic, end=end, prefix=self._prefix), key=lambda r: (r.partition, r.offset))

    def _updates(self, topic: str, record_type: Any, update_type: Any, owner: Callable[[Any], Id]) -> list[Any]:
        found = []
        for record in self._read(topic):
            decoded = decode_updates(record_type, update_type, record.value, self._kind, record.partition, self._partitions[topic], owner)
            found += [update for _, update in decoded.accepted]
            self.skipped[topic] += len(decoded.rejected)
        return found

    def _records(self, topic: str, decode: Callable[[SourceRecord], R]) -> list[R]:
        found = []
        for record in self._read(topic):
            try:
                found.append(decode(record))
            except RejectedInput:
                self.skipped[topic] += 1
        return found

    def _user(self, record: SourceRecord) -> UserFeaturesRecord:
        """A record without a value forgets the profile, so it is one without features."""
        if record.value is None:
            key = (record.key or b"").decode(errors="replace")
            return UserFeaturesRecord(user_id=decode_id(key, self._kind), features={})
        user = decode_record(UserFeaturesRecord, record.value)
        return user.model_copy(update={"user_id": decode_id(user.user_id, self._kind)})

    def _impression(self, record: SourceRecord) -> ImpressionRecord:
        impression = decode_record(ImpressionRecord, record.value)
        if self._kind is IdKind.INT64 and not any(isinstance(i, str) for i in (impression.user_id, *(s.item_id for s in impression.items))):
            return impression
        items = [s.model_copy(update={"item_id": decode_id(s.item_id, self._kind)}) for s in impression.items]
        return impression.model_copy(update={"user_id": decode_id(impression.user_id, self._kind), "items": items})
