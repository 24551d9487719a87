"""What makes a history cheap: results of pure functions that all processes of a history ask for are computed once.

Here: replacements with the same results (test_fakes.py compares them). Not here: anything that decides.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import infra.control_log
import schemas.index.control
from schemas.index.control import ControlState, decode_entry, fold_entry

_PLAIN = (str, int, float, bool, bytes, type(None))
_NOTHING_READ = ControlState()
_decode_entry = functools.cache(decode_entry)


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def fast_asdict(value: Any) -> Any:
    """`dataclasses.asdict` of values that nobody changes: leaves are not copied."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {key: fast_asdict(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [fast_asdict(inner) for inner in value]
    return {name: fast_asdict(getattr(value, name)) for name in _names_of(type(value))}


def shared_fold() -> Callable[[ControlState, int, bytes], ControlState]:
    """`fold_entry` for the readers of one log: who has read the same entries gets the same state."""
    known: dict[tuple[int, bytes], tuple[ControlState, ControlState]] = {}

    def fold(state: ControlState, number: int, raw: bytes) -> ControlState:
        found = known.get((id(state), raw))
        if found is None or found[0] is not state:
            found = known[id(state), raw] = state, fold_entry(state, number, raw)
        return found[1]

    return fold


def shortcuts() -> list[tuple[Any, str, object]]:
    """Replacements for one history."""
    return [
        (dataclasses, "asdict", fast_asdict),
        (schemas.index.control, "decode_entry", _decode_entry),
        (infra.control_log, "ControlState", lambda: _NOTHING_READ),
        (infra.control_log, "fold_entry", shared_fold()),
    ]
