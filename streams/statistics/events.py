"""From records of user-behaviours and impressions to changes of counters.

Here: which counters an event changes. Not here: storage (tally.py), the counters themselves (counts.py).
A bad record or update counts nowhere; the readers that own its topic write its dead letter. An event dated more than an hour after the clock of this machine
counts nowhere either: it would move the windows of every item to its own time.
"""

from collections.abc import Iterable, Mapping, Sequence

from infra.kafka.reader import SourceRecord
from schemas.decoding import decode_record, decode_updates
from schemas.errors import RejectedInput
from schemas.events import Behaviour, BehavioursRecord, ImpressionRecord
from schemas.ids import IdKind, decode_id, encode_index_key
from schemas.index.control import Init
from schemas.statistics import CLICK, HOUR_MS, Counter, Log, bucket_of
from schemas.topics import USER_BEHAVIOURS
from streams.statistics.counts import Change

_KINDS_CACHED_MAX = 4_096
Keys = tuple[bytes, bytes]  # index keys of the item and of the user
Event = tuple[Log, Keys, tuple[str, ...], int]  # log, keys, kinds (outcomes of a shown item), time in ms


def decode_events(records: Iterable[SourceRecord], init: Init, now_ms: int) -> tuple[list[Event], list[Event]]:
    """(the events of some records, those from the future, which count nowhere)."""
    kind, found = IdKind(init.id_kind), list[Event]()
    for record in records:
        if not record.skipped:
            decode = _behaviours if record.topic == USER_BEHAVIOURS else _shown
            found += decode(record, kind, init.user_partitions)
    latest_ms = now_ms + HOUR_MS
    return [event for event in found if event[3] <= latest_ms], [event for event in found if event[3] > latest_ms]


def _behaviours(record: SourceRecord, kind: IdKind, partitions: int) -> list[Event]:
    decoded = decode_updates(BehavioursRecord, Behaviour, record.value, kind, record.partition, partitions, lambda b: b.user_id)
    return [(Log.BEHAVIOURS, (encode_index_key(b.item_id), encode_index_key(b.user_id)), (b.kind,), b.time_ms) for _, b in decoded.accepted]


def _shown(record: SourceRecord, kind: IdKind, _: int) -> list[Event]:
    try:
        impression = decode_record(ImpressionRecord, record.value)
        user = encode_index_key(decode_id(impression.user_id, kind))
        keys = [encode_index_key(decode_id(shown.item_id, kind)) for shown in impression.items]
    except RejectedInput:
        return []
    found = []
    for key, shown in zip(keys, impression.items, strict=True):
        kinds = (CLICK, *shown.outcomes) if shown.clicked else tuple(shown.outcomes)
        found.append((Log.IMPRESSIONS, (key, user), kinds, impression.time_ms))
    return found


class Ways:
    """Which counters each event changes. `side`: whose they are, a place in `Keys`."""

    def __init__(self, counters: Sequence[Counter], side: int) -> None:
        self._counters, self._side = counters, side
        self._ways: dict[tuple[Log, tuple[str, ...]], list[int]] = {}

    def changes(self, events: Iterable[Event], first_buckets: Sequence[int]) -> tuple[dict[Change, int], dict[Change, int]]:
        """(how many events come where, the first or last time of the new events where a counter keeps one). Steps before `first_buckets` count nowhere."""
        counted, edges = dict[Change, int](), dict[Change, int]()
        for log, keys, kinds, time_ms in events:
            for number in self._of(log, kinds):
                counter = self._counters[number]
                change = Change(number, bucket_of(time_ms, counter.window_ms), keys[self._side])
                if counter.edge:
                    edges[change] = choose_edge(counter, edges.get(change), time_ms)
                elif change.bucket >= first_buckets[number]:
                    counted[change] = counted.get(change, 0) + 1
        return counted, edges

    def _of(self, log: Log, kinds: tuple[str, ...]) -> list[int]:
        found = self._ways.get((log, kinds))
        if found is None:
            of_log = [(n, c) for n, c in enumerate(self._counters) if c.log is log]
            found = [n for n, c in of_log if not c.kinds or not set(c.kinds).isdisjoint(kinds)]
            if len(self._ways) >= _KINDS_CACHED_MAX:
                self._ways.clear()
            self._ways[log, kinds] = found
        return found


def choose_edge(counter: Counter, held_ms: int | None, time_ms: int) -> int:
    """The earlier of two times for the first event, the later for the last."""
    if held_ms is None:
        return time_ms
    return min(held_ms, time_ms) if counter.edge == "first" else max(held_ms, time_ms)


def events_per_key(counted: Mapping[Change, int]) -> dict[bytes, int]:
    """How much happened to each item or user: its changes, for what is sent first."""
    found: dict[bytes, int] = {}
    for change, count in counted.items():
        found[change.key] = found.get(change.key, 0) + count
    return found
