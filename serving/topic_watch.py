"""Whether the broker still has the topics of the index, with its partitions, and lets this server read and write them. A consumer of a deleted topic, or
without its right, only hears that nothing comes.

A server whose topics are gone stays ready. It answers from its present rows, and its status and metrics say why nothing new comes. So does one whose item
topics have surplus partitions: the workers stop there.
"""

import logging

from infra.guarded_thread import OneThread
from infra.kafka.admin import IDENTITY_TOPICS, check_surplus, check_topic_ids, fetch_topics, topic_gone
from infra.kafka.admin_client import check_rights
from infra.kafka.dead_letters import dead_letter_topic
from infra.kafka.security import Bootstrap
from infra.metrics import Metrics
from schemas.errors import Incompatible, Unavailable
from schemas.index.control import Init
from schemas.topics import (
    ALLOCATION_OUTCOMES,
    INDEX_DELTAS,
    SERVER_REPORTS,
    SHARD_TOPICS,
    STATISTICS_REPORTS,
    USER_BEHAVIOURS,
    USER_FEATURES,
)

_EVERY_S = 5.0
_ASK_S_MAX = 2.0  # a topic that is deleted in the middle of a question is asked for until then
_DEAD_LETTERS = tuple(map(dead_letter_topic, (USER_FEATURES, USER_BEHAVIOURS)))
_READ = (INDEX_DELTAS, USER_FEATURES, USER_BEHAVIOURS, STATISTICS_REPORTS, *_DEAD_LETTERS)
_WRITTEN = (SERVER_REPORTS, ALLOCATION_OUTCOMES, *_DEAD_LETTERS)
_log = logging.getLogger("aif.serving.topics")


class TopicWatch(OneThread):
    """`index`: the index as it was begun. `last_error`: the fault of its topics, or "". `has_lost_items`: an item topic is gone, or another one of its name."""

    close_s_max = 0.0  # a question that the broker does not answer is not waited for

    def __init__(self, bootstrap: Bootstrap, prefix: str, index: Init, metrics: Metrics, every_s: float = _EVERY_S) -> None:
        self._bootstrap, self._prefix, self._index, self._every_s = bootstrap, prefix, index, every_s
        self._asked_for = sorted({*IDENTITY_TOPICS, *index.topic_ids})
        self._gone = metrics.gauge("topics_gone")
        self._has_rights = False
        super().__init__("topic-watch")
        self.last_error, self.has_lost_items = "", False

    def _run(self) -> None:
        while not self.stopping.wait(self._every_s):
            error = self._look()
            if error and error != self.last_error:
                _log.error("%s; this server answers from its present data", error)
            self.last_error = error

    def _look(self) -> str:
        try:
            topics = fetch_topics(self._bootstrap, self._prefix, deadline_s=_ASK_S_MAX, of=self._asked_for)
            found = {name: topic.topic_id for name, topic in topics.items()}
            gone = self._index.topic_ids.keys() - found.keys()
            self.has_lost_items = any(found.get(topic) != self._index.topic_ids.get(topic, found.get(topic)) for topic in SHARD_TOPICS)
            self._gone.set(len(gone))
            check_topic_ids(self._index.topic_ids, found, self._prefix)
            check_surplus(topics, self._prefix, self._index.shards)
            if not gone and not self._has_rights:
                reads, writes = ([self._prefix + topic for topic in names] for names in (_READ, _WRITTEN))
                check_rights(self._bootstrap, reads, writes)
                self._has_rights = True
        except Unavailable as error:  # a broker that is away says nothing about its topics
            return str(error) if error.code == "kafka_not_authorized" else self.last_error
        except Incompatible as error:
            return str(error)
        return str(topic_gone(self._prefix, gone)) if gone else ""
