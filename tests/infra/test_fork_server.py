"""Children forked from a template: warm, and otherwise processes like any other."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.fork_server import ForkedProcess, Template, launch_template
from infra.processes import Child, stop_all, wait_ready, wait_until
from schemas.errors import Unavailable

TARGETS = """
import decimal, os, sys, time  # decimal: imported by the template alone

loaded_in = os.getpid()

def tell(*arguments):
    with open("/proc/self/cmdline") as file:
        shown = file.read().strip("\\0").split("\\0")
    print(os.getpid() != loaded_in, arguments, sys.argv, shown, os.environ.get("WORD"), os.getpgrp() == os.getpid(), flush=True)

def fail():
    raise SystemExit(3)

def leave_by_error():
    raise KeyError("no such shelf")

def write_to(descriptor):
    os.write(descriptor, b"hello")

def sleep():
    print("asleep", flush=True)
    time.sleep(600)

def pass_failpoint():
    from infra.failpoints import failpoint
    failpoint("before-seal")
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    folder = tmp_path_factory.mktemp("template")
    (folder / "warm_targets.py").write_text(TARGETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        template = launch_template(["warm_targets"], folder / "template.log")
    yield template
    template.close()


def test_a_child_goes_on_from_what_the_template_imported_with_its_own_command_line_log_environment_and_group(
    template: Template, tmp_path: Path
) -> None:
    child = template.start_child("c", "warm_targets:tell", ["a", "b"], tmp_path / "log", argv=["x", "y"], environment={"WORD": "w"})
    assert child.process.wait(30) == 0
    assert child.log_tail() == "True ('a', 'b') ['x', 'y'] ['x', 'y'] w True\n"


def test_exit_codes_are_those_of_a_program(template: Template, tmp_path: Path) -> None:
    assert template.start_child("f", "warm_targets:fail", [], tmp_path / "log").process.wait(30) == 3
    raised = template.start_child("e", "warm_targets:leave_by_error", [], tmp_path / "log")
    assert raised.process.wait(30) == 1
    assert "no such shelf" in raised.log_tail()


def test_a_child_gets_the_descriptors_it_was_given(template: Template, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = template.start_child("w", "warm_targets:write_to", [], tmp_path / "log", inherited_fds=[writer])
    os.close(writer)
    assert child.process.wait(30) == 0
    assert os.read(reader, 100) == b"hello"
    assert os.read(reader, 100) == b"", "the template kept no copy of it"
    os.close(reader)


def test_a_child_that_is_stopped_or_killed_is_reaped_only_when_asked(template: Template, tmp_path: Path) -> None:
    children = [template.start_child("s", "warm_targets:sleep", [], tmp_path / f"{n}.log") for n in range(2)]
    for child in children:
        wait_ready(child, lambda child=child: "asleep" in child.log_tail(), 30)  # type: ignore[misc]
    os.kill(children[1].pid, signal.SIGKILL)
    wait_until(lambda: not children[1].alive(), 30, "the killed one to end")
    assert Path(f"/proc/{children[1].pid}").exists()
    with pytest.raises(subprocess.TimeoutExpired):
        children[0].process.wait(0.01)
    stop_all(children)
    assert [child.process.returncode for child in children] == [-signal.SIGTERM, -signal.SIGKILL]
    assert not Path(f"/proc/{children[1].pid}").exists()


def test_a_template_that_is_asked_for_a_child_that_was_reaped_says_so_and_goes_on(template: Template, tmp_path: Path) -> None:
    first = template.start_child("f", "warm_targets:fail", [], tmp_path / "log").process
    second = ForkedProcess(template, first.pid)  # as another thread sees it that asks in the same moment
    assert first.wait(30) == 3
    assert second.has_ended()
    second.poll()
    assert template.start_child("f", "warm_targets:fail", [], tmp_path / "log").process.wait(30) == 3


def test_an_answer_that_ctrl_c_left_on_the_channel_is_taken_for_no_other(template: Template, tmp_path: Path) -> None:
    def start(name: str) -> Child:
        return template.start_child(name, "warm_targets:sleep", [], tmp_path / f"{name}.log")

    first, caller = start("first"), threading.get_ident()
    of_template = int(Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[1])
    before = signal.signal(signal.SIGUSR1, lambda *_: signal.default_int_handler(signal.SIGINT, None))
    os.kill(of_template, signal.SIGSTOP)
    ctrl_c = threading.Timer(0.2, signal.pthread_kill, (caller, signal.SIGUSR1))
    try:
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            start("abandoned")
    finally:
        ctrl_c.join()
        os.kill(of_template, signal.SIGCONT)
        signal.signal(signal.SIGUSR1, before)
    assert first.alive()
    second = start("second")
    wait_ready(second, lambda: "asleep" in second.log_tail(), 30)
    stop_all([first, second])
    assert [child.process.returncode for child in (first, second)] == [-signal.SIGTERM, -signal.SIGTERM]


def test_what_a_template_cannot_do_is_said_in_its_own_words(template: Template) -> None:
    with pytest.raises(Unavailable, match="No child processes"):
        template._ask({"reap": os.getpid()})


def test_a_failpoint_is_armed_by_the_childs_own_environment(template: Template, tmp_path: Path) -> None:
    armed = {"FAILPOINT": f"before-seal:1:{tmp_path / 'passed'}"}
    killed = template.start_child("k", "warm_targets:pass_failpoint", [], tmp_path / "log", environment=armed)
    assert killed.process.wait(30) == -signal.SIGKILL
    assert (tmp_path / "passed").exists()
    assert template.start_child("p", "warm_targets:pass_failpoint", [], tmp_path / "log").process.wait(30) == 0


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_process_forks_its_own_template_and_children_die_with_it(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from infra.fork_server import fork_template
sys.path.insert(0, {str(tmp_path)!r})
import warm_targets
template = fork_template()
child = template.start_child("s", "warm_targets:sleep", [], Path({str(tmp_path / "log")!r}))
while "asleep" not in child.log_tail(): pass
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "warm_targets.py").write_text(TARGETS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not Path(f"/proc/{int(done.stdout)}").exists(), 30, "the child to end")


def test_a_process_with_threads_is_not_forked() -> None:
    code = """
import threading
from infra.fork_server import fork_template
ended = threading.Event()
threading.Thread(target=ended.wait).start()
print(fork_template())
ended.set()
"""
    assert run(code) == "None\n"


def test_without_its_template_a_child_counts_as_killed_and_no_other_starts(tmp_path: Path) -> None:
    template = launch_template(["time"], tmp_path / "template.log")
    child = template.start_child("s", "time:sleep", [], tmp_path / "log")
    template.close()
    assert not child.alive()
    assert child.process.wait(30) == -signal.SIGKILL
    with pytest.raises(Unavailable, match="no_template"):
        template.start_child("s", "time:sleep", [], tmp_path / "log")
