"""What a local broker leaves in its data directory so that others find it: its address, its process, and a held lock.

Standard library only.
Invariant: the broker's process itself holds a lock on `broker.lock` for as long as it lives, because it inherits the open file. So "held" is never a guess
from a process id that the system may have given to another process.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from infra.files import is_disk_full, try_lock, write_file_durably
from schemas.errors import Misconfigured

RECORD_NAME = "broker.json"
LOCK_NAME = "broker.lock"
# `is_held` holds the lock for a moment to probe it; a start waits that out before it takes the directory for another broker's.
_PROBES_S_MAX = 0.5


@dataclass(frozen=True)
class BrokerRecord:
    """One start of a broker. `ready`: it has answered a metadata request and was not stopped since; after a kill, or on a full
    disk, it stays true."""

    pid: int
    port: int
    controller_port: int
    cluster_id: str
    ready: bool

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"


def read_record(data_dir: Path) -> BrokerRecord | None:
    """The last start recorded in `data_dir`, whether or not it still runs."""
    try:
        return BrokerRecord(**json.loads((data_dir / RECORD_NAME).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_record(data_dir: Path, record: BrokerRecord) -> None:
    """Replace the record of `data_dir`."""
    write_file_durably(data_dir / RECORD_NAME, json.dumps(asdict(record)).encode())


def take_lock(data_dir: Path) -> IO[bytes] | None:
    """The open, locked file of `data_dir`, or None when a broker holds it. The lock lives until every copy of the file is closed."""
    data_dir.mkdir(parents=True, exist_ok=True)
    file = (data_dir / LOCK_NAME).open("ab")
    end = time.monotonic() + _PROBES_S_MAX
    while not try_lock(file.fileno()):
        if time.monotonic() > end:
            file.close()
            return None
        time.sleep(0.01)
    return file


def is_held(data_dir: Path) -> bool:
    """Whether a broker process holds `data_dir` now."""
    try:
        descriptor = os.open(data_dir / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared probe: two of them at once do not take each other for a broker.
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def running_broker(data_dir: Path) -> BrokerRecord | None:
    """The record of the broker that holds `data_dir` and is ready; None otherwise."""
    record = read_record(data_dir)
    return record if record is not None and record.ready and is_held(data_dir) else None


def note_end(data_dir: Path, pid: int) -> None:
    """Records that the broker with this process id has ended, where the disk has room for that."""
    record = read_record(data_dir)
    if record is None or record.pid != pid:
        return
    try:
        write_record(data_dir, replace(record, ready=False))
    except OSError as error:
        if not is_disk_full(error):  # the lock says that it has ended
            raise


def recorded_address(data_dir: Path, *, running: bool = True) -> str:
    """Bootstrap servers of the local broker on `data_dir`; Misconfigured when none runs, or, if it need not be `running`, when none ever did."""
    record = running_broker(data_dir) if running else read_record(data_dir)
    if record is None:
        raise Misconfigured(
            "no_broker",
            f"no Kafka broker is named in AIF_KAFKA__BOOTSTRAP_SERVERS and none runs on {data_dir}; run `aif broker start`, or name one",
        )
    return record.bootstrap_servers
