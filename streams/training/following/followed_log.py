"""Follows the five topics of training: plans a round from the topics' ends, and reads exactly up to where it ends.

Here: reading, and how far a round goes (`plan_impressions`, pure). Not here: decoding (training/event_decoder.py), learning (learner.py). A round has the
records from the end of the round before it up to, but not including, the offsets of its end.
Invariants: no offsets are committed to Kafka; the positions are stored with the weights, and a round's end before anything of it is learnt. The content of a
round depends on its offsets alone, not on how fast records arrive. So the weights are a function of the log and of a list of offset vectors. The broker may
be away for a while; reading continues when it is back.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from infra.closeable import Closeable
from infra.kafka.admin import check_topic_id
from infra.kafka.reader import SourceRecord, TopicFollower
from infra.kafka.security import Bootstrap
from schemas.errors import Unavailable
from schemas.topics import IMPRESSIONS
from streams.training.event_decoder import CONTEXT_TOPICS, TRAINING_TOPICS, EventDecoder, Offsets
from streams.training.impressions import Events
from streams.training.topic_events import as_text, fetch_ends, in_log_order, partitions_of

REQUESTS_MAX = 512  # impressions of a round, which take a second or two: a stop waits that long, and a kill loses no more
_POLL_S = 0.05
_LINGER_S = 1.0  # how long fewer impressions than a batch wait for more of them


class FollowedTopic:
    """One topic from given positions. Records that arrive are held until a round takes them."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, topic: str, positions: dict[int, int], topic_id: str = "") -> None:
        self._follower = TopicFollower(bootstrap, topic, positions, prefix=prefix, topic_id=topic_id)
        self._held: dict[int, deque[SourceRecord]] = {p: deque() for p in positions}

    def poll(self, timeout_s: float) -> None:
        """Fetches the records that are there now; waits up to `timeout_s` for the first."""
        for record in self._follower.poll(timeout_s=timeout_s):
            self._held[record.partition].append(record)

    @property
    def held(self) -> int:
        """The number of records that are held."""
        return sum(map(len, self._held.values()))

    def wait_for(self, ends: dict[int, int], stopping: Callable[[], bool]) -> bool:
        """Waits until all records before `ends` have arrived; False if `stopping` before that."""
        while not self._follower.has_reached(ends):
            if stopping():
                return False
            self.poll(_POLL_S)
        return True

    def take(self, ends: dict[int, int]) -> list[SourceRecord]:
        """The records before `ends`, in log order."""
        taken = []
        for p, end in ends.items():
            held = self._held[p]
            while held and held[0].offset < end:
                taken.append(held.popleft())
        return in_log_order(taken)

    def close(self) -> None:
        """Leave."""
        self._follower.close()


class FollowedLog(Closeable):
    """All five topics, from the offsets `begin` on; `plan` and `read` are called in turns.

    `settle` is called after each reading, before anybody stores the round's end. `lag_records` is the number of impressions beyond the round that
    was planned last. `topic_ids`: Kafka's ids of the topics in which the offsets mean something; any where they are not given. `stopping`: whether
    the process was asked to stop, so that neither method waits on. Both raise Incompatible (`other_topic`) at another topic.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        decoder: EventDecoder,
        begin: Offsets,
        settle: Callable[[], object] = lambda: None,
        topic_ids: Mapping[str, str] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._topic_ids = topic_ids or {}
        self._bootstrap, self._prefix, self._decoder, self._settle, self._stopping = bootstrap, prefix, decoder, settle, stopping
        self._ends = begin
        self.lag_records = 0
        self._topics = {
            t: FollowedTopic(bootstrap, prefix, t, partitions_of(begin, t), self._topic_ids.get(t, "")) for t in TRAINING_TOPICS
        }

    def plan(self, enough: int, stopping: Callable[[], bool] = lambda: False) -> Offsets | None:
        """The end of the next round; None if no impression arrived within a second, or the broker does not answer.

        The round depends on the topics' ends, not on what this client has fetched. The ends of the other topics are asked for after those of the
        impressions, so that whatever was published before an impression is in its round.
        """
        until = time.monotonic() + _LINGER_S
        impressions = self._topics[IMPRESSIONS]
        while impressions.held < enough and time.monotonic() < until and not stopping():
            impressions.poll(_POLL_S)
        if not impressions.held:
            return None
        try:
            ends = fetch_ends(self._bootstrap, self._prefix, (IMPRESSIONS, *CONTEXT_TOPICS))
            # The broker may have been away, and these be the ends of another cluster.
            check_topic_id(self._bootstrap, self._prefix + IMPRESSIONS, self._topic_ids.get(IMPRESSIONS, ""))
        except Unavailable:
            return None
        begins, found = partitions_of(self._ends, IMPRESSIONS), partitions_of(ends, IMPRESSIONS)
        planned = plan_impressions(begins, found, REQUESTS_MAX)
        self.lag_records = sum(found.values()) - sum(planned.values())
        return {**ends, IMPRESSIONS: as_text(planned)}

    def read(self, ends: Offsets) -> Events | None:
        """The events from where the last reading ended up to `ends`; waits until they have arrived. None if asked to stop before that."""
        if not all(self._topics[t].wait_for(partitions_of(ends, t), self._stopping) for t in TRAINING_TOPICS):
            return None
        records = {t: self._topics[t].take(partitions_of(ends, t)) for t in TRAINING_TOPICS}
        self._ends = ends
        events = self._decoder.decode_all(records)
        self._settle()
        return events

    def close(self) -> None:
        """Closes the consumers; nothing is committed."""
        for topic in self._topics.values():
            topic.close()


def plan_impressions(begins: Mapping[int, int], ends: Mapping[int, int], requests_max: int) -> dict[int, int]:
    """The end of the next round in each partition: from `begins` towards the log's `ends`, at most `requests_max` records in all.

    Every partition gets an equal share, so a backlog is learnt approximately in the order of time.
    """
    planned = dict(begins)
    left = {p: ends[p] - begins[p] for p in sorted(begins) if ends[p] > begins[p]}
    room = requests_max
    while left and room > 0:
        share = max(1, room // len(left))
        for p in sorted(left):
            step = min(share, left[p], room)
            planned[p] += step
            left[p] -= step
            room -= step
        left = {p: rest for p, rest in left.items() if rest}
    return planned
