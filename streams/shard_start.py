"""The start of a shard: where its data comes from, and the checks before the first record is applied (protocol A7).

    the directory, else offset 0 if the log still starts at 0, else a named refusal (a snapshot to start from comes with retention)

Here: opening, setting a damaged directory aside, the comparison with the log. Not here: versions and their encoders (streams/reconcile.py), topic ids
(the index's identity is compared by infra/control_log.py and is inside the directory).
Invariant: never a silent earliest or latest: a shard goes on exactly at its next offset, or says why not.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.clock import Clock
from infra.files import fsync_folder
from infra.kafka.admin import end_offsets, start_offsets
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.index.control import Init
from schemas.topics import SHARD_TOPICS
from streams.shard import Shard, open_shard

_LOCK_WAIT_S_MAX = 60.0
_LOCK_POLL_S = 0.1
_log = logging.getLogger("aif.streams.start")


@dataclass(frozen=True, slots=True)
class LogRange:
    """What a partition holds now: offsets from `start` to before `end`."""

    start: int
    end: int


def fetch_log_ranges(bootstrap: str, prefix: str) -> dict[str, dict[int, LogRange]]:
    """By source topic and partition."""
    ranges = {}
    for topic in SHARD_TOPICS:
        starts, ends = start_offsets(bootstrap, prefix + topic), end_offsets(bootstrap, prefix + topic)
        ranges[topic] = {p: LogRange(starts[p], ends[p]) for p in ends}
    return ranges


def start_shard(directory: Path, number: int, init: Init, clock: Clock, log: Mapping[str, LogRange]) -> Shard:
    """Opens shard `number` and checks that the log holds what it needs next. `log` is of its partition, by topic.

    Raises Incompatible (`log_gone`, `log_shorter`, `other_shard`), Unavailable (`database_locked` after a minute).
    """
    try:
        shard = _open_waiting(directory, number, init, clock)
    except Corrupted as error:
        aside = _set_aside(directory)
        _log.error("shard %d does not open (%s); its directory is now %s, it is rebuilt from the log", number, error, aside)
        shard = open_shard(directory, number, init, clock)
    try:
        for topic, next_offset in shard.next_offsets.items():
            check_log(number, topic, next_offset, log[topic])
    except BaseException:
        shard.close()
        raise
    return shard


def check_log(number: int, topic: str, next_offset: int, log: LogRange) -> None:
    """Raises Incompatible unless log start <= next offset <= log end."""
    if next_offset < log.start:
        raise Incompatible(
            "log_gone",
            f"shard {number} continues {topic} at offset {next_offset}, the log starts at {log.start}: records are gone; restore the shard's "
            "directory from a copy, or publish the catalogue again into a new index",
        )
    if next_offset > log.end:
        raise Incompatible(
            "log_shorter",
            f"shard {number} continues {topic} at offset {next_offset}, the log ends at {log.end}: it is another log, or it lost its end; "
            "use the data directory that belongs to this broker",
        )


def _open_waiting(directory: Path, number: int, init: Init, clock: Clock) -> Shard:
    """Opens, waiting for a former owner on this host that is still closing."""
    end = clock.monotonic() + _LOCK_WAIT_S_MAX
    while True:
        try:
            return open_shard(directory, number, init, clock)
        except Unavailable as error:
            if error.code != "database_locked" or clock.monotonic() > end:
                raise
        time.sleep(_LOCK_POLL_S)


def _set_aside(directory: Path) -> Path:
    """Renames a damaged directory, so that it can be looked at."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.damaged-{number}")).exists():
        number += 1
    directory.rename(aside)
    fsync_folder(directory.parent)
    return aside
