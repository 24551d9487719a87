"""The processes of the demo and their directory: broker, worker, trainer, server, each a real `aif` command.

Every child dies with this process, however it ends; nothing outside `directory` is written.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.broker.server import HEAP_MIB, Broker, start_broker
from infra.fork_server import Template, launch_template
from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from infra.kafka.security import KafkaConnection
from infra.processes import Child, free_ports, start_child, stop_all, wait_until
from infra.settings import InfraSettings, load_settings
from lab.supervisor import Supervised
from schemas.errors import Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState

SHARDS = 2  # one a core of the machine the demo is meant for
USER_PARTITIONS = 2
# What the commands of a stage load, each for itself: a template has it once. Kernels only if some process compiled them: others would wait for that.
_WARM = (
    "streams.worker",
    "streams.builders.process",
    "streams.replay.replay",
    "serving.server",
    "serving.audit.parity",  # with it torch, for the trainer, the audit, and the dry runs of checkpoints
    "streams.kernels:load_compiled_kernels",
    "serving.engine_kernels:load_compiled_kernels",
)
_READY_S_MAX = 180.0
_ENDED_S_MAX = 600.0
_GRACE_S = 1.0
_REMOVE_S_MAX = 5.0


@dataclass
class Stage:
    """A directory and the processes that live in it."""

    directory: Path
    id_kind: IdKind
    keep: bool = False  # the files, at the end
    children: list[Child] = field(default_factory=list)
    services: list[Supervised] = field(default_factory=list)
    broker: Broker | None = None
    template: Template | None = None
    external_bootstrap: str = field(default_factory=lambda: os.environ.get("AIF_KAFKA__BOOTSTRAP_SERVERS", ""))

    def __post_init__(self) -> None:
        (self.port,) = free_ports(1)
        self.control = ControlLog(open_index_store(str(self.directory / "index")))

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def checkpoint_directory(self) -> Path:
        """Where the trainer writes."""
        return self.directory / "checkpoints"

    def checkpoints(self) -> list[Path]:
        """The trainer's checkpoints so far, oldest first; each was renamed into place, whole."""
        return sorted(self.checkpoint_directory.glob("*.safetensors"))

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address."""
        if self.external_bootstrap:
            return self.external_bootstrap
        assert self.broker is not None, "the broker was not started"
        return self.broker.bootstrap_servers

    @property
    def connection(self) -> KafkaConnection:
        """The same, with the login that the environment names for it."""
        return KafkaConnection(self.bootstrap_servers, load_settings(InfraSettings).kafka_security)

    @property
    def topic_prefix(self) -> str:
        """A prefix of its own, so that a demo on a shared broker touches no other topics."""
        return f"demo-{self.directory.name}." if self.external_bootstrap else "aif."

    def environment(self) -> dict[str, str]:
        """What makes any `aif` command work on this stage."""
        return {
            "AIF_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "AIF_KAFKA__TOPIC_PREFIX": self.topic_prefix,
            "AIF_INDEX__STORE": str(self.directory / "index"),
            "AIF_INDEX__SHARDS": str(SHARDS),
            "AIF_INDEX__USER_PARTITIONS": str(USER_PARTITIONS),
            "AIF_INDEX__ID_KIND": str(self.id_kind),
            "AIF_WORKER__DATA_DIR": str(self.directory / "worker"),
            "AIF_STATISTICS__DATA_DIR": str(self.directory / "statistics"),
            "AIF_USERS__DATA_DIR": str(self.directory / "users"),
            "AIF_SERVE__DEADLINE_MS": "30000",  # two cores carry broker, worker, trainer and server at once
            "AIF_SERVE__PORT": str(self.port),
            "AIF_RELAY__BUDGET_MS": "1",  # histories of the demo are short: by default no ranking of them would need a prefix
            **({} if self.external_bootstrap else {"AIF_BROKER__DATA_DIR": str(self.directory / "broker")}),
        }

    def start_broker(self, heap_mib: int = HEAP_MIB) -> None:
        """The broker (or the one named by AIF_KAFKA__BOOTSTRAP_SERVERS) and its topics."""
        if not self.external_bootstrap:
            self.broker = start_broker(self.directory / "broker", heap_mib=heap_mib)
        apply_topics(self.connection, self.topic_prefix, SHARDS, USER_PARTITIONS)

    def warm_up(self) -> None:
        """From now on commands are forked from a template instead of loading everything themselves: half of the demo's starts was that."""
        self.template = launch_template(_WARM, self.directory / "logs" / "template.log")

    def start(self, name: str, *arguments: str) -> Child:
        """One `aif` command as a child; its output goes to logs/<name>.log."""
        log_path, environment = self.directory / "logs" / f"{name}.log", self.environment()
        if self.template is None:
            command = [sys.executable, "-c", "from infra.cli import main; main()", *arguments]
            child = start_child(name, command, log_path, environment=environment)
        else:
            child = self.template.start_child(name, "infra.cli:main", [], log_path, argv=["aif", *arguments], environment=environment)
        self.children.append(child)
        return child

    def serve(self, name: str, *arguments: str, say: Callable[[str], None] = lambda _: None, heartbeat: Path | None = None) -> Supervised:
        """One `aif` command that runs on, and is started again should it die, or give no sign of life."""

        # Among the children too: Ctrl-C may come before the service is in its list.
        self.services.append(Supervised(lambda: self.start(name, *arguments), say, heartbeat))
        return self.services[-1]

    def run(self, name: str, *arguments: str) -> str:
        """One `aif` command to its end; returns its log. Raises Unavailable with the end of the log if it fails."""
        return self.finish(self.start(name, *arguments))

    def finish(self, child: Child, look: Callable[[Child], None] = lambda _: None) -> str:
        """Waits for a child to end and returns its log. Calls `look` meanwhile."""

        def has_ended() -> bool:
            look(child)
            return not child.alive()

        wait_until(has_ended, _ENDED_S_MAX, f"{child.name} to end (log {child.log_path})", poll_s=0.1)
        if child.process.wait() != 0:
            raise Unavailable(
                "child_failed", f"{child.name} ended with exit code {child.process.returncode}; log {child.log_path}:\n{child.log_tail()}"
            )
        return child.log_path.read_text()

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Waits for a condition that the services bring about; one that was given up ends the waiting with its log."""

        def is_ready() -> bool:
            for service in self.services:
                service.check()
            return ready()

        wait_until(is_ready, _READY_S_MAX, what, poll_s=0.002)

    def control_state(self) -> ControlState:
        """The fold of the control log as it is now."""
        return self.control.refresh()

    def publisher(self) -> Publisher:
        """A publisher to this stage's topics."""
        return Publisher(self.connection, self.topic_prefix, "aif-demo", SHARDS, USER_PARTITIONS, self.id_kind)

    def stop(self) -> None:
        """Stop every child at once, kill the others after 1 s, and remove the directory unless it is kept. Takes at most 3 s."""
        for service in self.services:
            service.release()  # its child is among the children
        self.services.clear()
        stop_all(self.children, _GRACE_S)
        self.children.clear()
        if self.template is not None:
            self.template.close()
        if self.broker is not None:
            self.broker.kill()  # its log is whole after that too, and mostly goes with the directory
        if not self.keep:
            wait_until(self._remove_directory, _REMOVE_S_MAX, f"{self.directory} to be removed")

    def _remove_directory(self) -> bool:
        """A grandchild that is just being killed may still write into it; then it has to be done again."""
        shutil.rmtree(self.directory, ignore_errors=True)
        return not self.directory.exists()

    def keep_logs(self) -> Path:
        """Moves the logs out of the directory that `stop` removes; returns where they are."""
        kept = self.directory.with_name(self.directory.name + "-logs")
        (self.directory / "logs").mkdir(exist_ok=True)
        shutil.move(self.directory / "logs", kept)
        return kept


def json_figures(log: str) -> Mapping[str, float | None]:
    """The figures of a command's last JSON line."""
    line = next(text for text in reversed(log.splitlines()) if text.startswith('{"command"'))
    return {name: figure["value"] for name, figure in json.loads(line)["figures"].items()}
