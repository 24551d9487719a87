"""Damage to each file of a RocksDB directory: cut at a length, a flipped byte, removed. What is read afterwards is the truth, or the directory is refused.

A killed owner may also lose an end of what it wrote since its last mark, and never something in between: its source repeats that.
"""

import contextlib
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from infra.rocks import open_database
from infra.rocks_checks import NOTE_NAME
from schemas.errors import Corrupted

FAMILIES = ("rows", "counts")
TRIAL_S_MAX = 60  # an opening that takes longer never ends
State = dict[str, dict[bytes, bytes]]


@dataclass(frozen=True)
class Written:
    """A directory, and the states that may be read from it: the last one is the truth."""

    path: Path
    states: list[State]


class Owner:
    """Writes to a database, and keeps the state after each write. `marked` is the number of states that came before the last mark."""

    def __init__(self, path: Path) -> None:
        self.database = open_database(path, FAMILIES)
        self.states: list[State] = [{family: {} for family in FAMILIES}]
        self.marked = 0
        self._random = random.Random(7)

    def write(self, rows: int) -> None:
        """Puts rows, removes one row, and counts, in one batch."""
        state = {family: dict(of) for family, of in self.states[-1].items()}
        batch = self.database.new_batch()
        for _ in range(rows):
            key, value = b"%03d" % self._random.randrange(200), self._random.randbytes(30)
            batch.put("rows", key, value)
            state["rows"][key] = value
        gone = min(state["rows"])
        batch.delete("rows", gone)
        del state["rows"][gone]
        count = b"%d" % len(self.states)
        batch.put("counts", b"n", count)
        state["counts"][b"n"] = count
        self.database.write(batch)
        self.states.append(state)

    def flush(self) -> None:
        self.database.flush()
        self.marked = len(self.states) - 1


def _serve_trials(asked: Connection) -> None:
    """Opens each directory that it is sent, and answers with its state, or None where it is refused."""
    while (path := asked.recv()) is not None:
        try:
            with contextlib.closing(open_database(path, FAMILIES)) as database:
                found: State | None = {family: dict(database.scan(family)) for family in FAMILIES}
        except Corrupted:
            found = None
        asked.send(found)


@pytest.fixture(scope="module")
def trials() -> Iterator[Connection]:
    """A process that opens directories, so that an opening that never returns ends a trial and not the tests."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_trials, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    yield ours
    ours.send(None) if process.is_alive() else None
    process.join(1)
    process.kill()
    process.join()
    process.close()
    ours.close()


@pytest.fixture
def written(tmp_path: Path) -> list[Written]:
    """Directories of an owner that was killed before RocksDB removed the log of a flush, after a flush, and after more writes; and a closed one."""
    owner = Owner(tmp_path / "owned")
    for rows in (20, 5):
        owner.write(rows)
        owner.flush()
    owner.write(9)
    (tmp_path / "logs").mkdir()
    for log in owner.database.path.glob("*.log"):
        os.link(log, tmp_path / "logs" / log.name)
    owner.flush()
    log_left = _copy_of(owner, tmp_path / "log-left")
    shutil.copytree(tmp_path / "logs", log_left.path, dirs_exist_ok=True)
    owner.flush()
    flushed = _copy_of(owner, tmp_path / "flushed")
    for rows in (3, 4):
        owner.write(rows)
    killed = _copy_of(owner, tmp_path / "killed")
    owner.database.close()
    return [log_left, flushed, killed, Written(tmp_path / "owned", owner.states[-1:])]


def _copy_of(owner: Owner, into: Path) -> Written:
    """What a kill leaves at this moment: not while RocksDB merges files."""
    path = owner.database.path
    while True:
        before = _sizes(path)
        with contextlib.suppress(shutil.Error):
            shutil.copytree(path, into)
            if _sizes(path) == before:
                break
        shutil.rmtree(into)
    return Written(into, owner.states[owner.marked :])


def _sizes(path: Path) -> dict[str, int]:
    found = {}
    for file in path.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[file.name] = file.stat().st_size
    return found


_EVERY = {"OPTIONS": 211, ".sst": 13}  # of the bytes of large files; each byte of the others
Damage = tuple[str, Callable[[Path], None]]


def _every_damage(path: Path, every: int = 1) -> Iterator[Damage]:
    """Each length, each byte, or one of `every`."""
    size = path.stat().st_size
    yield "removed", Path.unlink
    for length in range(0, size, every):
        yield f"cut to {length}", lambda p, n=length: os.truncate(p, n)
        yield f"byte {length} flipped", lambda p, n=length: _flip(p, n)


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << (at % 8)
    path.write_bytes(content)


def _check(trials: Connection, written: Written, name: str, damage: Damage, scratch: Path) -> str:
    """Damages a copy and reads it. Returns "same", "earlier" or "refused"; fails for anything else."""
    shutil.copytree(written.path, scratch, copy_function=os.link)
    target = scratch / name
    shutil.copy(target, scratch / "copy")
    (scratch / "copy").replace(target)
    for other in scratch.iterdir():
        if other.suffix != ".sst" and other.name != name:  # RocksDB writes these in place
            shutil.copy(other, scratch / "copy")
            (scratch / "copy").replace(other)
    damage[1](target)
    trials.send(scratch)
    assert trials.poll(TRIAL_S_MAX), f"{name} of {written.path.name}, {damage[0]}: not opened in {TRIAL_S_MAX} s"
    found = trials.recv()
    shutil.rmtree(scratch)
    if found is None:
        return "refused"
    if found == written.states[-1]:
        return "same"
    assert found in written.states, f"{name} of {written.path.name}, {damage[0]}: a state that never was, or one from before the last mark"
    return "earlier"


def _files(written: Written) -> list[str]:
    return sorted(p.name for p in written.path.iterdir() if p.name != "LOCK" and not p.name.startswith("LOG"))


def test_every_kind_of_damage_to_every_file_gives_the_truth_or_a_refusal(
    trials: Connection, written: list[Written], tmp_path: Path
) -> None:
    chosen = random.Random(3)
    outcomes: dict[str, set[str]] = {}
    for one in written:
        for name in _files(one):
            of_file = list(_every_damage(one.path / name))
            few = 4 if name.startswith("MANIFEST") else 1
            for damage in [of_file[0], *chosen.sample(of_file[1:], min(few, len(of_file) - 1))]:
                outcomes.setdefault(name.partition("-")[0], set()).add(_check(trials, one, name, damage, tmp_path / "scratch"))
    assert outcomes["MANIFEST"] <= {"refused", "same"}
    assert "refused" in outcomes["CURRENT"] and "refused" in outcomes[NOTE_NAME]


def test_a_manifest_cut_at_the_end_of_any_record_is_refused(trials: Connection, written: list[Written], tmp_path: Path) -> None:
    for one in written:
        (manifest,) = one.path.glob("MANIFEST-*")
        for end in _record_ends(manifest.read_bytes())[:-1]:
            assert (
                _check(trials, one, manifest.name, (f"cut to {end}", lambda p, n=end: os.truncate(p, n)), tmp_path / "scratch") != "earlier"
            )


def test_a_record_type_of_a_recycled_log_is_refused(trials: Connection, written: list[Written], tmp_path: Path) -> None:
    killed = written[2]
    logs = [p for p in killed.path.iterdir() if p.suffix == ".log" or p.name.startswith("MANIFEST")]
    assert len(logs) > 1
    for log in logs:
        ends = [0, *_record_ends(log.read_bytes())[:-1]]
        for at in (ends[0] + 6, ends[-1] + 6):
            assert _check(trials, killed, log.name, (f"type at {at} set", lambda p, n=at: _set(p, n, 5)), tmp_path / "scratch") == "refused"


def _set(path: Path, at: int, to: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] = to
    path.write_bytes(content)


def _record_ends(content: bytes) -> list[int]:
    """Ends of the records of RocksDB's log format: checksum (4 bytes), length (2), type (1), content."""
    ends, at = [], 0
    while at + 7 <= len(content):
        at += 7 + int.from_bytes(content[at + 4 : at + 6], "little")
        ends.append(at)
    return ends


@pytest.mark.campaign
@pytest.mark.timeout(3600)  # each length and byte of each file
def test_damage_at_every_length_and_byte_gives_the_truth_or_a_refusal(trials: Connection, written: list[Written], tmp_path: Path) -> None:
    for one in written:
        for name in _files(one):
            every = next((n for part, n in _EVERY.items() if part in name), 1)
            for damage in _every_damage(one.path / name, every):
                _check(trials, one, name, damage, tmp_path / "scratch")
