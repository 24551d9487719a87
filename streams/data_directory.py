"""A data directory, of a worker, the statistics or a follower, belongs to one process at a time. Its scratch folder is emptied at a start, and its heartbeat
speaks for one process."""

import logging
import os
import time
from pathlib import Path
from typing import IO

from infra.files import is_disk_full, try_lock
from schemas.errors import Misconfigured, Unavailable

_log = logging.getLogger("aif.streams.data_directory")
_LOCK_NAME = "lock"
_FORMER_S_MAX = 30.0  # a former process may still be ending
_POLL_S = 0.1


def hold_directory(folder: Path, setting: str, wait_s: float = _FORMER_S_MAX) -> IO[bytes]:
    """The open file that keeps other processes out until it is closed or its process has ended. `setting`: which names the folder, for messages. Raises
    Misconfigured (`data_dir_in_use`, `data_dir_unusable`), Unavailable (`disk_full`)."""
    file, end, told = _open_lock(folder, setting), time.monotonic() + wait_s, False
    while not try_lock(file.fileno()):
        if time.monotonic() > end:
            file.close()
            hint = f"give each process a directory of its own ({setting}), or end the other"
            raise Misconfigured("data_dir_in_use", f"another process uses {folder}, for {wait_s:g} s already; {hint}")
        if not told:
            _log.info("another process uses %s; waiting up to %g s for it to end", folder, wait_s)
            told = True
        time.sleep(_POLL_S)
    return file


def _open_lock(folder: Path, setting: str) -> IO[bytes]:
    """The open lock file of a directory that is ours to write, with every shard in it, if any. Raises as `hold_directory`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, *folder.glob("shards"), *folder.glob("shards/*/")):
            if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(f"{place} is not writable")
        return (folder / _LOCK_NAME).open("ab")
    except OSError as error:
        if is_disk_full(error):
            raise Unavailable(
                "disk_full", f"no room for a file in {folder}: {error}; free disk space, and start the process again"
            ) from error
        hint = f"mount it writable or give it to this user, or begin in another one ({setting})"
        raise Misconfigured("data_dir_unusable", f"user {os.geteuid()} cannot use {folder}: {error}; {hint}") from error


def check_holds_no_shard(folder: Path, store_url: str) -> None:
    """For a worker whose index store has no control log yet. Raises Unavailable (`index_store_gone`) if its directory has shards nevertheless.

    An index that began in the empty store would give its versions numbers that those shards have rows and seals for.
    """
    shards = sorted(path.parent.name for path in folder.glob("shards/*/CURRENT"))
    if shards:
        raise Unavailable(
            "index_store_gone",
            f"the index store {store_url} is empty, but {folder} has shards of an index ({', '.join(shards)}): mount or restore the store that was there, or "
            "begin a new index with another AIF_WORKER__DATA_DIR",
        )
