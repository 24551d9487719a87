"""The errors of the project, one class for each answer to the question "who must act?".

Foreign errors (RocksDB, Kafka, HTTP) are mapped to them at one place each. A message names the failure with its value, the expectation, and the next step;
`code` is stable, lower case, and safe to match on.

    RejectedInput   the sender: a record goes to its dead-letter topic, a request is answered 4xx
    Unavailable     no one: retry after `retry_after_s`
    Incompatible    the operator: two things that are fine alone do not belong together
    Corrupted       whoever owns the data: the message says how it is rebuilt from its source
    Misconfigured   whoever started the process: it refuses to start
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class AifError(Exception):
    """Base of every error this project raises on purpose."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> Any:
        return type(self), (self.code, self.message), self.__dict__  # errors cross between processes

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class RejectedInput(AifError):
    """A record or request is wrong in itself and will be wrong again. `disposition` names the kind for the dead letter."""

    def __init__(self, code: str, message: str, disposition: str = "semantic") -> None:
        super().__init__(code, message)
        self.disposition = disposition


class Unavailable(AifError):
    """The outside world does not answer now; the same call may succeed after `retry_after_s` seconds. `receipt`: of a ranking, how it was decided."""

    def __init__(self, code: str, message: str, retry_after_s: float = 1.0, receipt: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message)
        self.retry_after_s, self.receipt = retry_after_s, receipt


class Incompatible(AifError):
    """Two things do not belong together (versions, topics, fingerprints). An operator must decide."""


class Corrupted(AifError):
    """Stored bytes differ from the written ones. The message says how to rebuild them from their source."""


class Misconfigured(AifError):
    """A process was started with settings that cannot work."""


def lack_of_memory(error: Exception) -> Unavailable | None:
    """The error of a process that gets no more memory, or no thread, from its machine; None for any other."""
    if not isinstance(error, MemoryError) and str(error) != "can't start new thread":
        return None
    told = f"this process gets no more memory or threads ({error!r})"
    return Unavailable(
        "no_memory", f"{told}; raise its limit (ulimit -v, ulimit -u, that of its container), or give the machine more memory"
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that it may be a misspelling of, as a question, or else all that are known."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(names) or 'nothing'}"
