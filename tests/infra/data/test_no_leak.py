"""What files say of a time and later changes nothing of what is told until then: whatever is made of them, it cannot know the answer.

The law: two folders that differ only in rows from a time on give the same events until that time. It is asked of logs, of statistics, of
values over time and of shown impressions, on a time of the grid on which item features are told.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from tests.infra.data.shops import DAY_MS, START_MS, write_items, write_number_shop, write_text_shop

FROM_DAY = 21  # rows from here on differ
T_MS = START_MS + FROM_DAY * DAY_MS


def _told_until(folder: Path, mapping: Path, window_ms: int) -> list[object]:
    """Every event that is told until the time, with those of impressions whose clicks are all from before it."""
    catalogue = MeasuredCatalogue(read_mapping(mapping), folder)
    items = [(u.item_id, u.version, u.features) for u in catalogue.items() if u.version <= T_MS]
    behaviours = [b for b in catalogue.behaviours() if b.time_ms < T_MS]
    impressions = [(i.user_id, i.time_ms, i.items, i.context) for i in catalogue.impressions() if i.time_ms + window_ms <= T_MS]
    assert items and behaviours and impressions
    return [items, behaviours, impressions]


def _write_log_shop(folder: Path, future: int) -> tuple[Path, int]:
    """The CSV shop, whose log is another from the time on; evaluation and grid stay where they are."""
    mapping = write_text_shop(folder)
    mapping.write_text(mapping.read_text().replace("from = 2024-04-05", "from = 2024-03-29"))  # a week's cut meets the time
    with (folder / "log.csv").open(newline="") as file:
        header, *rows = csv.reader(file, delimiter=";")
    chance = np.random.default_rng(future)
    later = [row for row in rows if row[2] >= "2024-03-22"]
    for place, row in zip(chance.permutation(len(later)).tolist(), later, strict=True):
        row[1] = rows[place][1]
        row[4] = str(1 + place % 4)
    with (folder / "log.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([header, *rows])
    return mapping, 7 * DAY_MS


def _write_shown_shop(folder: Path, future: int) -> tuple[Path, int]:
    """The Parquet shop, whose clicks are others from the time on; also a statistic of them, and prices of later days."""
    mapping = write_number_shop(folder)
    days = [
        [item, f"2024-03-{1 + day:02d}", (item % 7 + day) * (future if day >= FROM_DAY else 1)] for item in range(60) for day in range(28)
    ]
    ids = pq.read_table(folder / "items.parquet").column("item").to_pylist()
    with (folder / "prices.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["item", "day", "price"], *([ids[item], day, price] for item, day, price in days)])
    text = mapping.read_text().replace('words = "words"', 'words = "words"\nclicked_9 = { count_days = 9 }\nlast = { days_since = "last" }')
    mapping.write_text(
        text
        + '[item_history]\nfile = "prices.csv"\nid = "item"\ntime = "day"\nknown_after_days = 1\n'
        + '[item_history.features]\nprice = "price"\n[evaluation]\nfrom = 2024-03-29\n'
    )
    chance = np.random.default_rng(future)
    for path in sorted((folder / "requests").iterdir()):
        table = pq.read_table(path)
        rating = np.where(table.column("ts").to_numpy() >= T_MS, chance.integers(1, 6, len(table)), table.column("rating").to_numpy())
        pq.write_table(table.set_column(table.column_names.index("rating"), "rating", [rating.astype(float)]), path)
    return mapping, 0


@pytest.mark.parametrize("write", [_write_log_shop, _write_shown_shop], ids=["log", "shown"])
def test_what_files_say_from_a_time_on_changes_nothing_that_is_told_until_then(
    tmp_path: Path, write: Callable[[Path, int], tuple[Path, int]]
) -> None:
    told = []
    for future in (1, 2):
        folder = tmp_path / str(future)
        folder.mkdir()
        mapping, window_ms = write(folder, future)
        told.append(_told_until(folder, mapping, window_ms))
    assert told[0] == told[1]
    assert (tmp_path / "1").is_dir() and _differ(tmp_path), "the folders do differ"


def _differ(folder: Path) -> bool:
    one, other = (sorted(p for p in (folder / name).rglob("*") if p.is_file()) for name in ("1", "2"))
    return any(a.read_bytes() != b.read_bytes() for a, b in zip(one, other, strict=True))


def test_without_times_a_row_is_no_history_of_itself(tmp_path: Path) -> None:
    """Row numbers stand for times: a click is behind the request that it answers, not before it."""
    mapping = (
        '[items]\nfile = "items.csv"\nid = "id"\n[impressions]\nfile = "shown.csv"\nuser = "user"\nitem = "item"\nrequest = "request"\n'
    )
    mapping += 'clicked = "clicked"\n[evaluation]\nhold_out = false\n'
    rows = [(f"r{n // 4}", n // 4 % 3, n % 7, int(n % 4 == 3)) for n in range(80)]
    (tmp_path / "shown.csv").write_text("request,user,item,clicked\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    catalogue = MeasuredCatalogue(read_mapping(write_items(tmp_path, mapping, id=list(range(7)))), tmp_path)
    clicks = {(b.user_id, b.item_id, b.time_ms) for b in catalogue.behaviours()}
    for record in catalogue.impressions():
        answers = {item.item_id for item in record.items if item.clicked}
        mine = sorted((time_ms, item) for user, item, time_ms in clicks if user == record.user_id and time_ms >= record.time_ms)
        assert mine[0][1] in answers, "the first click from the request on is the request's own"
