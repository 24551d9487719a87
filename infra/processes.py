"""Child processes that do not outlive us, and waiting for a condition instead of sleeping.

Invariants: a child started with `dies_with_parent` is killed by the kernel when this process ends, however it ends. For the kernel the parent is the
*thread* that forked, so one thread forks every child and lives as long as the process.
"""

import contextlib
import ctypes
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from schemas.errors import Misconfigured, Unavailable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_POLL_S = 0.02
_LOG_TAIL_BYTES = 4096
FILES_MIN = 4_096
FILES_NEEDED = 256  # twice the files that a server or worker of four shards has open
# Below the kernel's range for outgoing connections, so that no client's socket takes a port after it was chosen here.
_PORTS = range(15_000, 32_000)
_RAISE_FILES = f"raise the hard limit: `ulimit -Hn {FILES_MIN}` as root, or LimitNOFILE={FILES_MIN} in a systemd unit"
_log = logging.getLogger("aif.processes")


class Process(Protocol):
    """What `Child` needs of a process, which is a program (below) or forked (fork_server.py). `returncode` is None until it is reaped."""

    pid: int
    returncode: int | None

    def has_ended(self) -> bool:
        """Whether it has ended, without reaping it."""

    def wait(self, timeout: float | None = None) -> int: ...


class _Executed(subprocess.Popen[bytes]):
    """A program that this process started."""

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _ForkingThread:
    """The one thread that forks. A forked copy of this process does not have it and makes its own."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fork")

    def run(self, fork: Callable[[], _Executed]) -> _Executed:
        return self._executor.submit(fork).result()


_FORKING_THREAD = _ForkingThread()


@dataclass
class Child:
    """A running child. `name` is for messages; `log_path` has its standard output and error."""

    name: str
    process: Process
    log_path: Path

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether it still runs. Does not reap it, so that its group id cannot be given to another process before `kill`."""
        return self.process.returncode is None and not self.process.has_ended()

    def log_tail(self) -> str:
        """The last lines of its log, for an error message."""
        return log_tail(self.log_path)

    def check(self) -> None:
        """Raises Unavailable (`child_died`) with the end of its log if it has ended; its remaining group is killed."""
        if not self.alive():
            self.kill()
            code = self.process.returncode
            raise Unavailable("child_died", f"{self.name} ended with exit code {code}; log {self.log_path}:\n{self.log_tail()}")

    def kill(self) -> None:
        """Sends SIGKILL to its whole group, also if it has ended itself and left children; then reaps it."""
        if self.process.returncode is None:
            _signal_group(self.pid, signal.SIGKILL)
        self.process.wait()


def start_child(
    name: str,
    command: Sequence[str],
    log_path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    dies_with_parent: bool = True,
    inherited_fds: Sequence[int] = (),
    shares_session: bool = False,
) -> Child:
    """Start `command` in its own process group, standard input closed, output appended to `log_path`.

    `shares_session`: the child is in our session and not in one of its own. Linux gives each session its share of the cores (autogroup). A priority counts
    only within a session, so a child that is to give way to us has to be in ours.

    `environment` is added to this process's, which is passed on without PYTHONDONTWRITEBYTECODE: container images set it, and every child would
    spend seconds on compiling all that it imports. A terminal's Ctrl-C does not reach the child; who started it stops it.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    parent_pid = os.getpid()

    def fork() -> _Executed:
        with log_path.open("ab") as log:
            return _Executed(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_inherited(), **(environment or {})},
                start_new_session=not shares_session,
                process_group=0 if shares_session else None,
                pass_fds=tuple(inherited_fds),
                preexec_fn=(lambda: die_with_parent(parent_pid)) if dies_with_parent else None,  # one system call, by a thread of its own
            )

    return Child(name, _FORKING_THREAD.run(fork), log_path)


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def die_with_parent(parent_pid: int) -> None:
    """Called in the child right after the fork: asks the kernel for SIGKILL when the thread that forked it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent ended before the request was made
        os._exit(1)


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str, poll_s: float = _POLL_S) -> None:
    """Return when `condition()` is true; Unavailable("timed_out") names `what` after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise Unavailable(
                "timed_out", f"timed out after {deadline_s:g} s waiting for {what}; look at the log of the process it depends on"
            )
        time.sleep(poll_s)


def wait_ready(child: Child, ready: Callable[[], bool], deadline_s: float) -> None:
    """Wait until `ready()`; Unavailable with the end of the child's log when it dies first or the deadline passes."""
    end = time.monotonic() + deadline_s
    while not ready():
        child.check()
        if time.monotonic() > end:
            raise Unavailable(
                "child_not_ready", f"{child.name} was not ready after {deadline_s:g} s; log {child.log_path}:\n{child.log_tail()}"
            )
        time.sleep(_POLL_S)


def stop_signals() -> tuple[signal.Signals, ...]:
    """What ends a process in order: TERM, Ctrl-C, and the end of its terminal, unless it was started to outlive that (nohup)."""
    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if ends_with_terminal else []))


def leave_in_order() -> None:
    """From now on TERM, and the end of the terminal, end this process as Ctrl-C does: through every `finally`. For the main thread; an existing handler
    stays."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and warn if it is below FILES_MIN. Returns the limit. For a long-lived process: RocksDB keeps its
    table files open, and each connection is one. Raises Misconfigured (`open_files_limit`) below FILES_NEEDED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # as where a hard limit is "unlimited" and the kernel's is not
            _log.warning("open_files_limit: the limit of open files stays at %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < FILES_NEEDED:
        raise Misconfigured("open_files_limit", f"at most {soft} files may be open, and this process needs {FILES_NEEDED}; {_RAISE_FILES}")
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        _log.warning("open_files_limit: at most %d files may be open, expected at least %d; %s", soft, FILES_MIN, _RAISE_FILES)
    return soft


def stop_all(children: Sequence[Child], grace_s: float = 10.0) -> None:
    """Sends SIGTERM to the group of every child, waits at most `grace_s` for all of them, then sends SIGKILL to the rest of the groups."""
    for child in children:
        if child.alive():
            _signal_group(child.pid, signal.SIGTERM)
    end = time.monotonic() + grace_s
    while any(child.alive() for child in children) and time.monotonic() < end:
        time.sleep(_POLL_S)
    for child in children:
        child.kill()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            os.kill(
                leader, number
            )  # a forked child leads its group only a moment later; no other process has its number before it is reaped


def log_tail(path: Path) -> str:
    """The last 4 KiB of a log as text; empty if absent."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def free_ports(count: int) -> list[int]:
    """`count` different loopback TCP ports that no process listens on now."""
    chosen: list[int] = []
    with contextlib.ExitStack() as open_sockets:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(chosen) == count:
                break
            listener = open_sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                chosen.append(port)
    return chosen


def port_is_free(port: int) -> bool:
    """Whether a loopback listener can be opened on `port` now (a port in TIME_WAIT counts as free)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
