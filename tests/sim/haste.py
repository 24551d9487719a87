"""What makes a history cheap: results of pure functions that all processes of a history ask for, or all histories, are computed once.

Here: replacements with the same results (test_fakes.py compares them; a change here leaves every history as it was). Not here: anything that decides.
"""

import dataclasses
import functools
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import infra.index.control_log
import infra.index.parts
import infra.index.retention
import infra.journaled_rocks
import schemas.index.control
import schemas.index.control_entry
import schemas.index.manifest
import streams.builders.sealer
import streams.core.shard_state
import streams.shard.decode
import streams.shard.fold
import streams.shard.outbox
import streams.shard.reader
import streams.shard.rows
import streams.shard.shard
import streams.shard.snapshot
import streams.stored.upserts
import streams.versions.attempts
import streams.versions.publication
from infra.index.control_folds import control_path
from infra.index.control_log import ControlLog
from infra.joined import Joined, join_stored
from infra.journaled_rocks import _COUNTS, JournaledDatabase, Rows, decode_journal_entry
from infra.kafka.reader import SourceRecord
from schemas.events import IndexEvent, decode_updates
from schemas.ids import IdKind
from schemas.index.control import ControlState, decode_entry, fold_entry
from schemas.index.layout import RowLayout, decode_layout
from schemas.index.manifest import decode_manifest, decode_seal, encode_manifest, encode_seal
from schemas.index.snapshot import decode_snapshot, encode_snapshot
from schemas.topics import ITEM_FEATURES
from streams.core.item_state import FeaturesUpdate
from streams.core.shard_state import decode_shard_state, decode_shard_version, encode_shard_state, encode_shard_version
from streams.shard.outbox import OutboxEntry, decode_outbox_entry, encode_outbox_entry, encode_outbox_key
from streams.stored.plain_records import load_records
from tests.sim.plain_rows import PlainHeldRows, PlainRows, join_plain_runs, pack_plain_changes, prefix_plain
from tests.sim.quick_json import QuickEncoder, QuickJson

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_RECORDS_MAX = 50_000  # remembered across histories, which publish the same few updates again and again
_ROWS_MAX = 10_000
_NOTHING_READ = ControlState()
_real_fields = dataclasses.fields
_control_path = functools.cache(control_path)
_find_unsettled = JournaledDatabase._unsettled_rows
_decode_plain_records, _narrow = streams.shard.decode._decode_plain_records, streams.shard.decode._to_float32


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
    """`dataclasses.asdict` of values that nobody changes: leaves are not copied."""
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
    fields = held | changes if len(held) == len(names) else {name: held[name] for name in names} | changes  # what was computed of it is not
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

    def _read_many(self, numbers: Iterable[int]) -> Iterable[bytes | None]:
        return map(self._read, numbers)


# --- records and rows -----------------------------------------------------------------------------------------------------


@functools.lru_cache(_RECORDS_MAX)
def _decode_plain_record(value: bytes, partition: int, kind: IdKind, shards: int) -> tuple[Any, ...] | None:
    """What it says, as if it stood at offset 0."""
    (found,) = _decode_plain_records([SourceRecord(ITEM_FEATURES, partition, 0, b"", value, (), 0)], kind, shards)
    return None if found is None else tuple(found)


def _move_to(offset: int, updates: Sequence[Any]) -> list[FeaturesUpdate]:
    return [FeaturesUpdate(u.key, u.version, offset, u.index, u.dead, u.raw) for u in updates]


def decode_each_record(records: Sequence[SourceRecord], kind: IdKind, shards: int) -> Sequence[Sequence[Any] | None]:
    """`_decode_plain_records` of streams/shard/decode.py, record by record."""
    read = [_decode_plain_record(r.value or b"", r.partition, kind, shards) for r in records]
    return [None if one is None else _move_to(r.offset, one) for r, one in zip(records, read, strict=True)]


def _to_float32(embeddings: Sequence[Sequence[float]]) -> list[bytes | None]:
    return list(_to_known_float32(tuple(map(tuple, embeddings))))


@functools.lru_cache(_RECORDS_MAX)
def _to_known_float32(embeddings: tuple[tuple[float, ...], ...]) -> tuple[bytes | None, ...]:
    return tuple(_narrow(embeddings))


def encode_plain_journal_entry(rows: Mapping[str, Rows]) -> bytes:
    """`encode_journal_entry` of a few rows, without arrays."""
    parts: list[bytes] = []
    for family, (keys, values) in rows.items():
        name, keys_R, values_R = family.encode(), keys.present(), values.present()
        ends = (*accumulate(map(len, keys_R)), *accumulate(map(len, values_R)))
        parts += [_COUNTS.pack(len(name), len(keys_R)), name, struct.pack(f"<{len(ends)}I", *ends), *keys_R, *values_R]
    return b"".join(parts)


def _unsettled_rows(database: JournaledDatabase, family: str) -> list[tuple[bytes, bytes]]:
    return _find_unsettled(database, family) if database._entries else []


def decode_known_layout(raw: Mapping[str, Any]) -> RowLayout:
    """`decode_layout`: all versions have one."""
    for known, layout in _layouts:
        if known == raw:
            return layout
    _layouts.append((raw, decode_layout(raw)))
    return _layouts[-1][1]


@functools.lru_cache(_ROWS_MAX)
def _join_known(values: tuple[bytes, ...]) -> Joined:
    return join_stored(values)


def join_known(values: Sequence[bytes]) -> Joined:
    """`join_stored`; nobody writes into what it gives."""
    return _join_known(tuple(values))


_layouts: list[tuple[Mapping[str, Any], RowLayout]] = []


# --- codecs ---------------------------------------------------------------------------------------------------------------


def remembered(encode: Callable[..., bytes], decode: Callable[..., Any]) -> tuple[Callable[..., bytes], Callable[..., Any]]:
    """A codec for one history, in which what was written is given to its readers as it is: they get what decoding it would give (test_fakes.py), and
    nobody changes it. What is compared with a digest is decoded."""
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
    write, read = remembered(encode_plain_journal_entry, decode_journal_entry)
    yield from ((infra.journaled_rocks, "encode_journal_entry", write), (infra.journaled_rocks, "decode_journal_entry", read))
    write, read = remembered_outbox()
    yield from ((streams.shard.outbox, "encode_outbox_entry", write), (streams.shard.outbox, "decode_outbox_entry", read))


def _decoded_once() -> Iterator[tuple[Any, str, object]]:
    for _, decode, _, readers in _CODECS:
        known = functools.cache(decode)
        yield from ((module, decode.__name__, known) for module in readers)


def shortcuts(is_literal: bool) -> list[tuple[Any, str, object]]:
    """Replacements for one history. `is_literal`: rows, journal and codecs are left as they are, compiled passes over a batch as well."""
    load_records()  # a kernel that comes in the middle would be another history's
    return [
        *_ALWAYS,
        (infra.index.control_log, "fold_entry", shared_fold()),
        *(_decoded_once() if is_literal else (*_PLAIN_ROWS, *_codecs())),
    ]


_CODECS: list[tuple[Callable[..., bytes], Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [  # with who writes and who reads
    (encode_shard_state, decode_shard_state, (streams.shard.shard,), (streams.shard.shard, streams.shard.reader)),
    (encode_shard_version, decode_shard_version, (streams.shard.shard,), (streams.shard.shard, streams.shard.reader)),
    (
        encode_manifest,
        decode_manifest,
        (streams.versions.publication,),
        (infra.index.parts, infra.index.retention, streams.versions.publication),
    ),
    (encode_seal, decode_seal, (streams.builders.sealer,), (infra.index.retention, streams.versions.publication)),
    (encode_snapshot, decode_snapshot, (), (infra.index.retention, streams.shard.snapshot)),
]
_PLAIN_ROWS: list[tuple[Any, str, object]] = [
    (streams.shard.decode, "_decode_plain_records", decode_each_record),
    (infra.journaled_rocks, "HeldRows", PlainHeldRows),
    (infra.journaled_rocks, "join_some", PlainRows),
    *(
        (module, "join_stored", PlainRows)
        for module in (infra.journaled_rocks, streams.shard.shard, streams.shard.rows, streams.shard.fold)
    ),
    *((module, "join_runs", join_plain_runs) for module in (infra.journaled_rocks, streams.shard.rows)),
    (streams.shard.shard, "prefix_each", prefix_plain),
    (streams.shard.shard, "pack_changes", pack_plain_changes),
]
_ALWAYS: list[tuple[Any, str, object]] = [
    (dataclasses, "asdict", fast_asdict),
    (dataclasses, "replace", fast_replace),
    (dataclasses, "fields", fast_fields),
    (schemas.index.control, "decode_entry", functools.lru_cache(_RECORDS_MAX)(decode_entry)),
    (infra.index.control_log, "ControlState", lambda: _NOTHING_READ),
    (streams.versions.attempts, "IndexEvent", functools.lru_cache(_ROWS_MAX)(IndexEvent)),
    (JournaledDatabase, "_unsettled_rows", _unsettled_rows),
    (schemas.index.manifest, "decode_layout", decode_known_layout),
    (streams.shard.decode, "decode_updates", functools.lru_cache(_RECORDS_MAX)(decode_updates)),
    (streams.shard.decode, "_to_float32", _to_float32),
    *((module, "_JSON", QuickEncoder()) for module in (schemas.index.control_entry, schemas.index.manifest, streams.core.shard_state)),
    *((module, "json", QuickJson) for module in (schemas.index.control_entry, schemas.index.manifest, streams.core.shard_state)),
    *(
        (module, "join_stored", join_known)
        for module in (infra.journaled_rocks, streams.shard.shard, streams.shard.rows, streams.shard.fold, streams.stored.upserts)
    ),
]
