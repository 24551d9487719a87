"""The floor of increments: what RocksDB alone takes for the reads and writes of one packed price change, row by row.

Here: `measure_floor`. Not here: the bench that prints it beside the worker (nearline.py). An update reads the item and its row, and writes both; 1,792 of
them, seven records of 256, are one batch. Nothing is decoded, compared, encoded or sent.
"""

import random
import time
from pathlib import Path

from infra.rocks import Database, open_database
from schemas.limits import UPDATES_PER_RECORD_MAX, WRITE_BATCH_UPDATES_MAX

_ITEMS, _INCREMENTS = "items", "increments"
_BATCH_UPDATES = WRITE_BATCH_UPDATES_MAX // UPDATES_PER_RECORD_MAX * UPDATES_PER_RECORD_MAX
_BATCHES = 12
_ROUNDS = 3


def measure_floor(directory: Path, items: int, item_bytes: int, row_bytes: int) -> float:
    """Updates per second of processor time, the best of some rounds, of `items` items with values of these sizes."""
    chance, best = random.Random(0), 0.0
    keys = [item.to_bytes(8, "big") for item in range(items)]
    with open_database(directory, (_ITEMS, _INCREMENTS)) as database:
        for at in range(0, items, _BATCH_UPDATES):
            some = keys[at : at + _BATCH_UPDATES]
            _write(database, some, {_ITEMS: item_bytes, _INCREMENTS: row_bytes}, chance)
        for _ in range(_ROUNDS):
            runs = [chance.sample(keys, min(items, _BATCH_UPDATES)) for _ in range(_BATCHES)]
            began = time.process_time()
            for run in runs:
                for family in (_ITEMS, _INCREMENTS):
                    database.multi_get(family, run)
                _write(database, run, {_ITEMS: item_bytes, _INCREMENTS: row_bytes}, chance)
            best = max(best, sum(map(len, runs)) / (time.process_time() - began))
    return best


def _write(database: Database, keys: list[bytes], value_bytes: dict[str, int], chance: random.Random) -> None:
    batch = database.new_batch()
    for family, size in value_bytes.items():
        whole = chance.randbytes(2 * size)
        for place, key in enumerate(keys):
            batch.put(family, key, whole[place % size : place % size + size])
    database.write(batch)
