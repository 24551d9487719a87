"""`aif demo` as a person runs it: to its end, and Ctrl-C at any moment: exit code 130, no process left, no file left."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from infra.processes import Child, start_child, wait_until
from lab.demo.program import DemoOptions, run_demo
from lab.demo.stage import json_figures
from schemas.errors import Misconfigured
from tests.system.conftest import WAIT_S


class Demo:
    """A demo as a child at its own terminal, so to say. Its folder and everything that it starts is known by TMPDIR."""

    def __init__(self, folder: Path, bootstrap_servers: str, *more: str) -> None:
        self.folder, self.log = folder, folder / "demo.log"
        self.environment = {"TMPDIR": str(folder), "XDG_DATA_HOME": str(folder / "data"), "AIF_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers}
        # It dies with the test, however that ends.
        self.process = self.command("demo", "demo", "--items", "1000", "--train-steps", "40", *more).process

    def command(self, name: str, *arguments: str) -> Child:
        """An `aif` command in the demo's environment; its output goes to NAME.log."""
        command = [sys.executable, "-c", "from infra.cli import main; main()", *arguments]
        return start_child(name, command, self.folder / f"{name}.log", environment=self.environment)

    def processes(self) -> dict[int, str]:
        """Everything alive that was started by it, itself included: an environment is inherited."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"TMPDIR={self.folder}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # ended meanwhile, or not ours
                continue
        return found

    def has_started(self, words: str) -> bool:
        """Whether some process of it has these words in its command line."""
        assert self.process.poll() is None, self.log.read_text()
        return any(words in command for command in self.processes().values())

    def has_said(self, words: str) -> bool:
        """Whether it has written these words."""
        assert self.process.poll() is None, self.log.read_text()
        return words in self.log.read_text()

    def press_ctrl_c(self) -> int:
        """SIGINT to the foreground group, as a terminal does, again and again as a person does; the exit code."""
        wait_until(self._pressed_to_the_end, WAIT_S, f"the demo to end; {self.log.read_text()[-2000:]}", poll_s=0.3)
        return self.process.returncode

    def _pressed_to_the_end(self) -> bool:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        return self.process.poll() is not None

    def assert_nothing_runs(self) -> None:
        """A grandchild dies by the kernel's hand a moment after its parent."""
        wait_until(lambda: not self.processes(), 30, f"the end of {self.processes()}")

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


# The moment: a process that has been started by then, and whether the demo has a broker of its own.
MOMENTS = {
    "a broker starts": ("kafka.Kafka", True),
    "worker and server start": (" serve ", False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_no_process_and_no_file(moment: str, tmp_path: Path, bootstrap_servers: str) -> None:
    words, own_broker = MOMENTS[moment]
    demo = Demo(tmp_path, "" if own_broker else bootstrap_servers)
    try:
        wait_until(lambda: demo.has_started(words), WAIT_S, f"{words} to be started")
        assert demo.press_ctrl_c() == 130, demo.log.read_text()
        demo.assert_nothing_runs()
        assert list(tmp_path.glob("aif-demo-*")) == [], demo.log.read_text()
    finally:
        demo.end()


def test_a_setting_that_no_process_reads_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every child would refuse it, and be started again."""
    monkeypatch.setenv("AIF_NOTHING", "1")
    monkeypatch.setattr("lab.demo.program._open_catalogue", lambda _: pytest.fail("the catalogue was opened"))
    with pytest.raises(Misconfigured, match="unknown_setting"):
        run_demo(DemoOptions())


@pytest.mark.campaign
@pytest.mark.timeout(400)  # it trains, switches three versions under load and replays; 65 s of computing
def test_the_demo_plays_to_its_end_and_stays_in_the_background_until_it_is_stopped(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "", "--keep", "--json")
    try:
        wait_until(lambda: demo.process.poll() is not None, 5 * WAIT_S, f"the demo to play to its end; {demo.log.read_text()[-2000:]}")
        assert demo.process.returncode == 0, demo.log.read_text()
        running = " ".join(demo.processes().values())
        assert [name for name in ("kafka.Kafka", " worker ", " serve ") if name not in running] == []
        assert "AIF_SERVE__PORT=" in (tmp_path / "data" / "aif" / "demo" / "env").read_text()
        again = demo.command("again", "demo", "--keep")
        assert again.process.wait(WAIT_S) == 1 and "demo_kept" in again.log_tail()
        stop = demo.command("stop", "demo", "stop")
        assert stop.process.wait(WAIT_S) == 0 and "stopped" in stop.log_tail(), stop.log_tail()
        demo.assert_nothing_runs()
        assert list(tmp_path.glob("aif-demo-*")) == []
    finally:
        demo.end()
    figures = json_figures(demo.log.read_text())
    assert figures["mixed_versions"] == 0 and figures["digest_equal"] == 1
    assert figures["flips"] >= 3 and figures["answers_during_switch"] >= 1_000 and figures["items"] >= 1_000
    assert figures["final_hr_at_10"] > 0 and figures["resident_share"] > 0.5
    assert figures["hr_at_100"] >= 1.3 * figures["popularity_hr_at_100"] > 1.3 * figures["random_hr_at_100"]
