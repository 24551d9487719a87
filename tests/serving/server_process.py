"""`aif serve` as a process, on an index that has one version."""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.processes import Child, start_child, wait_ready
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import Version, make_version
from tests.serving.index_samples import DeltaWriter, publish_version, write_identity

AIF = [sys.executable, "-c", "from infra.cli import main; main()"]
WAIT_S = 120.0  # a first run compiles the kernels


@dataclass
class ServerProcess:
    """One that runs: where both of its ports are."""

    child: Child
    url: str
    grpc: str


def publish_index(folder: Path, bootstrap: str, prefix: str) -> tuple[Version, dict[str, str]]:
    """Version 5 live in a store in the folder, its topics made; and what tells a process of them."""
    version, store = make_version(SPECS["full"], 60), open_index_store(str(folder / "store"))
    log = ControlLog(store)
    write_identity(log, version)
    publish_version(store, log, version, 5)
    DeltaWriter(bootstrap, prefix)
    return version, {
        "AIF_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "AIF_KAFKA__TOPIC_PREFIX": prefix,
        "AIF_INDEX__STORE": str(folder / "store"),
        "AIF_USERS__DATA_DIR": str(folder / "users"),
        "AIF_SERVE__DEADLINE_MS": "20000",
        "PYTHONFAULTHANDLER": "1",
    }


@contextlib.contextmanager
def run_server(folder: Path, variables: dict[str, str], *options: str) -> Iterator[ServerProcess]:
    """A server whose ports are open, killed at the end if it has not ended by then."""
    address = folder / "address.json"
    command = [*AIF, "serve", "--port", "0", "--device", "cpu", "--address-file", str(address), *options]
    child = start_child("server", command, folder / "server.log", environment=variables)
    try:
        wait_ready(child, address.exists, WAIT_S)
        found = json.loads(address.read_text())
        yield ServerProcess(child, found["url"], found["grpc"])
    finally:
        child.kill()
