"""Kernels are compiled by one process at a time, by none that finds them done, and by each for itself where no lock can be had."""

import fcntl
import logging
import os
import threading
from pathlib import Path

import pytest

from infra import compiled_once as module
from infra.compiled_once import compiled_once

SOURCES = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def hold_lock(folder: Path) -> int:
    lock = os.open(folder / "compiling-kernels", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def test_a_second_process_waits_for_the_first(folder: Path) -> None:
    lock, entered = hold_lock(folder), threading.Event()

    def enter() -> None:
        with compiled_once("kernels", SOURCES):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(4 * module._POLL_S)
    os.close(lock)
    thread.join()
    assert entered.is_set()


def test_what_is_done_is_not_waited_for_until_a_source_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with compiled_once("kernels", SOURCES):
        assert "compiling kernels 'kernels'" in caplog.text  # a silent minute would look like a process that hangs
    lock = hold_lock(folder)
    caplog.clear()
    with compiled_once("kernels", SOURCES):  # would wait permanently otherwise
        assert not caplog.text
    monkeypatch.setattr(module, "_stamp", lambda _: "other sources")
    monkeypatch.setattr(module, "WAIT_S_MAX", 0.0)
    with compiled_once("kernels", SOURCES):  # nobody frees the lock: it compiles for itself
        pass
    os.close(lock)


def test_a_failed_compilation_is_not_marked_as_done(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), compiled_once("kernels", SOURCES):
        raise ZeroDivisionError
    assert not (folder / "compiled-kernels").exists()


def test_without_a_folder_to_write_to_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/no-such-folder")
    with compiled_once("kernels", SOURCES):
        pass
