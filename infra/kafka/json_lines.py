"""Events from a file of JSON lines, each line judged alone: what `aif publish` sends and what it names as rejected.

One line is one event in the form of schemas/events.py without the record's envelope:

    items       {"item_id": 1, "version": 3, "features": {...}}   or   {"op": "delete", "item_id": 1, "version": 4}
    new-items   {"item_id": 1, "embedding": [...]}
    behaviours  {"user_id": 1, "item_id": 2, "kind": "click", "time_ms": 0}
    users       {"user_id": 1, "features": {...}}
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.errors import RejectedInput
from schemas.events import Behaviour, ItemFeaturesUpdate, NewItem, UserFeaturesRecord, describe_errors
from schemas.ids import IdKind, decode_id
from schemas.limits import RECORD_BYTES_MAX

E = TypeVar("E", bound=BaseModel)
_NAMED_MAX = 20


class JsonLines(Generic[E]):
    """Iterate to get the accepted events of `path`; afterwards `accepted` and `rejected` count, `reasons` names the first 20 rejections.

    `on_line(bytes read)` is called once per line, for a progress bar.
    """

    def __init__(self, path: Path, event: type[E], id_kind: IdKind, on_line: Callable[[int], object] = lambda _: None) -> None:
        self._path, self._event, self._id_kind, self._on_line = path, event, id_kind, on_line
        self.accepted, self.rejected = 0, 0
        self.reasons: list[str] = []

    def __iter__(self) -> Iterator[E]:
        with self._path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(RECORD_BYTES_MAX + 1), b""), 1):
                self._on_line(len(line))
                if not line.strip():
                    continue
                try:
                    event = self._decode(line)
                except RejectedInput as error:
                    self.rejected += 1
                    if len(self.reasons) < _NAMED_MAX:
                        self.reasons.append(f"line {number}: {error}")
                    continue
                self.accepted += 1
                yield event

    def _decode(self, line: bytes) -> E:
        if len(line) > RECORD_BYTES_MAX:
            raise RejectedInput("line_too_long", f"more than {RECORD_BYTES_MAX} bytes")
        try:
            event = self._event.model_validate_json(line)
        except ValidationError as error:
            raise RejectedInput("bad_event", describe_errors(error)) from error
        except ValueError as error:
            raise RejectedInput("not_json", str(error)) from error
        for name in ("item_id", "user_id"):
            if (given := getattr(event, name, None)) is not None:
                decode_id(given, self._id_kind)
        return event


def event_types() -> dict[str, type[BaseModel]]:
    """What `aif publish` takes, by its name on the command line."""
    return {"items": ItemFeaturesUpdate, "new-items": NewItem, "behaviours": Behaviour, "users": UserFeaturesRecord}
