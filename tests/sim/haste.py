"""What makes a history cheap: results of pure functions that all processes of a history ask for, or all histories, are computed once.

Here: replacements with the same results (test_fakes.py compares them; a change here leaves every history as it was). Not here: anything that decides.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

import infra.index.control_log
import infra.index.parts
import infra.index.removal
import schemas.index.control
import schemas.index.control_entry
import schemas.index.manifest
import streams.builders.sealer
import streams.core.shard_state
import streams.shard.decode
import streams.shard.directory
import streams.shard.outbox
import streams.shard.shard
import streams.shard.shard_reader
import streams.shard.snapshot_files
import streams.versions.attempts
import streams.versions.publication
from infra.index.control_folds import control_path
from infra.index.control_log import ControlLog
from infra.kafka.reader import SourceRecord
from schemas.events import IndexEvent
from schemas.ids import IdKind
from schemas.index.control import ControlState, decode_entry, fold_entry
from schemas.index.layout import RowLayout, decode_layout
from schemas.index.manifest import decode_manifest, decode_seal, encode_manifest, encode_seal
from schemas.index.shard_snapshot import decode_snapshot, encode_snapshot
from streams.core.shard_state import decode_shard_state, decode_shard_version, encode_shard_state, encode_shard_version
from streams.shard.decode import DecodedRecord
from streams.shard.outbox import OutboxEntry, decode_outbox_entry, encode_outbox_entry, encode_outbox_key
from tests.sim.quick_json import QuickEncoder, QuickJson
from tests.sim.store import MemoryStore

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_RECORDS_MAX = 50_000  # remembered across histories, which publish the same few updates again and again
_ROWS_MAX = 10_000
_NOTHING_READ = ControlState()
_real_fields = dataclasses.fields
_control_path = functools.cache(control_path)
_decode_source_record = streams.shard.decode.decode_source_record


@functools.cache
def _fields_of(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return _real_fields(kind)


@functools.cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in _fields_of(kind))


@functools.cache
def _values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = _names_of(kind)
    return operator.attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def fast_asdict(value: Any) -> Any:
    """`dataclasses.asdict` of values that never change: leaves are not copied."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return [fast_asdict(inner) for inner in value]
    if hasattr(kind, "__dataclass_fields__"):
        fields = zip(_names_of(kind), _values_of(kind)(value), strict=True)
        return {name: inner if type(inner) in _PLAIN else fast_asdict(inner) for name, inner in fields}
    if isinstance(value, Mapping):
        return {key: inner if type(inner) in _PLAIN else fast_asdict(inner) for key, inner in value.items()}
    return value


def fast_replace(value: Any, /, **changes: Any) -> Any:
    """`dataclasses.replace` of frozen dataclasses whose every field is an argument and which check nothing."""
    kind = type(value)
    names, held = _names_of(kind), getattr(value, "__dict__", None)
    if held is None:
        return kind(**(dict(zip(names, _values_of(kind)(value), strict=True)) | changes))
    made = object.__new__(kind)
    fields = held | changes if len(held) == len(names) else {name: held[name] for name in names} | changes  # cached properties are not
    object.__setattr__(made, "__dict__", fields)
    return made


def fast_fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    """`dataclasses.fields`."""
    return _fields_of(value if isinstance(value, type) else type(value))


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

    def refresh(self) -> ControlState:
        if self._begun and _control_path(self._state.next_number) not in self.store.files:  # type: ignore[attr-defined]
            return self._state
        return super().refresh()

    def _read(self, number: int) -> bytes | None:
        return self.store.files.get(_control_path(number))  # type: ignore[attr-defined, no-any-return]


def read_without_threads(store: MemoryStore, paths: Sequence[str], bytes_max: int = 1 << 30) -> Iterator[bytes | None]:
    """`read_many`."""
    return (store.get(path, bytes_max) if path in store.files else None for path in paths)


# --- records --------------------------------------------------------------------------------------------------------------


def decode_known_record(record: SourceRecord, kind: IdKind, shards: int) -> DecodedRecord:
    """`decode_source_record`: what a record says is remembered by its bytes, as if it stood at offset 0."""
    if record.skipped:
        return _decode_source_record(record, kind, shards)
    known = _decode_at_0(record.topic, record.partition, record.key, record.value, kind, shards)
    updates = [msgspec.structs.replace(update, offset=record.offset) for update in known.updates]
    return DecodedRecord(record, updates, list(known.rejected))


@functools.lru_cache(_RECORDS_MAX)
def _decode_at_0(topic: str, partition: int, key: bytes | None, value: bytes | None, kind: IdKind, shards: int) -> DecodedRecord:
    return _decode_source_record(SourceRecord(topic, partition, 0, key, value, (), 0), kind, shards)


def decode_known_layout(raw: Mapping[str, Any]) -> RowLayout:
    """`decode_layout`: all versions have one."""
    for known, layout in _layouts:
        if known == raw:
            return layout
    _layouts.append((raw, decode_layout(raw)))
    return _layouts[-1][1]


_layouts: list[tuple[Mapping[str, Any], RowLayout]] = []


# --- codecs ---------------------------------------------------------------------------------------------------------------


def remembered(encode: Callable[..., bytes], decode: Callable[..., Any]) -> tuple[Callable[..., bytes], Callable[..., Any]]:
    """A codec for one history that gives readers the written value itself. Decoding would give an equal one (test_fakes.py), and no reader changes it. Bytes
    that are compared with a digest are decoded."""
    written: dict[bytes, Any] = {}
    decode = functools.cache(decode)

    def write(value: Any) -> bytes:
        raw = encode(value)
        written[raw] = value
        return raw

    def read(raw: bytes, *digest: object) -> Any:
        return decode(raw, *digest) if digest or raw not in written else written[raw]

    return write, read


def remembered_outbox() -> tuple[Callable[..., bytes], Callable[..., OutboxEntry]]:
    """The same for entries of an outbox, whose keys hold a part of them; those whose value is in another entry are decoded."""
    written: dict[tuple[bytes, bytes], OutboxEntry] = {}

    def write(entry: OutboxEntry, value_at: int | None = None) -> bytes:
        raw = encode_outbox_entry(entry, value_at)
        if value_at is None:
            written[encode_outbox_key(entry.sequence), raw] = entry
        return raw

    def read(key: bytes, raw: bytes) -> OutboxEntry:
        return written.get((key, raw)) or decode_outbox_entry(key, raw)

    return write, read


def _codecs() -> Iterator[tuple[Any, str, object]]:
    for encode, decode, writers, readers in _CODECS:
        write, read = remembered(encode, decode)
        yield from ((module, encode.__name__, write) for module in writers)
        yield from ((module, decode.__name__, read) for module in readers)
    write, read = remembered_outbox()
    yield from ((streams.shard.outbox, "encode_outbox_entry", write), (streams.shard.outbox, "decode_outbox_entry", read))


def _decoded_once() -> Iterator[tuple[Any, str, object]]:
    for _, decode, _, readers in _CODECS:
        known = functools.cache(decode)
        yield from ((module, decode.__name__, known) for module in readers)


def shortcuts(is_literal: bool) -> list[tuple[Any, str, object]]:
    """Replacements for one history. `is_literal`: codecs are left as they are."""
    return [
        *_ALWAYS,
        (infra.index.control_log, "fold_entry", shared_fold()),
        *(_decoded_once() if is_literal else _codecs()),
    ]


_CODECS: list[tuple[Callable[..., bytes], Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [  # with the writer and the reader
    (encode_shard_state, decode_shard_state, (streams.shard.shard,), (streams.shard.directory, streams.shard.shard_reader)),
    (encode_shard_version, decode_shard_version, (streams.shard.directory,), (streams.shard.directory, streams.shard.shard_reader)),
    (
        encode_manifest,
        decode_manifest,
        (streams.versions.publication,),
        (infra.index.parts, infra.index.removal, streams.versions.publication),
    ),
    (encode_seal, decode_seal, (streams.builders.sealer,), (infra.index.removal, streams.versions.publication)),
    (encode_snapshot, decode_snapshot, (), (infra.index.removal, streams.shard.snapshot_files)),
]
_ALWAYS: list[tuple[Any, str, object]] = [
    (dataclasses, "asdict", fast_asdict),
    (dataclasses, "replace", fast_replace),
    (dataclasses, "fields", fast_fields),
    (schemas.index.control, "decode_entry", functools.lru_cache(_RECORDS_MAX)(decode_entry)),
    (infra.index.control_log, "ControlState", lambda: _NOTHING_READ),
    *((module, "read_many", read_without_threads) for module in (infra.index.control_log, infra.index.removal)),
    (streams.versions.attempts, "IndexEvent", functools.lru_cache(_ROWS_MAX)(IndexEvent)),
    (schemas.index.manifest, "decode_layout", decode_known_layout),
    (streams.shard.decode, "decode_source_record", decode_known_record),
    *((module, "_JSON", QuickEncoder()) for module in (schemas.index.control_entry, schemas.index.manifest, streams.core.shard_state)),
    *((module, "json", QuickJson) for module in (schemas.index.control_entry, schemas.index.manifest, streams.core.shard_state)),
]
