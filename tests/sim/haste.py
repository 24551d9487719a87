"""What makes a history cheap: results of pure functions that all processes of a history ask for are computed once.

Here: replacements with the same results (test_fakes.py compares them). Not here: anything that decides.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import infra.index.control_log
import infra.index.parts
import infra.index.retention
import schemas.index.control
import streams.shard_decode
import streams.shard_snapshot
import streams.versions.publication
from infra.index.control_log import ControlLog, control_path
from schemas.events import decode_updates
from schemas.index.control import ControlState, decode_entry, fold_entry
from schemas.index.manifest import decode_manifest, decode_seal
from schemas.index.snapshot import decode_snapshot
from streams.stored.plain_records import load_records

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_RECORDS_MAX = 50_000  # remembered across histories, which publish the same few updates again and again
_NOTHING_READ = ControlState()
_control_path = functools.cache(control_path)
_decode_updates = functools.lru_cache(_RECORDS_MAX)(decode_updates)


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@functools.cache
def _values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    return operator.attrgetter(*_names_of(kind))


def fast_asdict(value: Any) -> Any:
    """`dataclasses.asdict` of values that nobody changes: leaves are not copied."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return [fast_asdict(inner) for inner in value]
    if isinstance(value, Mapping):
        return {key: fast_asdict(inner) for key, inner in value.items()}
    return {name: fast_asdict(getattr(value, name)) for name in _names_of(kind)} if dataclasses.is_dataclass(kind) else value


def fast_replace(value: Any, /, **changes: Any) -> Any:
    """`dataclasses.replace` of frozen dataclasses whose every field is an argument and which check nothing."""
    kind = type(value)
    fields = dict(zip(_names_of(kind), _values_of(kind)(value), strict=True)) | changes
    if not hasattr(value, "__dict__"):
        return kind(**fields)
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def shared_fold() -> Callable[[ControlState, int, bytes], ControlState]:
    """`fold_entry` for the readers of one log: who has read the same entries gets the same state."""
    known: dict[tuple[int, bytes], tuple[ControlState, ControlState]] = {}

    def fold(state: ControlState, number: int, raw: bytes) -> ControlState:
        found = known.get((id(state), raw))
        if found is None or found[0] is not state:
            found = known[id(state), raw] = state, fold_entry(state, number, raw)
        return found[1]

    return fold


class QuickLog(ControlLog):
    """A log in the store in memory, without the error that most looks end with."""

    def _read(self, number: int) -> bytes | None:
        return self.store.files.get(_control_path(number))  # type: ignore[attr-defined, no-any-return]


def shortcuts() -> list[tuple[Any, str, object]]:
    """Replacements for one history."""
    load_records()  # a kernel that comes in the middle would be another history's
    cached_manifest, cached_seal = functools.cache(decode_manifest), functools.cache(decode_seal)
    cached_snapshot = functools.cache(decode_snapshot)
    return [
        (dataclasses, "asdict", fast_asdict),
        (dataclasses, "replace", fast_replace),
        (schemas.index.control, "decode_entry", functools.cache(decode_entry)),
        (infra.index.control_log, "ControlState", lambda: _NOTHING_READ),
        (infra.index.control_log, "fold_entry", shared_fold()),
        (infra.index.parts, "decode_manifest", cached_manifest),
        (infra.index.retention, "decode_manifest", cached_manifest),
        (infra.index.retention, "decode_seal", cached_seal),
        (infra.index.retention, "decode_snapshot", cached_snapshot),
        (streams.versions.publication, "decode_manifest", cached_manifest),
        (streams.versions.publication, "decode_seal", cached_seal),
        (streams.shard_decode, "decode_updates", _decode_updates),
        (streams.shard_snapshot, "decode_snapshot", cached_snapshot),
    ]
