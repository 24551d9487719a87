"""The events of an imported catalogue, streamed, give the statistics that the import itself tells, also after the day on which it was made."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from infra.kafka.reader import SourceRecord
from schemas.events import BehavioursRecord, ItemFeaturesRecord, Record, encode_record
from schemas.ids import encode_index_key
from schemas.index.control import Init
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, USER_BEHAVIOURS
from streams.statistics.tally import Tally
from tests.infra.data.test_shown_statistics import ROWS, open_log
from tests.streams.shard_world import ManualClock

FEATURES = """
taken_9 = { count_days = 9 }
last = { days_since = "last" }
first = { days_since = "first" }
lately = { rate = "liked", by = "maker", window = "36h" }
"""


def stream(tally: Tally, topic: str, records: Iterable[Record]) -> None:
    at = tally.next_offsets.get(f"{topic}/0", 0)
    tally.apply([SourceRecord(topic, 0, at + n, None, encode_record(record)) for n, record in enumerate(records)])


def differing(tally: Tally, catalogue: Any, time_ms: int) -> list[str]:
    """Statistics that differ in any bit from what the import tells as of a time."""
    tally.move_clock(time_ms)
    told, ids = catalogue.sources.states.state_at(time_ms), catalogue.sources.item_rows.ids
    places = [tally.counts.place_of(encode_index_key(item)) for item in ids]
    streamed = dict(zip(tally.counts.statistics, tally.counts.numbers()[:, places], strict=True))
    return [name for name, number_I in streamed.items() if number_I.tobytes() != told[name].astype(np.float64).tobytes()]


def test_streaming_what_an_import_publishes_and_the_days_after_gives_the_imports_statistics(tmp_path: Path) -> None:
    twice = [(user, item, at, 1 - click, liked) for user, item, at, click, liked in ROWS[::5]]
    catalogue = open_log(tmp_path, FEATURES, rows=[*ROWS, *twice])
    statistics, clock = catalogue.schema.statistics, ManualClock()
    clock.seconds = 4e9
    assert {"taken_9", "last", "first", "lately"} <= statistics.keys()
    tally = Tally(tmp_path / "counts", statistics, Init(1, 1, str(catalogue.schema.id_kind), {}, {}), clock)
    tally.open_log({f"{t}/0": 0 for t in (ITEM_FEATURES, USER_BEHAVIOURS, IMPRESSIONS)}, {f"{IMPRESSIONS}/0": 1})
    stream(tally, ITEM_FEATURES, (ItemFeaturesRecord(updates=[update]) for update in catalogue.items()))
    stream(tally, USER_BEHAVIOURS, (BehavioursRecord(updates=[behaviour]) for behaviour in catalogue.behaviours()))
    stream(tally, IMPRESSIONS, catalogue.impressions())
    now_ms = catalogue.sources.now_ms
    assert differing(tally, catalogue, now_ms) == []
    later = list(catalogue.shown_later())
    stream(tally, IMPRESSIONS, later)
    assert differing(tally, catalogue, max(record.time_ms for record in later) + 1) == []
    tally.close()
