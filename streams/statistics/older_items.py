"""Items whose records item-features no longer has, from the newest snapshot of their shard: a log keeps six days, and an item may be years old.

Used where a process begins without a directory, or counts other statistics than before.
"""

import logging
import shutil
from contextlib import closing
from pathlib import Path

from infra.index.store import IndexStore
from infra.rocks import open_read_only
from schemas.errors import Corrupted, Incompatible
from schemas.index.control import Init
from schemas.topics import ITEM_FEATURES
from streams.core.shard_state import encode_identity
from streams.shard.directory import ITEMS
from streams.shard.snapshot_files import list_snapshots, restore_snapshot
from streams.statistics.tally import Tally

_log = logging.getLogger("aif.streams.statistics")


def take_older_items(tally: Tally, store: IndexStore, init: Init, shard: int, log_start: int, scratch: Path) -> None:
    """Gives the counters the items of a shard; they then read its partition from the snapshot's offset on. `scratch`: a folder that is made and removed.

    Raises Incompatible (`log_gone`) where no snapshot is as new as the log, Unavailable where the store does not answer.
    """
    found, refused = list_snapshots(store, shard)
    for snapshot in (one.snapshot for one in found):
        offset = snapshot.next_offsets[ITEM_FEATURES]
        if offset < log_start or snapshot.identity != encode_identity(shard, init).decode():
            continue
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            restore_snapshot(store, snapshot, scratch)
            with closing(open_read_only(scratch)) as database:
                tally.take_items(f"{ITEM_FEATURES}/{shard}", offset, database.scan(ITEMS))
            return
        except Corrupted as error:
            _log.error("the items of %s do not read, the next snapshot is tried: %s", snapshot.directory, error)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise Incompatible(
        "log_gone",
        f"item-features/{shard} begins at {log_start}, and no snapshot of the shard in the index store is as new ({'; '.join(refused) or 'none at all'}): "
        "older items are not known. A worker that owns the shard writes one when it is due; then start this process again",
    )
