"""What makes a history cheap: results of pure functions that all processes of a history ask for are computed once.

Here: replacements with the same results (test_fakes.py compares them). Not here: anything that decides.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import infra.control_log
import schemas.index.control
from infra.control_log import ControlLog, control_path
from schemas.index.control import ControlState, VersionStatus, decode_entry, fold_entry

_PLAIN = (str, int, float, bool, bytes, type(None))
_NOTHING_READ = ControlState()
_receiving: Callable[[ControlState], tuple[VersionStatus, ...]] = vars(ControlState)["receiving"].fget
_decode_entry = functools.cache(decode_entry)
_control_path = functools.cache(control_path)


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


def fast_replace(value: Any, /, **changes: Any) -> Any:
    """`dataclasses.replace` of dataclasses whose every field is an argument."""
    kind = type(value)
    return kind(**{name: changes[name] if name in changes else getattr(value, name) for name in _names_of(kind)})


def read_entry(log: ControlLog, number: int) -> bytes | None:
    """`ControlLog._read` of a log in the store in memory, without the error that most looks end with."""
    return log.store.files.get(_control_path(number))  # type: ignore[attr-defined, no-any-return]


def shared_receiving() -> Callable[[ControlState], tuple[VersionStatus, ...]]:
    """`ControlState.receiving`, once for a state."""
    known: dict[int, tuple[ControlState, tuple[VersionStatus, ...]]] = {}

    def receiving(state: ControlState) -> tuple[VersionStatus, ...]:
        found = known.get(id(state))
        if found is None or found[0] is not state:
            found = known[id(state)] = state, _receiving(state)
        return found[1]

    return receiving


def shortcuts() -> list[tuple[Any, str, object]]:
    """Replacements for one history."""
    return [
        (dataclasses, "asdict", fast_asdict),
        (dataclasses, "replace", fast_replace),
        (schemas.index.control, "decode_entry", _decode_entry),
        (infra.control_log, "ControlState", lambda: _NOTHING_READ),
        (infra.control_log, "fold_entry", shared_fold()),
        (ControlLog, "_read", read_entry),
        (ControlState, "receiving", property(shared_receiving())),
    ]
