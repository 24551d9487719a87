"""Where a server's view of users lies on disk, and opening it. A view from an earlier run continues from its offsets, so a restart takes seconds.

    <data_dir>/<hash of the view's identity>/<number>

Each server of an index on one host takes the first directory that no other process holds. A view is only a copy of the log: a directory that cannot be
opened is deleted and built again, which costs time but never an answer.
"""

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.rocks import open_database
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.ids import IdKind
from serving.users.user_store import FAMILIES, StoreBounds, UserStore

FORMAT = 3  # of the directory; another format has another folder, so a view of format 2, with events as JSON, is not read
_SERVERS_PER_HOST_MAX = 64
_log = logging.getLogger("aif.serving.users")


@dataclass(frozen=True, slots=True)
class ViewIdentity:
    """What a view shows: the users of one index, from the topics under one prefix."""

    index: str
    topic_prefix: str
    id_kind: IdKind
    partitions: int

    @property
    def folder(self) -> str:
        """Name of its folder."""
        text = json.dumps([FORMAT, self.index, self.topic_prefix, self.id_kind.value, self.partitions])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_user_store(data_dir: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    """Opens the first view that no other process holds. Raises Unavailable (`database_locked`, `disk_full`)."""
    folder = data_dir / identity.folder
    for number in range(_SERVERS_PER_HOST_MAX):
        try:
            return _open_or_remake(folder / str(number), identity, bounds)
        except Unavailable as error:
            if error.code != "database_locked":
                raise
    raise Unavailable(
        "database_locked", f"{_SERVERS_PER_HOST_MAX} servers hold views in {folder}; stop some, or give this one AIF_USERS__DATA_DIR"
    )


def _open_or_remake(path: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    try:
        return _open(path, identity, bounds)
    except (Corrupted, Incompatible) as error:
        _log.error("user store %s does not open (%s); rebuilding it from Kafka", path, error)
        shutil.rmtree(path)
        return _open(path, identity, bounds)


def _open(path: Path, identity: ViewIdentity, bounds: StoreBounds) -> UserStore:
    database = open_database(path, FAMILIES)
    try:
        return UserStore(database, identity.id_kind, identity.partitions, bounds)
    except BaseException:  # its state does not read
        database.close()
        raise
