"""Decodes and checks the records of the five topics that training reads: one decoder for a training, a follower and snapshots.

Here: records to events, counts of refused ones. Not here: where records come from (topic_events.py, topic_snapshot.py, following/). Bad records are skipped and
counted. Other readers of a topic write its dead letters, but only training reads impressions. So a reader of the log passes `refuse`, which is called for
each bad impression (refused_impressions.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from infra.kafka.reader import SourceRecord
from schemas.decoding import decode_record, decode_updates, decode_user_features
from schemas.errors import Misconfigured, RejectedInput
from schemas.events import (
    Behaviour,
    BehavioursRecord,
    ImpressionRecord,
    ItemFeaturesRecord,
    ItemFeaturesUpdate,
    NewItem,
    NewItemsRecord,
    UserFeaturesRecord,
)
from schemas.ids import Id, IdKind, decode_id
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, NEW_ITEMS, USER_BEHAVIOURS, USER_FEATURES
from streams.training.impressions import Events

TRAINING_TOPICS = (ITEM_FEATURES, NEW_ITEMS, USER_FEATURES, USER_BEHAVIOURS, IMPRESSIONS)  # in the order of the fields of `Events`
CONTEXT_TOPICS = TRAINING_TOPICS[:-1]  # what impressions are joined with
Refuse = Callable[[SourceRecord, RejectedInput], None]  # called for a record of impressions that cannot be decoded
Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition (as text, for JSON) -> offset


class EventDecoder:
    """Decodes for one index. `read` counts records, `skipped` records and updates that were refused, by topic."""

    def __init__(self, shards: int, user_partitions: int, kind: IdKind, refuse: Refuse | None = None) -> None:
        self._counts, self._kind, self._refuse = (shards, user_partitions), kind, refuse
        users = (USER_FEATURES, USER_BEHAVIOURS)
        self._partitions = dict.fromkeys((ITEM_FEATURES, NEW_ITEMS), shards) | dict.fromkeys(users, user_partitions)
        self._of_topic: Mapping[str, Callable[[SourceRecord], list[Any]]] = {
            ITEM_FEATURES: lambda r: self._updates(r, ItemFeaturesRecord, ItemFeaturesUpdate, lambda u: u.item_id),
            NEW_ITEMS: lambda r: self._updates(r, NewItemsRecord, NewItem, lambda u: u.item_id),
            USER_FEATURES: lambda r: [self._user(r)],
            USER_BEHAVIOURS: lambda r: self._updates(r, BehavioursRecord, Behaviour, lambda u: u.user_id),
            IMPRESSIONS: lambda r: [self._impression(r)],
        }
        self.read: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def require_ids(self, model: IdKind) -> None:
        """Raises Misconfigured (`id_kind_differs`) unless it reads ids of the model's kind: of the other one it would refuse every impression."""
        if self._kind is not model:
            raise Misconfigured(
                "id_kind_differs",
                f"the model has {model} ids, the log would be read as of {self._kind} ids; set AIF_INDEX__ID_KIND={model} if the topics have such ids "
                "(for a snapshot, when it is exported), else take a model that was made for them",
            )

    def check_ids(self, topic: str, records: Sequence[SourceRecord]) -> None:
        """Raises Misconfigured (`id_kind_differs`) where a decoder of the other kind of ids reads more of some records."""
        other = next(kind for kind in IdKind if kind is not self._kind)
        read = {kind: EventDecoder(*self._counts, kind).decode(topic, records) for kind in (self._kind, other)}
        if len(read[other]) > len(read[self._kind]):  # texts of digits alone read as numbers too, but few of those hash to their partition
            raise Misconfigured(
                "id_kind_differs",
                f"{topic} has {other} ids and would be read as of {self._kind} ids: AIF_INDEX__ID_KIND={other} for every process of this index",
            )

    def decode(self, topic: str, records: Iterable[SourceRecord]) -> list[Any]:
        """The good events of some records of a topic, in their order."""
        decode, found = self._of_topic[topic], []
        for record in records:
            self.read[topic] += 1
            try:
                found += decode(record)
            except RejectedInput as error:
                self.skipped[topic] += 1
                if self._refuse is not None and topic == IMPRESSIONS:
                    self._refuse(record, error)
        return found

    def decode_all(self, records: Mapping[str, Iterable[SourceRecord]]) -> Events:
        """The events of all five topics, each topic's records in log order."""
        return Events(*(self.decode(topic, records.get(topic, ())) for topic in TRAINING_TOPICS))

    def _updates(self, record: SourceRecord, record_type: Any, update_type: Any, owner: Callable[[Any], Id]) -> list[Any]:
        partitions = self._partitions[record.topic]
        decoded = decode_updates(record_type, update_type, record.value, self._kind, record.partition, partitions, owner)
        self.skipped[record.topic] += len(decoded.rejected)
        return [update for _, update in decoded.accepted]

    def _user(self, record: SourceRecord) -> UserFeaturesRecord:
        return decode_user_features(record.key, record.value, self._kind, record.partition, self._partitions[USER_FEATURES])

    def _impression(self, record: SourceRecord) -> ImpressionRecord:
        impression = decode_record(ImpressionRecord, record.value)
        given = [impression.user_id, *(s.item_id for s in impression.items)]
        user, *ids = (decode_id(i, self._kind) for i in given)
        if [user, *ids] == given:  # all but numbers that are spelt as text
            return impression
        items = [s.model_copy(update={"item_id": i}) for s, i in zip(impression.items, ids, strict=True)]
        return impression.model_copy(update={"user_id": user, "items": items})
