"""`aif worker` as processes on the real broker, without a server and without a model: start, kill, watch, count.

A shard is read only after its worker has ended; while it runs, its progress is its messages on index-deltas.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from infra.clock import SystemClock
from infra.fork_server import Template, launch_template
from infra.kafka.admin import apply_topics, end_offsets
from infra.kafka.publisher import Publisher
from infra.kafka.reader import TopicFollower, read_topic
from infra.processes import Child, stop_all, wait_ready, wait_until
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.layout import decode_delta
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS
from streams.core.shard_state import Counters, TopicCounts
from streams.shard.shard import Shard, open_shard
from tests.checkpoint_records import point_to

SHARDS = 2
WAIT_S = 120.0
KILLED = {"AIF_WORKER__SESSION_TIMEOUT_S": "6"}  # the shortest that is allowed: so long the group waits for a member that was killed


@functools.cache
def open_template() -> Template:
    """What every worker of these tests imports, imported once: each is a process of its own that continues from there."""
    folder = Path(tempfile.mkdtemp(prefix="aif-template-"))
    template = launch_template(["streams.worker", "streams.kernels:load_compiled_kernels"], folder / "log")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(template.close)
    return template


@dataclass
class WorkerStage:
    """Topics of its own, an index store, and workers that each have a data directory."""

    directory: Path
    bootstrap: str
    prefix: str
    children: list[Child] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        apply_topics(self.bootstrap, self.prefix, SHARDS, 1)
        self.checkpoints = self.directory / "checkpoints"
        self.checkpoints.mkdir()

    def environment(self, name: str) -> dict[str, str]:
        return {
            "AIF_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "AIF_KAFKA__TOPIC_PREFIX": self.prefix,
            "AIF_INDEX__STORE": str(self.directory / "index"),
            "AIF_INDEX__SHARDS": str(SHARDS),
            "AIF_INDEX__USER_PARTITIONS": "1",
            "AIF_INDEX__ID_KIND": "int64",
            "AIF_WORKER__DATA_DIR": str(self.directory / name),
            "AIF_WORKER__SESSION_TIMEOUT_S": "30",  # a busy machine must not look like a dead member; who kills one sets KILLED
            "AIF_BUILD__WARM": "false",
            "AIF_BUILD__CHECKPOINT_ROOTS": json.dumps([str(self.checkpoints)]),
            **self.settings,
        }

    def start(self, name: str = "worker", **changes: str) -> Child:
        """A worker; `changes` are further environment variables. Returns at once."""
        environment = {**self.environment(name), **changes}
        child = open_template().start_child(
            name, "infra.cli:main", [], self.log_path(name), argv=["aif", "worker"], environment=environment
        )
        self.children.append(child)
        return child

    def start_ready(self, name: str = "worker", **changes: str) -> Child:
        """A worker that takes batches."""
        ready_before = self.log(name).count('"ready": true')
        child = self.start(name, **changes)
        wait_ready(child, lambda: self.log(name).count('"ready": true') > ready_before, WAIT_S)
        return child

    def log_path(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def log(self, name: str = "worker") -> str:
        path = self.log_path(name)
        return path.read_text() if path.exists() else ""

    def publisher(self) -> Publisher:
        return Publisher(self.bootstrap, self.prefix, "test", SHARDS, 1, IdKind.INT64)

    def publish_checkpoint(self, data: bytes) -> None:
        path = self.checkpoints / f"{hashlib.sha256(data).hexdigest()}.safetensors"
        path.write_bytes(data)
        with self.publisher() as publisher:
            publisher.publish_checkpoint(point_to(path)).result(WAIT_S)

    def publish_raw(self, topic: str, records: list[tuple[int, bytes | None, bytes | None]], **config: str | int) -> None:
        """(partition, key, value) as they are, past every check of our own publisher."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "message.max.bytes": 8 << 20, **config})
        for partition, key, value in records:
            producer.produce(self.prefix + topic, value, key, partition=partition)
        assert producer.flush(30) == 0

    def ends(self) -> dict[int, tuple[int, ...]]:
        """End offsets of every shard's topics, in the order of a delta header."""
        by_topic = [end_offsets(self.bootstrap, self.prefix + topic) for topic in SHARD_TOPICS]
        return {shard: tuple(ends[shard] for ends in by_topic) for shard in range(SHARDS)}

    def wait_applied(self, child: Child | None = None) -> None:
        """Until readers were told that everything published so far is applied."""
        wanted, told = self.ends(), dict.fromkeys(range(SHARDS), (0, 0))
        with TopicFollower(self.bootstrap, INDEX_DELTAS, dict.fromkeys(range(SHARDS), 0), prefix=self.prefix) as follower:

            def reached() -> bool:
                for record in follower.poll(1_000, 0.05):
                    assert record.value is not None
                    told[record.partition] = max(told[record.partition], decode_delta({}, record.value).header.next_offsets)
                return all(told[s][i] >= wanted[s][i] for s in range(SHARDS) for i in range(2))

            wait_until(reached, WAIT_S, f"{wanted} to be applied; log: {'' if child is None else child.log_tail()}")

    @contextlib.contextmanager
    def shard(self, name: str, number: int) -> Iterator[Shard]:
        """A shard of a worker that has ended."""
        directory = self.directory / name / "shards" / f"{number:05d}"
        shard = open_shard(directory, number, self.init(), SystemClock())
        try:
            yield shard
        finally:
            shard.close()

    def init(self) -> Init:
        from infra.index.control_log import ControlLog
        from infra.index.store import open_index_store

        init = ControlLog(open_index_store(str(self.directory / "index"))).refresh().init
        assert init is not None
        return init

    def expected_counters(self, shard: int) -> dict[str, int]:
        """Updates per topic in the shard's partitions, counted by a reader that shares no code with the shard. Only well-formed records."""
        counts = dict.fromkeys(SHARD_TOPICS, 0)
        for topic in SHARD_TOPICS:
            for record in read_topic(self.bootstrap, topic, prefix=self.prefix):
                if record.partition == shard:
                    counts[topic] += len(json.loads(record.value or b"{}")["updates"])
        return counts

    def stop(self) -> None:
        stop_all(self.children)


def stop_cleanly(child: Child) -> int:
    """SIGTERM to the worker alone; its exit code."""
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not child.alive(), WAIT_S, f"{child.name} to end after SIGTERM; log: {child.log_tail()}")
    return child.process.wait()


def kill_hard(child: Child) -> None:
    """SIGKILL to the worker and its builders."""
    child.kill()


def wait_exit(child: Child) -> int:
    wait_until(lambda: not child.alive(), WAIT_S, f"{child.name} to end; log: {child.log_tail()}")
    return child.process.wait()


def consumed(counters: Counters) -> Mapping[str, int]:
    return {topic: counts.consumed for topic, counts in counters.items()}


def is_exact(counts: TopicCounts) -> bool:
    """I1: nothing is lost between the numbers."""
    return counts.consumed == counts.applied + counts.superseded + counts.dead_lettered


def listening_ports(pids: set[int]) -> set[int]:
    """TCP ports that these processes listen on, from /proc."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields: list[Any] = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def group_members(leader: int) -> set[int]:
    """Processes of a child's group: the worker and its builders."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    found.add(int(entry.name))
    return found
