"""A checkpoint record becomes want or reject, once, after every check, and a bad one changes nothing else."""

import asyncio
import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.index.checkpoint_upload import upload_checkpoint
from infra.index.control_log import ControlLog
from infra.kafka.reader import SourceRecord
from schemas.decoding import Rejection
from schemas.errors import RejectedInput, Unavailable
from schemas.events import IndexEvent, encode_record
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import checkpoint_path, checkpoint_uri
from schemas.model.checkpoint import read_checkpoint
from schemas.topics import MODEL_CHECKPOINTS
from streams.versions.checkpoints import CheckpointGate, Decision, handle_checkpoint, handle_checkpoints
from tests.streams.version_world import SCHEMA, World, checkpoint_bytes

GOOD = checkpoint_bytes(0)


class Gate(CheckpointGate):
    """A gate over a world, whose unreachable files are given up after two looks."""

    def __init__(self, world: World, fetch_s_max: float = 0.0) -> None:
        self.letters: list[tuple[int, Rejection]] = []
        self.events: list[IndexEvent] = []
        self.allowed = world.folder / "allowed"
        self.allowed.mkdir(exist_ok=True)
        super().__init__(
            ControlLog(world.store),
            world.store,
            world.clock,
            lambda: "encoder",
            (self.allowed,),
            fetch_s_max,
            lambda record, rejection: self.letters.append((record.offset, rejection)),
            read_checkpoint,
            self.events.append,
        )


@pytest.fixture
def gate(world: World) -> Gate:
    return Gate(world)


def test_a_record_in_a_partition_that_somebody_added_is_no_version_and_takes_the_number_of_none(gate: Gate) -> None:
    other = dataclasses.replace(announce(gate, 5), partition=1)
    assert handle_checkpoint(other, gate) is Decision.REJECTED
    assert [(offset, rejection.code) for offset, rejection in gate.letters] == [(5, "checkpoint_partition")]
    assert gate.control_log.refresh().newest_decided == -1
    assert handle_checkpoint(announce(gate, 3), gate) is Decision.WANTED


def announce(gate: Gate, offset: int, data: bytes = GOOD, **changes: Any) -> SourceRecord:
    """A record for `data`, written into the allowed folder; fields may be lied about."""
    path = gate.allowed / f"{offset}.safetensors"
    path.write_bytes(data)
    fields = {
        "schema": 1,
        "uri": str(path),
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "model_id": "model-0",
        "feature_schema": SCHEMA.fingerprint,
        "label": None,
    }
    return SourceRecord(MODEL_CHECKPOINTS, 0, offset, b"model-0", json.dumps(fields | changes).encode())


def test_a_good_checkpoint_is_copied_under_its_sha256_and_wanted(world: World, gate: Gate) -> None:
    record = announce(gate, 3, label="monday")
    assert handle_checkpoint(record, gate) is Decision.WANTED
    status = ControlLog(world.store).refresh().versions[3]
    assert (status.state, status.label, status.encoder_fingerprint, status.wanted_revision) == (State.WANTED, "monday", "encoder", 0)
    assert world.store.get(checkpoint_path(status.checkpoint_sha256)) == GOOD
    assert [e.kind for e in gate.events] == ["wanted"] and not gate.letters


@pytest.mark.parametrize("damaged", [GOOD[:-1] + bytes([GOOD[-1] ^ 1]), GOOD[:-9], GOOD + b"x"])
def test_a_damaged_copy_is_replaced_by_the_same_checkpoint_published_again(world: World, gate: Gate, damaged: bytes) -> None:
    path = checkpoint_path(hashlib.sha256(GOOD).hexdigest())
    world.store.put_bytes(path, damaged)
    assert handle_checkpoint(announce(gate, 3), gate) is Decision.WANTED
    assert world.store.get(path) == GOOD


def test_an_uploaded_checkpoint_is_read_from_the_store_alone(world: World, gate: Gate) -> None:
    sha256 = hashlib.sha256(GOOD).hexdigest()
    record = announce(gate, 3, uri=checkpoint_uri(sha256))
    (gate.allowed / "3.safetensors").unlink()
    gate.fetch_s_max = 0.0
    assert handle_checkpoint(record, gate) is Decision.REJECTED
    assert gate.letters[0][1].code == "unreachable" and "AIF_INDEX__STORE" in gate.letters[0][1].reason
    (path := world.folder / "anywhere.safetensors").write_bytes(GOOD)
    uploaded = upload_checkpoint(world.store, path, "monday")
    assert handle_checkpoint(SourceRecord(MODEL_CHECKPOINTS, 0, 4, None, encode_record(uploaded)), gate) is Decision.WANTED
    assert world.store.get(checkpoint_path(sha256)) == GOOD


def test_an_upload_repairs_a_damaged_copy_and_refuses_a_damaged_file(world: World, tmp_path: Path) -> None:
    copy = checkpoint_path(hashlib.sha256(GOOD).hexdigest())
    world.store.put_bytes(copy, GOOD[:-9])
    (path := tmp_path / "m.safetensors").write_bytes(GOOD)
    upload_checkpoint(world.store, path)
    assert world.store.get(copy) == GOOD
    path.write_bytes(with_nan(GOOD))
    with pytest.raises(RejectedInput, match="checkpoint_not_finite"):
        upload_checkpoint(world.store, path)
    assert world.store.list("checkpoints/") == [copy]


def test_a_file_uri_is_decoded_once(gate: Gate) -> None:
    record = announce(gate, 3)
    path = gate.allowed / "with space.safetensors"
    path.write_bytes(GOOD)
    uri = path.as_uri()
    assert "%20" in uri
    assert handle_checkpoint(announce(gate, 4, uri=uri), gate) is Decision.WANTED
    assert handle_checkpoint(announce(gate, 5, uri=uri.replace("%20", "%2520")), gate) is Decision.REJECTED
    assert gate.letters[0][1].code == "unreachable"
    assert handle_checkpoint(record, gate) is Decision.KNOWN  # 3 < 5


def test_repeats_change_nothing(world: World, gate: Gate) -> None:
    good, bad = announce(gate, 3), SourceRecord(MODEL_CHECKPOINTS, 0, 4, None, b"{")
    first = [handle_checkpoint(r, gate) for r in (good, bad)]
    before = world.store.list()
    again = Gate(world)
    assert [handle_checkpoint(r, again) for r in (good, bad)] == [Decision.KNOWN, Decision.KNOWN]
    assert first == [Decision.WANTED, Decision.REJECTED] and world.store.list() == before and not again.letters


def with_nan(data: bytes) -> bytes:
    """The same file with the last number of its last tensor not a number."""
    return data[:-4] + struct.pack("<f", float("nan"))


def other_shape(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = next(n for n in header if n != "__metadata__" and len(header[n]["shape"]) == 2 and len(set(header[n]["shape"])) == 2)
    header[name]["shape"] = header[name]["shape"][::-1]
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data[8 + length :]


BAD: dict[str, tuple[Callable[[bytes], bytes], dict[str, Any], str]] = {
    "not a number": (with_nan, {}, "checkpoint_not_finite"),
    "a wrong sha256": (lambda d: d, {"sha256": "0" * 64}, "checkpoint_sha256"),
    "a wrong shape": (other_shape, {}, "checkpoint_shape"),
    "truncated": (lambda d: d[: len(d) // 2], {}, "checkpoint_unreadable"),
    "a flipped byte": (lambda d: d[:-2] + bytes([d[-2] ^ 1]) + d[-1:], {}, "checkpoint_content"),
    "not safetensors": (lambda _: b"PK\x03\x04 pickle", {}, "checkpoint_unreadable"),
    "another size than announced": (lambda d: d, {"size_bytes": 7}, "checkpoint_size"),
    "another model": (lambda d: d, {"model_id": "other"}, "checkpoint_model_id"),
    "another feature schema": (lambda d: d, {"feature_schema": "0" * 16}, "checkpoint_schema"),
    "outside the root": (lambda d: d, {"uri": "/etc/passwd"}, "checkpoint_outside_root"),
    "a parent folder": (lambda d: d, {"uri": "/allowed/../../etc/passwd"}, "checkpoint_uri"),
    "an encoded byte that is not UTF-8": (lambda d: d, {"uri": "file:///allowed/%ff"}, "checkpoint_uri"),
    "an encoded parent folder": (lambda d: d, {"uri": "file:///allowed/%2e%2e/etc/passwd"}, "checkpoint_uri"),
    "another host": (lambda d: d, {"uri": "file://host/allowed/x"}, "checkpoint_uri"),
    "another scheme": (lambda d: d, {"uri": "http://127.0.0.1/x"}, "checkpoint_uri"),
    "an extra field": (lambda d: d, {"pickle": True}, "bad_record"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_rejected_with_a_reason_and_nothing_else_changes(world: World, gate: Gate, name: str) -> None:
    spoil, changes, code = BAD[name]
    before = [p for p in world.store.list() if not p.startswith("control/")]
    assert handle_checkpoint(announce(gate, 7, spoil(GOOD), **changes), gate) is Decision.REJECTED
    status = ControlLog(world.store).refresh().versions[7]
    assert status.state is State.REJECTED and status.reason.startswith(f"{code}: ")
    assert [(o, r.code) for o, r in gate.letters] == [(7, code)] and [e.kind for e in gate.events] == ["rejected"]
    assert [p for p in world.store.list() if not p.startswith("control/")] == before
    assert gate.rejected == {code: 1}


@pytest.mark.parametrize("value", [None, b"", b"not json", b"\xff\xfe"])
def test_a_malformed_record_is_rejected(gate: Gate, value: bytes | None) -> None:
    assert handle_checkpoint(SourceRecord(MODEL_CHECKPOINTS, 0, 0, None, value), gate) is Decision.REJECTED
    assert gate.letters[0][1].disposition == "malformed"


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_link_below_the_root_is_not_followed(world: World, gate: Gate, where: str) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (outside / "model").write_bytes(GOOD)
    link = gate.allowed / "link"
    link.symlink_to(outside / "model" if where == "file" else outside)
    uri = str(link if where == "file" else link / "model")
    assert handle_checkpoint(announce(gate, 1, uri=uri), gate) is Decision.REJECTED
    assert gate.letters[0][1].code == "checkpoint_outside_root"


def test_a_pipe_is_not_waited_for(gate: Gate) -> None:
    os.mkfifo(gate.allowed / "pipe")
    assert handle_checkpoint(announce(gate, 1, uri=str(gate.allowed / "pipe")), gate) is Decision.REJECTED
    assert gate.letters[0][1].code == "checkpoint_not_a_file"


def test_an_unreachable_file_is_tried_again_until_it_is_there(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(world, fetch_s_max=100.0)
    record = announce(gate, 1)
    path = gate.allowed / "1.safetensors"
    hidden = path.rename(gate.allowed / "hidden")
    looks = []

    def wait(_: float) -> bool:
        looks.append(world.clock.monotonic())
        world.clock.seconds += 10
        if len(looks) == 3:
            hidden.rename(path)
        return False

    gate.stopping.wait = wait  # type: ignore[assignment,method-assign]
    assert handle_checkpoint(record, gate) is Decision.WANTED and looks == [0, 10, 20]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "retrying for 100 s, later records wait" in caplog.text


def test_an_unreachable_file_is_rejected_after_its_time(world: World) -> None:
    gate = Gate(world, fetch_s_max=25.0)
    record = announce(gate, 1)
    (gate.allowed / "1.safetensors").unlink()

    def wait(_: float) -> bool:
        world.clock.seconds += 10
        return False

    gate.stopping.wait = wait  # type: ignore[assignment,method-assign]
    assert handle_checkpoint(record, gate) is Decision.REJECTED and gate.letters[0][1].code == "unreachable"


def test_stopping_leaves_the_record_and_those_after_it_to_the_next_owner(world: World) -> None:
    gate = Gate(world, fetch_s_max=1e9)
    first, second = announce(gate, 1), announce(gate, 2)
    (gate.allowed / "1.safetensors").unlink()
    gate.stopping.set()
    asyncio.run(handle_checkpoints(gate, [first, second]))
    assert ControlLog(world.store).refresh().newest_decided == -1


def test_nothing_is_decided_while_the_dead_letter_topic_does_not_answer(world: World, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    silent = Unavailable("dead_letter_not_sent", "no broker", 0.0)
    answers = iter([silent, silent, silent, None])

    def send(record: SourceRecord, rejection: Rejection) -> None:
        error = next(answers)
        if error is not None:
            raise error
        gate.letters.append((record.offset, rejection))

    gate.send_dead_letter = send
    bad = SourceRecord(MODEL_CHECKPOINTS, 0, 0, None, b"{")
    with pytest.raises(Unavailable):
        handle_checkpoint(bad, gate)
    assert ControlLog(world.store).refresh().newest_decided == -1
    asyncio.run(handle_checkpoints(gate, [bad, announce(gate, 1)]))
    assert world.entries(EntryKind.REJECT) == 1 and world.entries(EntryKind.WANT) == 1 and len(gate.letters) == 1
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "checkpoint record 0 is not decided, retrying; later records wait: dead_letter_not_sent: no broker"
    ], "once, not at each attempt"


def test_a_checkpoint_whose_dry_run_meets_errors_of_the_machine_waits_and_is_wanted(world: World, gate: Gate) -> None:
    errors = [Unavailable("builder_machine", "an error of this machine: OSError(5)", 0.0) for _ in range(7)]

    def run(data: bytes) -> None:
        if errors:
            raise errors.pop()

    gate.dry_run = run
    asyncio.run(handle_checkpoints(gate, [announce(gate, 0), announce(gate, 1)]))
    assert world.entries(EntryKind.REJECT) == 0 and world.entries(EntryKind.WANT) == 2 and not gate.letters and not errors
    assert [(e.kind, e.version) for e in gate.events] == [("undecided", 0), ("wanted", 0), ("wanted", 1)]
    assert "builder_machine" in gate.events[0].reason
