"""Child processes that start with everything imported: they are forked from a template, a process that has imported modules and does nothing else.

Loading torch, numba and our kernels costs a process 3 s of a core, and a worker, its builders, a server and its loader all load the same. A fork has
all of it at once, and shares the memory until it writes to it. streams/builders/template.py and lab/demo/stage.py say which modules are imported.

    fork_template     this process forks its template before it has opened anything, so what it has imported is imported once
    launch_template   another process imports the modules; for parents that have threads already, such as the demo

Forking a running process is not safe. A lock that another thread holds at the fork stays locked in the copy permanently. Libraries with threads
(librdkafka, RocksDB, the pools of torch and BLAS) lose them. It is safe here: the process that forks has exactly one thread, which is checked before every
fork (`/proc/self/task`). It has only imported, and never made a client, a database, an event loop, an engine or a random choice.
BLAS would start its threads at import, so OPENBLAS_NUM_THREADS=1 is set before the imports for a template (`import_single_threaded`).
Invariants, as in processes.py: a child has its own session, log and environment; the kernel ends it when its template ends, and the template when its
owner ends. A child is reaped only when its owner asks, so no other process gets the number of its process group before that.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from infra import failpoints
from infra.processes import Child, die_with_parent, start_child
from schemas.errors import Unavailable

_MESSAGE_BYTES_MAX = 1 << 18
_FDS_MAX = 8
_POLL_S = 0.02
_THREAD_ENDS_S_MAX = 1.0
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class Template:
    """The template process as its owner sees it. Thread-safe. Made by `fork_template` or `launch_template`."""

    def __init__(self, channel: socket.socket, reap: Callable[[], object]) -> None:
        self._channel, self._reap, self._lock = channel, reap, threading.Lock()
        self._asked = 0

    def start_child(
        self,
        name: str,
        function: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        inherited_fds: Sequence[int] = (),
    ) -> Child:
        """A child that calls `function` ("module:name") with the arguments and the numbers that `inherited_fds` have in it; it exits as a Python program does.

        `argv` becomes its sys.argv; `environment` is added to this process's. Raises Unavailable (`no_template`) if the template is gone or cannot fork.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        request = {
            "start": function,
            "arguments": list(arguments),
            "argv": list(argv) or [name],
            "log": str(log_path.absolute()),
            "folder": str(Path.cwd()),
            "environment": {**os.environ, **(environment or {})},
        }
        return Child(name, ForkedProcess(self, self._ask(request, inherited_fds)), log_path)

    def close(self) -> None:
        """Ends the template and with it its children."""
        self._channel.close()
        self._reap()

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> int:
        """Requests are numbered: Ctrl-C while one waits leaves its answer on the channel, and whoever asked next would take it for a process id of theirs."""
        try:
            with self._lock:
                self._asked += 1
                socket.send_fds(self._channel, [json.dumps({**request, "number": self._asked}).encode()], list(fds))
                answer = {"number": 0}
                while answer["number"] != self._asked:
                    answer = json.loads(self._channel.recv(_MESSAGE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise Unavailable("no_template", f"the process that children are forked from is gone: {error!r}") from error
        if "error" in answer:
            raise Unavailable("no_template", f"the process that children are forked from cannot do it: {answer['error']}")
        return int(answer["answer"])


class ForkedProcess:
    """One child of a template, with what `Child` needs of a process."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template, self.pid = template, pid
        self.returncode: int | None = None

    def has_ended(self) -> bool:
        """Whether it has ended, without reaping it."""
        if self.returncode is not None:
            return True
        try:
            return bool(self._template._ask({"ended": self.pid}))
        except Unavailable:
            return True  # it ended with its template, or was reaped

    def poll(self) -> int | None:
        """Its exit code (negative: the signal) once it has ended, which also reaps it."""
        if self.returncode is None and self.has_ended():
            try:
                self.returncode = self._template._ask({"reap": self.pid})
            except Unavailable:
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Blocks until it has ended. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code


def import_single_threaded(names: Sequence[str]) -> None:
    """Import modules for a template ("module"), and call functions that load more ("module:function"). BLAS gets no threads, and the garbage collector few
    passes, because these objects stay."""
    os.environ.setdefault(_BLAS_THREADS, "1")
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    for name in names:
        if ":" in name:
            resolve_name(name)()
        else:
            importlib.import_module(name)
    gc.set_threshold(*before)


def fork_template() -> Template | None:
    """A template that has everything this process has imported. None if this process has several threads, because then it must not be forked."""
    if not _is_single_threaded():
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # or the collector's marks would copy every page of the children
    if (pid := os.fork()) == 0:
        ours.close()
        os.setsid()  # a terminal's Ctrl-C is for its owner
        die_with_parent(owner)
        _exit(_serve(theirs))
    theirs.close()

    def end() -> None:
        os.kill(pid, signal.SIGKILL)  # a stopped one would not see that its owner has closed the socket
        os.waitpid(pid, 0)

    return Template(ours, end)


def launch_template(names: Sequence[str], log_path: Path) -> Template:
    """A template that is a process of its own and imports `names` (as `import_single_threaded`). Children asked for meanwhile wait for that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "infra.fork_server", str(theirs.fileno()), *names]
        child = start_child("template", command, log_path, inherited_fds=[theirs.fileno()])
    return Template(ours, child.kill)  # an orderly exit with everything imported takes a second


# --- in the template -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Entry point of a launched template, and of its children."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_single_threaded(sys.argv[2:])
    if os.environ.get(_BLAS_THREADS) == "1":
        del os.environ[_BLAS_THREADS]
    gc.freeze()
    _serve(channel)()


def _serve(channel: socket.socket) -> Callable[[], None]:
    """Answers its owner until the owner is gone. Returns what this process is to do next, because it may be a forked child by then."""
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES_MAX, _FDS_MAX)
        except ConnectionResetError:
            message = b""
        if not message:
            return lambda: None
        request, parent = json.loads(message), os.getpid()
        answer = _answer(request)
        if os.getpid() != parent:
            channel.close()
            return _begin_child(request, fds, parent)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):
            channel.send(json.dumps({**answer, "number": request["number"]}).encode())


def _answer(request: Mapping[str, Any]) -> dict[str, int | str]:
    """Carry out a request, and return the answer. An error is an answer too, because the end of the template would be the end of all its children.
    A forked child also returns from here."""
    try:
        if "ended" in request:
            return {"answer": os.waitid(os.P_PID, request["ended"], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None}
        if "reap" in request:
            return {"answer": os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])}
        if not _is_single_threaded():
            return {"error": f"the template has threads: {os.listdir('/proc/self/task')}"}
        return {"answer": os.fork()}
    except OSError as error:
        return {"error": str(error)}


def _begin_child(request: Mapping[str, Any], fds: Sequence[int], parent: int) -> Callable[[], None]:
    """Gives a forked child its own session, log, folder and environment. Returns the function that it is to call."""
    os.setsid()
    die_with_parent(parent)
    with Path(os.devnull).open("rb") as nothing, Path(request["log"]).open("ab") as log:
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source.fileno(), target)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    failpoints.arm()
    sys.argv = request["argv"]
    _show_command(sys.argv)
    return lambda: resolve_name(request["start"])(*request["arguments"], *fds)


def _show_command(argv: Sequence[str]) -> None:
    """Writes the child's command line, as far as it fits, over that of the template, where `ps` reads it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, size = int(fields[45]), int(fields[46]) - int(fields[45])  # arg_start and arg_end
    if begin > 0 and size > 0:
        shown = "\0".join(argv).encode()[: size - 1]
        ctypes.memmove(begin, shown.ljust(size, b"\0"), size)


def _exit(work: Callable[[], None]) -> NoReturn:
    """Does the work and ends the process, without returning into the code in which it was forked."""
    code = 0
    try:
        work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _is_single_threaded() -> bool:
    """Whether this process has one thread. Waits a moment, because a thread that was joined may still be ending."""
    end = time.monotonic() + _THREAD_ENDS_S_MAX
    while len(os.listdir("/proc/self/task")) > 1:
        if threading.active_count() > 1 or time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


if __name__ == "__main__":
    main()
