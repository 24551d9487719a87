"""Children that do not outlive their parent, and waiting that names what it waited for."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.processes import Child, _Executed, free_ports, port_is_free, start_child, stop_all, wait_ready, wait_until
from schemas.errors import Unavailable

_STUBBORN = "import signal, time, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
_WITH_A_CHILD_OF_ITS_OWN = "import subprocess, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"


def _python(name: str, code: str, folder: Path) -> Child:
    return start_child(name, [sys.executable, "-c", code], folder / f"{name}.log")


def _exists(pid: int) -> bool:
    """Whether the process runs (one that ended and waits to be collected does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    child = _python("stubborn", _STUBBORN, tmp_path)
    wait_ready(child, lambda: "ready" in child.log_tail(), 30)
    stop_all([child], grace_s=0.1)
    assert not child.alive()
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("end", "number"), [(Child.kill, signal.SIGKILL), (lambda child: stop_all([child]), signal.SIGTERM)])
def test_a_child_that_does_not_lead_its_group_yet_is_ended_too(tmp_path: Path, end: Callable[[Child], None], number: int) -> None:
    child = Child("forked", _Executed(["sleep", "20"]), tmp_path / "log")
    end(child)
    assert child.process.returncode == -number


def test_a_child_keeps_the_bytecode_of_what_it_imports_also_where_an_image_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    child = _python("reader", "import sys; print(sys.dont_write_bytecode)", tmp_path)
    child.process.wait(30)
    assert child.log_tail() == "False\n"


def test_stopping_a_child_stops_its_own_children(tmp_path: Path) -> None:
    child = _python("parent", _WITH_A_CHILD_OF_ITS_OWN, tmp_path)
    wait_ready(child, lambda: child.log_tail().endswith("\n"), 30)
    grandchild = int(child.log_tail())
    stop_all([child])
    wait_until(lambda: not _exists(grandchild), 30, "the grandchild to end")


def test_children_die_when_their_parent_is_killed_also_those_started_by_a_thread_that_has_ended(tmp_path: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from infra.processes import start_child
def start():
    print(start_child("sleeper", ["sleep", "600"], Path({str(tmp_path)!r}, "sleeper.log")).pid, flush=True)
thread = threading.Thread(target=start)
thread.start(); thread.join()
print("started", flush=True)
time.sleep(600)
"""
    parent = _python("parent", code, tmp_path)
    wait_ready(parent, lambda: "started" in parent.log_tail(), 30)
    sleeper = int(parent.log_tail().split()[0])
    assert _exists(sleeper)
    os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not _exists(sleeper), 30, "the sleeper to end")
    parent.kill()


def test_a_child_may_outlive_its_parent_when_that_was_asked_for(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from infra.processes import start_child;"
        f"print(start_child('s', ['sleep', '600'], Path({str(tmp_path)!r}, 's.log'), dies_with_parent=False).pid)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert _exists(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_child_that_dies_early_is_reported_with_its_exit_code_and_the_end_of_its_log(tmp_path: Path) -> None:
    child = _python("broken", "raise SystemExit('no such table')", tmp_path)
    with pytest.raises(Unavailable, match=r"(?s)broken ended with exit code 1.*no such table"):
        wait_ready(child, lambda: False, 30)


def test_a_child_that_never_gets_ready_is_reported_after_the_deadline(tmp_path: Path) -> None:
    child = _python("slow", "import time; time.sleep(600)", tmp_path)
    with pytest.raises(Unavailable, match="not ready after"):
        wait_ready(child, lambda: False, 0.05)
    stop_all([child])


def test_waiting_in_vain_names_what_was_waited_for() -> None:
    with pytest.raises(Unavailable, match="the moon"):
        wait_until(lambda: False, 0.01, "the moon")


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))
        listener.listen()
        assert not port_is_free(ports[0])
    assert port_is_free(ports[1])


def test_a_forked_copy_of_the_process_can_start_children_too(tmp_path: Path) -> None:
    assert start_child("first", ["true"], tmp_path / "first.log").process.wait() == 0
    code = f"""
import os
from pathlib import Path
from infra.processes import start_child
start_child("a", ["true"], Path({str(tmp_path)!r}, "a.log")).process.wait()
if os.fork() == 0:
    os._exit(start_child("b", ["true"], Path({str(tmp_path)!r}, "b.log")).process.wait())
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
