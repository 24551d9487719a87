"""Fixtures of the whole suite: one real broker per test run, shared by all pytest-xdist workers, started when the first test asks for it.

The process that runs pytest (the xdist controller, or the only process) owns the broker as a child that dies with it; workers ask for it by
a file and read its record. Nothing here replaces a client or a broker by a double.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from infra.broker.record import running_broker
from infra.broker.server import Broker, start_broker
from infra.processes import wait_until
from tests.memory import MEMORY

# The machine is shared and noisy: no example is judged by its time, and every run draws the same examples.
settings.register_profile("aif", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aif")

# Two threads of small operations spin while they wait for each other, and for long on a machine that others use too; the processes of tests inherit this.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# Images set this; then each of the suite's workers and of the processes it starts would compile all that it imports again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell in which somebody runs the system has its settings; those of tests are their own, but for the broker that they may be given.
for _name in [name for name in os.environ if name.startswith("AIF_") and name != "AIF_KAFKA__BOOTSTRAP_SERVERS"]:
    del os.environ[_name]

# What tests and their processes write, the broker's topics too, waits for no disk. Nothing cuts the power of the machine here; a lost write is simulated.
if MEMORY is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

# A shell that starts the suite in the background has it ignore Ctrl-C, and what tests start would ignore the one that it is sent.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Not AIF_...: unknown names with that prefix are refused by every process of ours, also by those that tests start.
_FOLDER_VARIABLE = "TEST_BROKER_FOLDER"
_POLL_S = 0.05
_START_S_MAX = 240.0  # with an empty cache it downloads 44 MB first


class _BrokerOnDemand(threading.Thread):
    """Waits for the file `wanted` in its folder and then starts the broker; the text of an error goes to `failed`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True, name="broker-on-demand")
        self.folder = folder
        self.ended = threading.Event()
        self.broker: Broker | None = None

    def run(self) -> None:
        while not self.ended.wait(_POLL_S):
            if (self.folder / "wanted").exists():
                self._start()
                return

    def _start(self) -> None:
        try:
            self.broker = start_broker(self.folder / "broker", heap_mib=512)  # the topics of all tests
        except BaseException as error:
            (self.folder / "failed").write_text(str(error))
            raise

    def end(self) -> None:
        self.ended.set()
        self.join()
        if self.broker is not None:
            self.broker.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


_on_demand: _BrokerOnDemand | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _on_demand
    if hasattr(config, "workerinput") or _on_demand is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="aif-tests-"))
    os.environ[_FOLDER_VARIABLE] = str(folder)  # xdist's workers inherit it
    _on_demand = _BrokerOnDemand(folder)
    _on_demand.start()


# The modules that take longest: xdist hands out modules in this order, so that no long one is left for a single worker at the end.
_LONG = [
    "test_whole_path",
    "test_faults",
    "test_server",
    "test_serve_process",
    "test_follower",
    "test_worker",
    "test_tier_kernel",
    "test_versions",
    "test_tables",
    "test_version_faults",
    "test_damaged_checkpoint",
    "test_worker_killed",
    "test_cells",
    "test_demo",
    "test_revive",
    "test_bad_records",
    "test_loader",
    "test_user_follower",
    "test_hostile",
    "test_pool",
    "test_program",
    "test_replay",
    "test_histories",
]
# They share one running system (tests/system/conftest.py), so one worker has them all.
_ONE_SYSTEM = ("tests/system/test_whole_path.py", "tests/system/test_faults.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the modules of all tests make stays to the end: half a million objects, which the garbage collector would look through again and again.
    Young objects, too, it looks through less often than by Python's defaults: both took a tenth of the processor time of tests without processes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(_LONG)))


class _BySystem(LoadScopeScheduling):
    """xdist's loadscope, a module for a worker, but that the modules of one running system are one scope."""

    def _split_scope(self, nodeid: str) -> str:
        return "one system" if nodeid.startswith(_ONE_SYSTEM) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _BySystem(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    global _on_demand
    if _on_demand is not None:
        _on_demand.end()
        _on_demand = None


@pytest.fixture(scope="session")
def in_memory() -> Iterator[Callable[[], Path]]:
    """Folders whose files wait for no disk, for tests that open hundreds of databases and cut no power."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield lambda: Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture(scope="session")
def bootstrap_servers() -> str:
    """The address of the run's broker, or of the one that AIF_KAFKA__BOOTSTRAP_SERVERS names."""
    named = os.environ.get("AIF_KAFKA__BOOTSTRAP_SERVERS")
    if named:
        return named
    folder = Path(os.environ[_FOLDER_VARIABLE])
    (folder / "wanted").touch()
    failed = folder / "failed"
    wait_until(lambda: failed.exists() or running_broker(folder / "broker") is not None, _START_S_MAX, "the broker of this test run")
    record = running_broker(folder / "broker")
    assert record is not None, failed.read_text()
    return record.bootstrap_servers


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses, so that tests share the broker and not their topics."""
    return f"test-{uuid.uuid4().hex[:12]}."
