"""A child process of a bench that is asked over pipes, line by line. It ends when its standard input does."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from infra.closeable import Closeable
from schemas.errors import Unavailable

_ANSWER_S_MAX = 600.0
_END_S_MAX = 60.0


class LineChild(Closeable):
    """Use as a context manager. `errors`: the file of its standard error; None: this process's own."""

    def __init__(self, command: Sequence[str], errors: IO[str] | None = None) -> None:
        pipe, self._name = subprocess.PIPE, " ".join(command[1:3])
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, process_group=0)

    def ask(self, question: str = "", starts: str = "", within_s: float = _ANSWER_S_MAX) -> str:
        """Send a line ("": none) and return the next line that begins with `starts`.

        Raises Unavailable (`child_died`) if the child ends first. After `within_s` it is killed with all that it started.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None, "both are pipes"
        late = threading.Timer(within_s, self._kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                if question:
                    stdin.write(f"{question}\n")
                    stdin.flush()
                for line in stdout:
                    if line.startswith(starts):
                        return line
        finally:
            late.cancel()
        asked = f"the question {question!r}" if question else "its start"
        raise Unavailable(
            "child_died", f"{self._name} ended with exit code {self._process.wait()} and did not answer {asked}; read its messages"
        )

    def close(self) -> None:
        """Close its standard input and wait for its end; kill it if it does not end."""
        with self._process as process:  # closes the other pipe, and waits
            assert process.stdin is not None, "it is a pipe"
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
