"""The events of an imported catalogue, streamed, give the statistics that the import itself tells, also after the day on which it was made."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from infra.data.log_statistics import LogStatistic
from infra.kafka.reader import SourceRecord
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.events import BehavioursRecord, ItemFeaturesRecord, Record, encode_record
from schemas.ids import encode_index_key
from schemas.index.control import Init
from schemas.statistics import HOUR_MS, NEVER
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, USER_BEHAVIOURS, USER_FEATURES
from streams.statistics.owner import TOPICS
from streams.statistics.tally import Tally
from streams.training.histories import fold_users
from streams.training.user_statistics import CountedStatistics
from tests.infra.data.shops import START_MS, open_shop
from tests.infra.data.test_shown_statistics import MAPPING, ROWS, open_log
from tests.streams.shard_world import ManualClock

USERS = """
[users]
file = "users.csv"
id = "user"

[users.features]
country = "country"
clicks_1d = { count = "click", window = "1d" }
clicks_decayed = { count = "click", half_life = "12h" }
liking = { rate = "liked" }
last_click = { days_since = "last" }
clicked_9 = { count_days = 9 }
"""
FEATURES = """
taken_9 = { count_days = 9 }
last = { days_since = "last" }
first = { days_since = "first" }
seen_decayed = { count = "shown", half_life = "5h" }
lately = { rate = "liked", by = "maker", window = "36h" }
"""


def stream(tally: Tally, topic: str, records: Iterable[Record]) -> None:
    at = tally.next_offsets.get(f"{topic}/0", 0)
    tally.apply([SourceRecord(topic, 0, at + n, None, encode_record(record)) for n, record in enumerate(records)])


def differing(tally: Tally, catalogue: Any, time_ms: int) -> list[str]:
    """Statistics that differ in any bit from what the import tells as of a time."""
    tally.move_clock(time_ms)
    told, ids = catalogue.sources.states.state_at(time_ms), catalogue.sources.item_rows.ids
    counts = tally.items.counts
    places = [counts.place_of(encode_index_key(item)) for item in ids]
    streamed = dict(zip(counts.statistics, counts.numbers()[:, places], strict=True))
    return [name for name, number_I in streamed.items() if number_I.tobytes() != told[name].astype(np.float64).tobytes()]


def differing_users(tally: Tally, catalogue: Any) -> list[str]:
    """The same of users, as of the time of the import."""
    tally.move_clock(catalogue.sources.now_ms)
    counts, found = tally.users.counts, []
    for name, streamed_U in zip(counts.statistics, counts.numbers(), strict=True):
        ids, told = catalogue.sources.user_numbers[name]
        places = [counts.place_of(encode_index_key(user)) for user in ids]
        found += [name] if streamed_U[places].tobytes() != told.astype(np.float64).tobytes() else []
    return found


def open_with_users(folder: Path) -> MeasuredCatalogue:
    log = "user,item,at,click,liked\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)
    makers = "item,maker\n" + "".join(f"{n},m{n % 17}\n" for n in range(20))
    users = "user,country\n" + "".join(f"{n},nl\n" for n in range(0, 14, 2))
    return open_shop(folder, MAPPING.format(features=FEATURES, items="") + USERS, items=makers, log=log, users=users)


def test_statistics_of_users_are_the_same_in_the_import_the_stream_and_the_training(tmp_path: Path) -> None:
    catalogue, clock = open_with_users(tmp_path), ManualClock()
    clock.seconds = 4e9
    schema, now_ms = catalogue.schema, catalogue.sources.now_ms
    assert list(schema.user_statistics) == ["clicks_1d", "clicks_decayed", "liking", "last_click", "clicked_9"]
    tally = Tally(tmp_path / "counts", schema.kept_statistics, Init(1, 1, str(schema.id_kind), {}, {}), clock)
    tally.open_log({f"{t}/0": 0 for t in TOPICS}, {f"{IMPRESSIONS}/0": 1})
    users, behaviours, impressions = list(catalogue.users()), list(catalogue.behaviours()), list(catalogue.impressions())
    keyed = [SourceRecord(USER_FEATURES, 0, 2 * n, str(u.user_id).encode(), encode_record(u)) for n, u in enumerate(users)]  # as compacted
    tally.apply(keyed)
    stream(tally, USER_BEHAVIOURS, (BehavioursRecord(updates=[behaviour]) for behaviour in behaviours))
    stream(tally, IMPRESSIONS, impressions)
    assert differing_users(tally, catalogue) == []
    told = {u.user_id: u.features for u in users}
    assert any(f.get("clicks_1d") for f in told.values()) and any(f.get("liking") for f in told.values())
    assert told[12] == {"country": "nl"}, "a user without events"
    counted = CountedStatistics(schema.user_statistics, fold_users(users, behaviours), impressions)
    for name, (ids, number_U) in catalogue.sources.user_numbers.items():
        raw = counted.raw(ids, np.full(len(ids), now_ms))[name]
        assert [None if number == schema.user_statistics[name].nothing == NEVER else number for number in number_U.tolist()] == raw
    for time_ms in (START_MS, now_ms - 7 * HOUR_MS, now_ms - 1):  # training counts as of any time
        ids, owner = catalogue.sources.shown_log.user_ids, "user_X"
        for name in ("clicks_1d", "clicks_decayed", "liking"):
            imported = LogStatistic(schema.user_statistics[name], catalogue.sources.shown_log, len(ids), owner=owner).at(time_ms)
            assert counted.raw(ids, np.full(len(ids), time_ms))[name] == imported.tolist()
    tally.close()


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
