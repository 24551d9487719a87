"""Two small made-up catalogues of quite different shapes, written as files with their mappings.

`write_text_shop`: CSV, semicolons, text ids, ISO times, embedding in columns v_0.., several kinds of behaviour, one file for two sections.
`write_number_shop`: Parquet, int64 ids, list embeddings, epoch milliseconds, impressions as shown, bids, bags.
"""

import csv
import datetime as dt
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue

START = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
START_MS = int(START.timestamp() * 1_000)
DAY_MS = 86_400_000
TEXT_ITEMS, NUMBER_ITEMS = 40, 60
WIDTH, NUMBER_WIDTH = 6, 5

# A list of items, and who took what when: the shortest mapping.
PLAIN_MAPPING = """
[items]
file = "items.csv"
id = "item"
[behaviours]
file = "log.csv"
user = "user"
item = "item"
time = "at"
"""

TEXT_MAPPING = """
[schema]
sim_category = "department"

[items]
file = "goods.csv"
id = "sku"
created = "listed"

[items.features]
department = "department"
price = { column = "price", realtime = true }
tags = { column = "tags", kind = "bag" }
on_sale = "on_sale"
sold_7 = { count_days = 7 }
buyers = { count_days = 30, of = "users", realtime = true }
last_sold = { days_since = "last" }
expected = { expected_days = 7, realtime = true }
together = { taken_together = 4 }
origin = { value = "here" }

[embeddings]
prefix = "v_"
name = "picture"

[users]
file = "people.csv"
id = "login"
[users.features]
age = "age"
city = "city"

[behaviours]
file = "log.csv"
user = "login"
item = "sku"
time = "at"
kind = "what"
where = "what != 'view' and amount > 0"
[behaviours.features]
amount = "amount"

[impressions]
negatives = 3
positives_max = 2
window_days = 7

[evaluation]
from = 2024-04-05
"""

NUMBER_MAPPING = """
[schema]
bid = "bid"

[items]
file = "items.parquet"
id = "item"
[items.features]
genre = { column = "genre", kind = "categorical" }
bid = "cpc"
words = "words"

[embeddings]
column = "vector"

[impressions]
file = "requests/*.parquet"
request = "request"
user = "user"
item = "item"
time = "ts"
clicked = { column = "rating", at_least = 4 }
position = "rank"
[impressions.context]
hour = { column = "hour", kind = "categorical" }
"""


def write_text_shop(folder: Path) -> Path:
    """The CSV shop; returns the mapping file."""
    rng = np.random.default_rng(5)
    skus = [f"sku-{i:03d}/ä" for i in range(TEXT_ITEMS)]
    goods = []
    for i, sku in enumerate(skus):
        listed = START + dt.timedelta(days=int(i) if i < 36 else 36 + i)
        tags = "|".join(rng.choice(["red", "blue", "wool"], 2, replace=False))
        vector = [f"{x:.4f}" for x in rng.normal(size=WIDTH)]
        price = "" if i == 3 else f"{rng.uniform(1, 50):.2f}"
        goods.append([sku, listed.date().isoformat(), f"d{i % 4}", price, tags, "yes" if i % 2 else "no", *vector])
    header = ["sku", "listed", "department", "price", "tags", "on_sale", *(f"v_{n}" for n in range(WIDTH))]
    _write_csv(folder / "goods.csv", header, goods)
    logins = [f"user{u}@example" for u in range(25)]
    _write_csv(
        folder / "people.csv",
        ["login", "age", "city"],
        [[login, 20 + u, "" if u == 2 else f"town{u % 3}"] for u, login in enumerate(logins)],
    )
    log = []
    for _ in range(1_500):
        day = rng.uniform(0, 45)
        at = START + dt.timedelta(seconds=round(day * 86_400))
        item = int(rng.integers(0, max(1, min(36, int(day) + 1))))
        what = ["view", "buy", "add to cart"][int(rng.integers(0, 3))]
        log.append([logins[int(rng.integers(0, 25))], skus[item], at.isoformat(), what, int(rng.integers(0, 5))])
    log.append(["", skus[0], START.isoformat(), "buy", 1])
    log.append([logins[0], skus[0], "yesterday", "buy", 1])
    _write_csv(folder / "log.csv", ["login", "sku", "at", "what", "amount"], log)
    (folder / "shop.toml").write_text(TEXT_MAPPING)
    return folder / "shop.toml"


def write_number_shop(folder: Path) -> Path:
    """The Parquet shop; returns the mapping file."""
    rng = np.random.default_rng(6)
    ids = np.arange(NUMBER_ITEMS, dtype=np.int64) * 7 + 2**54
    items = {
        "item": pa.array(ids),
        "genre": pa.array((np.arange(NUMBER_ITEMS) % 5).astype(np.int32)),
        "cpc": pa.array([None if i == 4 else 0.1 * (i + 1) for i in range(NUMBER_ITEMS)]),
        "words": pa.array([[f"w{i % 7}", f"w{i % 3}"] for i in range(NUMBER_ITEMS)]),
        "vector": pa.array(
            [None if i == 9 else rng.normal(size=NUMBER_WIDTH).tolist() for i in range(NUMBER_ITEMS)], pa.list_(pa.float32())
        ),
    }
    pq.write_table(pa.table(items), folder / "items.parquet")
    (folder / "requests").mkdir()
    rows = []
    for request in range(300):
        user, ts = int(rng.integers(1, 30)), START_MS + int(rng.integers(0, 40 * DAY_MS))
        for rank, item in enumerate(rng.choice(ids, 8, replace=False).tolist()):
            rows.append((f"r{request}", user, item, ts, float(rng.integers(1, 6)), rank, ts // 3_600_000 % 24))
    names = ("request", "user", "item", "ts", "rating", "rank", "hour")
    for part in range(2):
        chosen = rows[part * 1_200 : (part + 1) * 1_200]
        pq.write_table(pa.table({n: [r[c] for r in chosen] for c, n in enumerate(names)}), folder / "requests" / f"part-{part}.parquet")
    (folder / "shop.toml").write_text(NUMBER_MAPPING)
    return folder / "shop.toml"


def _write_csv(path: Path, header: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(header)
        writer.writerows(rows)


def open_shop(folder: Path, mapping: str, **files: str) -> MeasuredCatalogue:
    """The catalogue of a mapping and of CSV files, each given by its name and text."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "shop.toml").write_text(mapping)
    return MeasuredCatalogue(read_mapping(folder / "shop.toml"), folder)


def write_items(folder: Path, mapping: str, **columns: list[object]) -> Path:
    """A CSV file items.csv with these columns, and a mapping."""
    header = list(columns)
    with (folder / "items.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*(json.loads(json.dumps(c)) for c in columns.values()), strict=True))
    (folder / "m.toml").write_text(mapping)
    return folder / "m.toml"


def open_items(folder: Path, more: str = "", **columns: list[object]) -> MeasuredCatalogue:
    """The catalogue of items.csv with these columns, one of them `id`; `more` is what the mapping says after it."""
    return MeasuredCatalogue(read_mapping(write_items(folder, f'[items]\nfile = "items.csv"\nid = "id"\n{more}', **columns)), folder)
