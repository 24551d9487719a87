"""What every peer does: says that it is ready, then answers each line "count" with the milliseconds of as many requests, as JSON."""

import json
import sys
from collections.abc import Callable


def answer_lines(request_ms: Callable[[int], float]) -> None:
    """Answer standard input until it ends. `request_ms`: sends the request of a number and returns how long it took."""
    _tell("ready")
    for line in sys.stdin:
        _tell(json.dumps([request_ms(turn) for turn in range(int(line))]))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
