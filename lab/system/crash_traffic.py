"""The traffic of the crash bench."""

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, Producer

from infra.kafka.producer import open_producer
from infra.kafka.publisher import Delivered, Publisher
from lab.background import Background
from lab.catalogues.catalogue import Catalogue
from lab.demo.stage import SHARDS
from lab.system.bad_records import BadRecords
from lab.system.stage import BenchStage
from schemas.errors import Unavailable
from schemas.events import ItemFeaturesUpdate
from schemas.ids import partition_of
from schemas.topics import ITEM_FEATURES

_PACE_S = 0.05
_SETTLE_S = 60.0
_CHANGES_AT_ONCE = 512


class Traffic(Background):
    """Publishes in a thread until it is stopped. Leaving it waits for records under way."""

    def __init__(self, stage: BenchStage, catalogue: Catalogue, updates_per_s: float, seed: int) -> None:
        self._stage, self._catalogue, self._seed = stage, catalogue, seed
        self._per_step = max(1, round(updates_per_s * _PACE_S))
        self._random = random.Random(seed)
        self._bad = BadRecords(self._random)
        self._lock = threading.Lock()
        self.acknowledged = set[tuple[str, int, int]]()  # topic, partition, offset of each record
        self._transactions: Producer | None = None
        self.not_acknowledged = 0  # records whose fate is unknown: they may be in the log or not
        super().__init__(self._run)

    def _run(self) -> None:
        changes = self._changes()
        while not self.stopping.is_set():
            try:
                self._publish_until_refused(changes)
            except Unavailable:  # a broker away for longer than a delivery may take: records under way count as unknown
                time.sleep(_PACE_S)

    def _publish_transaction(self, updates: list[ItemFeaturesUpdate]) -> None:
        """A transaction of another system. It is committed, or aborted: then nothing of it may be counted."""
        delivered = list[tuple[str, Any, Any]]()
        try:
            producer = self._transactional()
            producer.begin_transaction()
            for update in updates:
                value = {"schema": 1, "updates": [{"item_id": int(update.item_id), "version": update.version, "features": update.features}]}
                producer.produce(
                    self._stage.topic_prefix + ITEM_FEATURES,
                    json.dumps(value),
                    partition=partition_of(update.item_id, SHARDS),
                    on_delivery=lambda error, m: None if error else delivered.append((ITEM_FEATURES, m.partition(), m.offset())),
                )
            if self._random.random() < 0.5:
                producer.abort_transaction(_SETTLE_S)
                return
            producer.commit_transaction(_SETTLE_S)
        except KafkaException as error:  # whether it was committed is not known
            self._transactions = None
            raise Unavailable("not_delivered", str(error)) from error
        with self._lock:
            self.acknowledged.update(delivered)

    def _transactional(self) -> Producer:
        if self._transactions is None:
            producer = open_producer(self._stage.bootstrap_servers, _SETTLE_S, transactional_id=f"traffic-{self._seed}")
            producer.init_transactions(_SETTLE_S)  # an open transaction of an earlier one is aborted
            self._transactions = producer
        return self._transactions

    def _publish_until_refused(self, changes: Iterator[ItemFeaturesUpdate]) -> None:
        raw = open_producer(self._stage.bootstrap_servers, _SETTLE_S)
        with self._stage.publisher() as publisher:
            while not self.stopping.wait(_PACE_S):
                for _ in range(self._per_step):
                    self._publish_one(publisher, raw, changes)
                raw.poll(0)
            raw.flush(_SETTLE_S)

    def _publish_one(self, publisher: Publisher, raw: Producer, changes: Iterator[ItemFeaturesUpdate]) -> None:
        update, chance = next(changes), self._random.random()
        if chance < 0.02:
            self._publish_bad(raw, [update, *itertools.islice(changes, self._random.choice((0, 0, 2)))])
        elif chance < 0.05:
            self._note(publisher.publish_delete(update.item_id, update.version))
        elif chance < 0.15:  # an older version, which must lose
            self._note(publisher.publish_item(update.item_id, max(0, update.version - 86_400_000 * 2), dict(update.features)))
        elif chance < 0.155:
            self._publish_transaction([update, *itertools.islice(changes, 2)])
        elif chance < 0.20:
            embedding = [round(self._random.uniform(-1, 1), 4) for _ in range(64)]
            self._note(publisher.publish_new_item(update.item_id, embedding)[0])
        else:
            self._note(publisher.publish_update(update))

    def _publish_bad(self, raw: Producer, updates: list[ItemFeaturesUpdate]) -> None:
        """A record past every check of the publisher, whose updates are of any partition."""
        record = self._bad.draw([(int(u.item_id), u.version, u.features) for u in updates])
        delivery: Future[Delivered] = Future()

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                delivery.set_result(Delivered(record.topic, message.partition(), message.offset()))
            else:
                delivery.set_exception(Unavailable("not_delivered", str(error)))

        try:
            raw.produce(self._stage.topic_prefix + record.topic, record.value, record.key, record.partition, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            raise Unavailable("not_delivered", str(error)) from error
        self._note(delivery)

    def _note(self, delivery: "Future[Delivered]") -> None:
        delivery.add_done_callback(self._take)

    def _take(self, delivery: "Future[Delivered]") -> None:
        with self._lock:
            if delivery.exception() is not None:
                self.not_acknowledged += 1
            else:
                place = delivery.result()
                self.acknowledged.add((place.topic, place.partition, place.offset))

    def _changes(self) -> Iterator[ItemFeaturesUpdate]:
        """Later and later versions of random items, without end."""
        for n in itertools.count(1):
            yield from self._catalogue.price_changes(_CHANGES_AT_ONCE, self._seed * 10_000 + n)
