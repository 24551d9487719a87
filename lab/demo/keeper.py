"""A demo that stays: it runs in a background process from its start, and the command ends once everything is shown.

    aif demo --keep    detach() -> the background process plays the demo at the same terminal -> keep() -> the command ends, the process stays
    aif demo stop      end_kept_demo() -> SIGTERM to that process, which stops its children and removes its directory

Standard library only, so that `detach` forks a process that has no threads. Invariant: the background process holds a lock on `demo.lock` while it lives,
so a record is never taken for a running demo.
"""

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infra.command import say
from infra.folders import user_data_dir
from schemas.errors import Incompatible

_ENDED_S_MAX = 20.0


def _folder() -> Path:
    return user_data_dir() / "demo"


def environment_file() -> Path:
    """What `. FILE` reads in a shell, so that any `aif` command works on the kept demo."""
    return _folder() / "env"


@dataclass
class Keeper:
    """The background process as it sees itself. `lock` is open as long as it lives."""

    lock: IO[bytes]
    channel: int

    def keep(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Write the record and the environment file, and let the command end. From now on what this process prints goes to DIRECTORY/demo.log."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
        lines.append(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n")
        environment_file().write_text("".join(lines))
        (_folder() / "demo.json").write_text(json.dumps({"pid": os.getpid(), "directory": str(directory)}))
        with (directory / "demo.log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, source in ((0, nothing), (1, log), (2, log)):
                os.dup2(source.fileno(), target)
        os.write(self.channel, b"k")
        os.close(self.channel)

    def forget(self) -> None:
        """Remove the record and the environment file."""
        for name in ("demo.json", environment_file().name):
            (_folder() / name).unlink(missing_ok=True)


def detach() -> Keeper:
    """Fork. Returns in the background process; the command waits for it, hands on Ctrl-C, and ends when it keeps the demo or has ended itself.

    Raises Incompatible (`demo_kept`) if a kept demo runs.
    """
    lock = _take_lock()
    if lock is None:
        raise Incompatible("demo_kept", f"a kept demo runs already; use it (`. {environment_file()}`) or end it with `aif demo stop`")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setsid()  # neither Ctrl-C nor the end of the terminal reaches it by itself
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return Keeper(lock, write)
    lock.close()
    os.close(write)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: _hand_on(pid, number))
    kept = os.read(read, 1) == b"k"
    code = 0 if kept else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)  # the background process flushes what both have buffered


def _hand_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


def end_kept_demo() -> Mapping[str, str]:
    """End the kept demo, wait for that, and return the steps taken. A demo whose background process was killed is cleared away."""
    from infra.processes import wait_until

    record = _read_record()
    lock = _take_lock()
    if lock is None:
        say("stopping ...")
        os.kill(int(record["pid"]), signal.SIGTERM)
        wait_until(_is_free, _ENDED_S_MAX, "the kept demo to end")
        return {"state": "stopped", "removed": record["directory"]}
    with lock:
        if not record:
            return {"state": "was not running"}
        shutil.rmtree(record["directory"], ignore_errors=True)
        Keeper(lock, -1).forget()
        return {"state": "was not running", "removed": record["directory"]}


def _read_record() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((_folder() / "demo.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _take_lock() -> IO[bytes] | None:
    """The open, locked file; None while a demo holds it."""
    _folder().mkdir(parents=True, exist_ok=True)
    file = (_folder() / "demo.lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_free() -> bool:
    lock = _take_lock()
    if lock is not None:
        lock.close()
    return lock is not None
