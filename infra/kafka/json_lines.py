"""Events from a file of JSON lines, each line judged alone: `aif publish` sends the accepted ones and names the rejected ones.

Invariants: lines are counted from 1, blank ones too; a bad line, however long, is one rejection and does not reject its neighbours. Memory is bounded by
one line of RECORD_BYTES_MAX and the reasons of the first 20 rejections.

One line is one event in the form of schemas/events.py without the record's envelope:

    items       {"item_id": 1, "version": 3, "features": {...}}   or   {"op": "delete", "item_id": 1, "version": 4}
    new-items   {"item_id": 1, "embedding": [...]}
    behaviours  {"user_id": 1, "item_id": 2, "kind": "click", "time_ms": 0}
    users       {"user_id": 1, "features": {...}}
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.decoding import describe_errors
from schemas.errors import RejectedInput
from schemas.events import Behaviour, ItemFeaturesUpdate, NewItem, UserFeaturesRecord
from schemas.ids import IdKind, decode_id
from schemas.limits import RECORD_BYTES_MAX

E = TypeVar("E", bound=BaseModel)
_NAMED_MAX = 20
_AS_SECONDS = range(10**9, 10**10)  # 2001 to 2286 in seconds; in milliseconds 12 January to 26 April 1970


class JsonLines(Generic[E]):
    """Iterate once to get the accepted events of `path`. Afterwards `rejected` is a number of lines, and `reasons` names the first 20 of them.

    Ids must be of `id_kind`. `on_read(bytes)` hears of every piece that is read, for a progress bar.
    """

    def __init__(self, path: Path, event: type[E], id_kind: IdKind, on_read: Callable[[int], object] = lambda _: None) -> None:
        self._path, self._event, self._id_kind, self._on_read = path, event, id_kind, on_read
        self.rejected = 0
        self.reasons: list[str] = []

    def __iter__(self) -> Iterator[E]:
        with self._path.open("rb") as file:
            for number, line in enumerate(self._lines(file), 1):
                if len(line) <= RECORD_BYTES_MAX and not line.strip():
                    continue
                try:
                    event = self._decode(line)
                except RejectedInput as error:
                    self.rejected += 1
                    if len(self.reasons) < _NAMED_MAX:
                        self.reasons.append(f"line {number}: {error}")
                else:
                    yield event

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Each line. One that is too long is read to its end, and is given as its first RECORD_BYTES_MAX + 1 bytes."""
        while line := file.readline(RECORD_BYTES_MAX + 1):
            self._on_read(len(line))
            rest = line
            while len(line) > RECORD_BYTES_MAX and rest and not rest.endswith(b"\n"):
                rest = file.readline(RECORD_BYTES_MAX)
                self._on_read(len(rest))
            yield line

    def _decode(self, line: bytes) -> E:
        if len(line) > RECORD_BYTES_MAX:
            raise RejectedInput("line_too_long", f"more than {RECORD_BYTES_MAX} bytes")
        try:
            event = self._event.model_validate_json(line)
        except ValidationError as error:
            raise RejectedInput("bad_event", describe_errors(error)) from error
        except ValueError as error:
            raise RejectedInput("not_json", str(error)) from error
        time_ms = getattr(event, "time_ms", None)
        if time_ms is not None and time_ms in _AS_SECONDS:
            raise RejectedInput(
                "bad_event", f"time_ms {time_ms} is a day of 1970, and looks like seconds; expected milliseconds since 1970"
            )
        for name in ("item_id", "user_id"):
            if (given := getattr(event, name, None)) is not None:
                decode_id(given, self._id_kind)
        return event


def event_types() -> dict[str, type[BaseModel]]:
    """The model of one line, by the name of the command of `aif publish`."""
    return {"items": ItemFeaturesUpdate, "new-items": NewItem, "behaviours": Behaviour, "users": UserFeaturesRecord}
