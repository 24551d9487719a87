"""Turn each record of model-checkpoints into `want v` or `reject v`, where v is its offset (protocol B3, I7).

    decode -> fetch -> every check -> copy into the index store, named by its sha256 -> want
    if anything is wrong: dead letter -> reject (with the reason) -> index event

Invariants: nothing is written before everything was checked, so a bad checkpoint never reaches a shard or a server. Each step may be repeated: the copy
is named by its content, a decided version is not decided again, a second dead letter has the same identity. Records are decided in the order of their
offsets, and reading starts after the highest decided version, so an interrupted record is never skipped.
The functions block; `handle_checkpoints` keeps them off the event loop.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from infra.clock import Clock
from infra.index.checkpoint_upload import keep_checkpoint
from infra.index.control_log import ControlLog, append_entry
from infra.index.store import IndexStore, read_if_there
from infra.kafka.reader import SourceRecord
from schemas.decoding import Rejection, decode_record
from schemas.errors import RejectedInput, Unavailable
from schemas.events import CheckpointRecord, IndexEvent
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import checkpoint_path, checkpoint_uri
from schemas.limits import CHECKPOINT_BYTES_MAX
from schemas.model.checkpoint_file import CheckpointFile, read_checkpoint_file
from streams.replay.adopted_parts import find_replayed
from streams.versions.checkpoint_files import read_allowed_file

_RETRY_S = 0.5
_REASON_CHARS_MAX = 2_000
_log = logging.getLogger("aif.streams.checkpoints")


class Decision(StrEnum):
    """The decision about a record."""

    WANTED = "wanted"
    REJECTED = "rejected"
    KNOWN = "known"  # decided before, or by another process
    INTERRUPTED = "interrupted"  # the worker stops; the next owner decides


@dataclass
class CheckpointGate:
    """What a decision needs.

    roots             folders from which checkpoints may be read
    fetch_s_max       time limit for retries of a file that cannot be read
    send_dead_letter  returns when the broker has the letter
    rejected          numbers of rejected records, by code
    dry_run           runs the network of a file and raises RejectedInput; it needs torch, so a worker has a process of its own for it
                      (streams/versions/version_side.py)
    """

    control_log: ControlLog
    store: IndexStore
    clock: Clock
    encoder_fingerprint: Callable[[], str]
    roots: Sequence[Path]
    fetch_s_max: float
    send_dead_letter: Callable[[SourceRecord, Rejection], None]
    dry_run: Callable[[bytes], None]
    announce: Callable[[IndexEvent], None] = lambda _: None
    by: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)
    rejected: dict[str, int] = field(default_factory=dict)


async def handle_checkpoints(gate: CheckpointGate, records: Sequence[SourceRecord]) -> None:
    """Decides the records of a batch sequentially, outside the event loop. While something is unavailable, it tries again until the worker stops."""
    for record in [one for one in records if not one.skipped]:
        said = ""
        while isinstance(outcome := await asyncio.to_thread(_try_checkpoint, record, gate, said), Unavailable):
            said = outcome.code
        if outcome is Decision.INTERRUPTED:
            return


def _try_checkpoint(record: SourceRecord, gate: CheckpointGate, said: str) -> Decision | Unavailable:
    """Decides one record. If the store, the broker or this machine failed, the error after a pause. `said`: the code of the last one, which was logged and
    announced."""
    try:
        return handle_checkpoint(record, gate)
    except Unavailable as error:
        if error.code != said:
            _log.warning("checkpoint record %d is not decided, retrying; later records wait: %s", record.offset, error)
            gate.announce(IndexEvent(kind="undecided", version=record.offset, reason=str(error)[:_REASON_CHARS_MAX]))
        return Decision.INTERRUPTED if gate.stopping.wait(error.retry_after_s) else error


def handle_checkpoint(record: SourceRecord, gate: CheckpointGate) -> Decision:
    """Decides one record. Raises Unavailable if store, log or broker do not answer: then nothing is decided, and the call may be repeated."""
    if record.partition != 0:  # partitions were added; an offset there is the number of another version
        wrong = (
            f"record {record.offset} of partition {record.partition}, expected partition 0, whose offsets are the versions; send it there"
        )
        gate.send_dead_letter(record, Rejection(0, "checkpoint_partition", wrong, "semantic"))
        return Decision.REJECTED
    state = gate.control_log.refresh()
    if record.offset <= state.newest_decided:
        return Decision.KNOWN
    try:
        announced = decode_record(CheckpointRecord, record.value)
        data = _fetch(announced, gate)
        if data is None:
            return Decision.INTERRUPTED
        checkpoint = check_checkpoint(data, announced, state)
        gate.dry_run(data)
    except RejectedInput as error:
        return _reject(record, error, gate)
    keep_checkpoint(gate.store, announced.sha256, data)
    return _want(record.offset, announced, checkpoint, gate)


def check_checkpoint(data: bytes, announced: CheckpointRecord, state: ControlState) -> CheckpointFile:
    """Every check except the dry run: of the content, against the announcement, against the index. Raises RejectedInput whose code names the check."""
    checkpoint = read_checkpoint_file(data, announced.sha256, announced.feature_schema)
    if checkpoint.info.model_id != announced.model_id:
        message = (
            f"the file is of model {checkpoint.info.model_id!r}, announced as {announced.model_id!r}; announce the model id of the file"
        )
        raise RejectedInput("checkpoint_model_id", message)
    id_kind = checkpoint.spec.schema.id_kind
    if state.init is not None and id_kind is not state.init.id_kind:
        message = f"the model's item ids are {id_kind}, the index has {state.init.id_kind}; train with the index's kind"
        raise RejectedInput("checkpoint_id_kind", message)
    return checkpoint


def _fetch(announced: CheckpointRecord, gate: CheckpointGate) -> bytes | None:
    """The bytes of the file; None if the worker stops meanwhile. Raises RejectedInput (`unreachable`) after `fetch_s_max`."""
    began, said = gate.clock.monotonic(), False
    while True:
        try:
            return _read(announced, gate)
        except OSError as error:
            waited_s = gate.clock.monotonic() - began
            if waited_s >= gate.fetch_s_max:
                step = "make it readable to the worker"
                if announced.uri == checkpoint_uri(announced.sha256):
                    step = "set AIF_INDEX__STORE of the publisher as it is for the worker"
                message = f"{announced.uri} could not be read for {waited_s:.1f} s: {error}; {step}, then publish it again"
                raise RejectedInput("unreachable", message) from error
            if not said:
                _log.warning(
                    "checkpoint %s cannot be read: %s; retrying for %g s, later records wait",
                    announced.uri, error, gate.fetch_s_max,
                )  # fmt: skip
            said = True
        if gate.stopping.wait(min(_RETRY_S, gate.fetch_s_max)):
            return None


def _read(announced: CheckpointRecord, gate: CheckpointGate) -> bytes:
    """The bytes of the file, from the index store where the publisher uploaded it, else from an allowed folder. Raises OSError where it is not there."""
    if announced.uri != checkpoint_uri(announced.sha256):
        return read_allowed_file(announced.uri, announced.size_bytes, gate.roots)
    data = read_if_there(gate.store, checkpoint_path(announced.sha256), CHECKPOINT_BYTES_MAX)
    if data is None:
        raise FileNotFoundError(f"it is not in the index store {gate.store.url}")
    return data


def _want(version: int, announced: CheckpointRecord, checkpoint: CheckpointFile, gate: CheckpointGate) -> Decision:
    """Writes `want v`: to build a checkpoint, or to adopt the replay that has its label."""
    adopts = announced.label is not None and find_replayed(gate.store, announced.label, announced.sha256) is not None
    entry = Entry(
        EntryKind.WANT,
        gate.clock.now_ms(),
        gate.by,
        version,
        cause=Cause.ADOPT if adopts else Cause.CHECKPOINT,
        checkpoint_sha256=announced.sha256,
        model_id=announced.model_id,
        feature_schema=checkpoint.info.schema_fingerprint,
        encoder_fingerprint=gate.encoder_fingerprint(),
        label=announced.label or "",
    )
    return _decide(entry, gate, Decision.WANTED)


def _reject(record: SourceRecord, error: RejectedInput, gate: CheckpointGate) -> Decision:
    gate.send_dead_letter(record, Rejection(0, error.code, error.message, error.disposition))
    reason = f"{error.code}: {error.message}"[:_REASON_CHARS_MAX]
    decision = _decide(Entry(EntryKind.REJECT, gate.clock.now_ms(), gate.by, record.offset, reason=reason), gate, Decision.REJECTED)
    if decision is Decision.REJECTED:
        gate.rejected[error.code] = gate.rejected.get(error.code, 0) + 1
    return decision


def _decide(entry: Entry, gate: CheckpointGate, decision: Decision) -> Decision:
    """Writes the entry, unless the newest log has decided the version already."""
    if append_entry(gate.control_log, lambda state: entry if entry.version > state.newest_decided else None) is None:
        return Decision.KNOWN
    gate.announce(IndexEvent(kind=str(decision), version=entry.version, reason=entry.reason or entry.label))
    return decision
