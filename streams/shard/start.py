"""The start of a shard: where its data comes from, and the checks before the first record is applied (protocol A7).

    its directory; else the newest snapshot that the log can complete; else offset 0, if the log still starts there; else it refuses with a reason

    the directory ...                      then
    is of another index or shard           refused (`other_shard`, `other_index_store`): it is another's data
    does not open, or did not read (1)     set aside, the next source
    needs records that the log lost        set aside if a snapshot can start, else refused (`log_gone`)
    is ahead of the log                    refused (`log_shorter`): another log, or one that lost its end

(1) A damaged block is found when it is read: then the directory is marked, the process ends, and its next start comes here. A snapshot may have the same
block, so one that such a directory began as is not taken again.

Invariants: a shard continues exactly at its next offset, or says why it cannot and why no snapshot helped. It never takes the earliest or latest offset in
silence. A shard that was opened may be an older copy of itself, so it seals nothing before it has applied what the log held at that moment.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from infra.clock import Clock
from infra.files import fsync, write_file_durably
from infra.index.store import IndexStore
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.index.control import Init
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.topics import SHARD_TOPICS
from streams.core.shard_state import encode_identity
from streams.shard.log_ends import LogRange
from streams.shard.shard import Shard, open_shard
from streams.shard.snapshot_files import ORIGIN_NAME, FoundSnapshot, list_snapshots, restore_snapshot

_LOCK_WAIT_S_MAX = 60.0
_LOCK_POLL_S = 0.1
_DAMAGED = "damaged"  # a file in a directory: why it is not to be opened again
_OF_THE_DIRECTORY = frozenset({"database_corrupted", "bad_shard_state", "bad_shard_version", "bad_outbox_entry", "outbox_value_missing"})
_log = logging.getLogger("aif.streams.start")


def start_shard(
    directory: Path, number: int, init: Init, index_id: str, clock: Clock, log: Mapping[str, LogRange], store: IndexStore
) -> Shard:
    """Open shard `number` and check that it is of this index, and that the log holds its next records. The `log` is that of its partition, by topic. The
    `store` has its snapshots.

    Raises Incompatible (`log_gone`, `log_shorter`, `other_shard`, `other_index_store`), Unavailable (`database_locked` after a minute, or the store does
    not answer).
    """
    shard = _open_directory(directory, number, init, clock, log, store) or _restore(directory, number, init, clock, log, store)
    if shard is None:
        shard = open_shard(directory, number, init, clock)
    try:
        shard.hold_index(index_id)
        _check_logs(shard, log)
        _note_ends(shard, log)
    except BaseException as error:
        shard.close()
        mark_damaged(directory, error)
        raise
    return shard


def mark_damaged(directory: Path, error: BaseException) -> None:
    """Lets the next start do without a directory, if the error says that it is damaged."""
    if isinstance(error, Corrupted) and error.code in _OF_THE_DIRECTORY:
        with contextlib.suppress(OSError):
            write_file_durably(directory / _DAMAGED, error.message.encode())


def check_not_marked(directory: Path) -> None:
    """Raises Corrupted (`database_corrupted`) where `mark_damaged` has marked a directory: opening it does not read all that is in it."""
    if (mark := directory / _DAMAGED).exists():
        raise Corrupted("database_corrupted", mark.read_text())


def _open_directory(directory: Path, number: int, init: Init, clock: Clock, log: Mapping[str, LogRange], store: IndexStore) -> Shard | None:
    """The shard in its directory; None if there is no directory, or if it was set aside."""
    if not _has_files(directory):
        return None
    try:
        check_not_marked(directory)
        shard = _open_waiting(directory, number, init, clock)
    except Corrupted as error:
        _log.error("shard %d does not open (%s); its directory is now %s", number, error, _set_aside(directory))
        return None
    try:
        _check_logs(shard, log)
    except Incompatible as error:
        shard.close()
        if error.code != "log_gone" or not _usable_snapshots(number, init, log, store)[0]:
            raise
        _log.error("%s; its directory is now %s, it starts from a snapshot", error, _set_aside(directory))
        return None
    return shard


def _restore(directory: Path, number: int, init: Init, clock: Clock, log: Mapping[str, LogRange], store: IndexStore) -> Shard | None:
    """The shard from the newest snapshot that restores and opens. None if absent and the log still starts at 0."""
    usable, refused = _usable_snapshots(number, init, log, store)
    spoilt = {p.read_text(): p.parent for p in directory.parent.glob(f"{directory.name}.damaged-*/{ORIGIN_NAME}")}
    for found in usable:
        if (aside := spoilt.get(found.snapshot.unique)) is not None:
            refused.append(f"{found.snapshot.directory}: {aside}, which began as it, is damaged; remove that to have it tried again")
            continue
        try:
            if _has_files(directory):
                _set_aside(directory)
            shutil.rmtree(directory, ignore_errors=True)
            restore_snapshot(store, found.snapshot, directory)
            shard = open_shard(directory, number, init, clock)
        except (Corrupted, Unavailable) as error:
            if isinstance(error, Unavailable) and error.code != "missing_file":
                raise
            refused.append(f"{found.snapshot.directory}: {error}")
            _log.error("shard %d does not start from %s: %s", number, found.snapshot.directory, error)
            continue
        _log.info("shard %d starts from snapshot %s at %s", number, found.snapshot.unique, shard.next_offsets)
        return shard
    gone = {topic: r.start for topic, r in log.items() if r.start > 0}
    if gone:
        tried = "; ".join(refused) or "the index store has no snapshot of it"
        raise Incompatible(
            "log_gone",
            f"shard {number} has no directory here and the log starts at {gone}, not at 0; {tried}. Start the worker that has its directory, restore "
            "a snapshot into the index store, or publish the catalogue again into a new index",
        )
    return None


def _usable_snapshots(number: int, init: Init, log: Mapping[str, LogRange], store: IndexStore) -> tuple[list[FoundSnapshot], list[str]]:
    """Snapshots of this shard that the log completes, the one with the least to replay first; and why the others are no use."""
    found, refused = list_snapshots(store, number)
    usable = []
    for one in found:
        misfit = _find_misfit(one.snapshot, number, init, log)
        if misfit:
            refused.append(f"{one.snapshot.directory}: {misfit}")
        else:
            usable.append(one)
    return usable, refused


def _find_misfit(snapshot: ShardSnapshot, number: int, init: Init, log: Mapping[str, LogRange]) -> str:
    """Why the shard cannot start from a snapshot; empty if it can."""
    if snapshot.identity != (expected := encode_identity(number, init).decode()):
        return f"it belongs to {snapshot.identity}, expected {expected}"
    try:
        for topic in SHARD_TOPICS:
            check_log(number, topic, snapshot.next_offsets[topic], log[topic])
    except Incompatible as error:
        return error.code + ": " + error.message
    return ""


def _check_logs(shard: Shard, log: Mapping[str, LogRange]) -> None:
    for topic, next_offset in shard.next_offsets.items():
        check_log(shard.number, topic, next_offset, log[topic])


def _note_ends(shard: Shard, log: Mapping[str, LogRange]) -> None:
    """If the shard is behind the log, its versions seal only after they have caught up with it."""
    for version in shard.versions.values():
        ends = {topic: max(version.want_end_offsets.get(topic, 0), log[topic].end) for topic in SHARD_TOPICS}
        if any(shard.next_offsets[topic] < end for topic, end in ends.items()):
            shard.update_version(version.version, want_end_offsets=ends)


def check_log(number: int, topic: str, next_offset: int, log: LogRange) -> None:
    """Raises Incompatible unless log start <= next offset <= log end."""
    if next_offset < log.start:
        raise Incompatible(
            "log_gone",
            f"shard {number} continues {topic} at offset {next_offset}, the log starts at {log.start}: records are gone, and no "
            "snapshot in the index store helps; restore one, or publish the catalogue again into a new index",
        )
    if next_offset > log.end:
        raise Incompatible(
            "log_shorter",
            f"shard {number} continues {topic} at offset {next_offset}, the log ends at {log.end}: it is another log, or it lost its end; "
            "use the data directory that belongs to this broker; where the broker lost records, publish the catalogue again into a new index",
        )


def _open_waiting(directory: Path, number: int, init: Init, clock: Clock) -> Shard:
    """Opens the directory. Waits if a former owner on this host is still closing it."""
    end = clock.monotonic() + _LOCK_WAIT_S_MAX
    while True:
        try:
            return open_shard(directory, number, init, clock)
        except Unavailable as error:
            if error.code != "database_locked" or clock.monotonic() > end:
                raise
        time.sleep(_LOCK_POLL_S)


def _has_files(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _set_aside(directory: Path) -> Path:
    """Renames a damaged directory, so that it can be looked at."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.damaged-{number}")).exists():
        number += 1
    directory.rename(aside)
    fsync(directory.parent)
    return aside
