"""Who holds a data directory: a lock that lives as long as the holder, and probes that disturb nobody."""

import errno
import threading
from pathlib import Path

import pytest

from infra.broker import record
from infra.broker.record import BrokerRecord, is_held, note_end, read_record, running_broker, take_lock, write_record

_RECORD = BrokerRecord(pid=1, port=20_000, controller_port=20_001, cluster_id="c", ready=True)


def test_a_directory_is_held_while_the_lock_is_open_and_by_one_only(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    lock = take_lock(tmp_path)
    assert lock is not None
    assert is_held(tmp_path)
    assert take_lock(tmp_path) is None
    lock.close()
    assert not is_held(tmp_path)


def test_a_record_without_a_holder_is_not_a_running_broker(tmp_path: Path) -> None:
    write_record(tmp_path, _RECORD)
    assert read_record(tmp_path) == _RECORD
    assert running_broker(tmp_path) is None
    lock = take_lock(tmp_path)
    assert lock is not None
    with lock:
        assert running_broker(tmp_path) == _RECORD


def test_the_end_of_a_broker_on_a_full_disk_is_no_error_because_its_lock_says_that_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aif broker stop` would report a failure after it stopped the broker."""
    write_record(tmp_path, _RECORD)

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    monkeypatch.setattr(record, "write_file_durably", refuse)
    note_end(tmp_path, _RECORD.pid)
    assert running_broker(tmp_path) is None


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_bytes(b'{"pid": 1')
    assert read_record(tmp_path) is None


def test_those_who_ask_whether_it_is_held_never_make_a_start_fail(tmp_path: Path) -> None:
    asking = threading.Event()
    asking.set()

    def ask() -> None:
        while asking.is_set():
            is_held(tmp_path)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            lock = take_lock(tmp_path)
            assert lock is not None
            lock.close()
    finally:
        asking.clear()
        for thread in threads:
            thread.join()
