"""The number of table files is bounded, however often small batches and checkpoints come: a process has a limit of open files."""

import shutil
from pathlib import Path

from infra.processes import wait_until
from infra.rocks import open_database

_ROUNDS = 60
_FILES_PER_FAMILY_MAX = 6  # fewer than four at the first level before they are merged, and what is merged


def _count(directory: Path) -> int:
    return len(list(directory.glob("*.sst")))


def test_ascending_keys_that_are_removed_again_leave_no_table_files_of_removals(tmp_path: Path) -> None:
    """As an outbox has them. RocksDB moved such files to the last level unmerged: 60 of them."""
    with open_database(tmp_path / "d", ("outbox",)) as database:
        for sequence in range(_ROUNDS):
            for change in ("put", "delete"):
                batch = database.new_batch()
                for n in range(20):
                    key = (20 * sequence + n).to_bytes(8, "big")
                    if change == "put":
                        batch.put("outbox", key, bytes(100))
                    else:
                        batch.delete("outbox", key)
                database.write(batch)
            database.create_checkpoint(tmp_path / "c")
            assert _count(tmp_path / "c") <= 2 * 20  # of what a snapshot puts into the store; 20 is where RocksDB slows writes down
            shutil.rmtree(tmp_path / "c")
        wait_until(lambda: _count(tmp_path / "d") <= 2 * _FILES_PER_FAMILY_MAX, 10, "table files to be merged")


def test_many_small_batches_and_checkpoints_keep_few_table_files_of_rows(tmp_path: Path) -> None:
    with open_database(tmp_path / "d", ("rows",)) as database:
        for round_ in range(_ROUNDS):
            for n in range(3):
                batch = database.new_batch()
                batch.put("rows", b"%05d" % (3 * round_ + n), bytes(100))
                database.write(batch)
            database.create_checkpoint(tmp_path / "c")
            shutil.rmtree(tmp_path / "c")
        wait_until(lambda: _count(tmp_path / "d") <= 3 * _FILES_PER_FAMILY_MAX, 10, "table files to be merged")
        assert len(list(database.scan("rows"))) == 3 * _ROUNDS
