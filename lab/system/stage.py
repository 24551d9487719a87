"""Where a bench plays: a broker, an index store and processes of its own in one directory, a catalogue and an untrained model.

A random model costs what a learnt one of the same sizes does; nothing here judges relevance.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.broker.server import HEAP_MIB
from infra.clock import SystemClock
from infra.closeable import Closeable
from infra.command import say
from infra.index.control_log import ensure_init
from infra.kafka.admin import describe_index, end_offsets
from infra.kafka.reader import TopicFollower
from infra.processes import Child, leave_in_order, start_child, wait_until
from lab.catalogues.catalogue import Catalogue
from lab.demo.stage import SHARDS, USER_PARTITIONS, Stage
from lab.plain_client import PlainClient
from schemas.errors import Corrupted
from schemas.ids import IdKind
from schemas.index.layout import decode_delta
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS

# The sizes that the goals are given for: 32-wide fp16 vector, 10 bridge weights, 64-bit signature.
MODEL_SIZES: Mapping[str, Any] = {"width": 32, "bridges": 10, "hash_bits": 64}
_W_HASH_SEED = 7
_LIVE_S_MAX = 1_800.0
_APPLIED_S_MAX = 600.0
_STOP_S_MAX = 30.0
_IMPORTED = '{"imported_at_s": '
# The import of what a worker needs at once, stamped: its start counts from here.
_WORKER = "import streams.worker, time; print('" + _IMPORTED + "%.6f}' % time.time(), flush=True); from infra.cli import main; main()"


@dataclass
class BenchStage(Stage):
    """The demo's stage with further settings in the environment of every child."""

    settings: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.settings}

    def start_worker(self, name: str = "worker", **environment: str) -> Child:
        """One `aif worker`; its log has the moment at which its imports were done. Returns at once."""
        one_thread = {"OPENBLAS_NUM_THREADS": "1"}  # as `aif worker` sets it, which here comes after the imports
        return self.start_python(name, _WORKER, "worker", **{**one_thread, **environment})

    def start_python(self, name: str, code: str, *arguments: str, **environment: str) -> Child:
        """A child that runs `code` with `arguments`, with the settings of this stage and `environment` on top."""
        command = [sys.executable, "-c", code, *arguments]
        child = start_child(name, command, self.directory / "logs" / f"{name}.log", environment={**self.environment(), **environment})
        self.children.append(child)
        return child

    def stop_worker(self, child: Child) -> None:
        """SIGTERM to the worker alone, and wait: its shards are closed cleanly."""
        os.kill(child.pid, signal.SIGTERM)
        wait_until(lambda: not child.alive(), _STOP_S_MAX, f"{child.name} to end after SIGTERM (log {child.log_path})")
        child.kill()
        self.children.remove(child)

    def publish_catalogue(self, catalogue: Catalogue) -> int:
        """Features and embeddings of every item, packed; how many updates."""
        with self.publisher() as publisher:
            return publisher.publish_items(catalogue.items()) + publisher.publish_new_items(catalogue.new_items())

    def publish_model(self, catalogue: Catalogue, seed: int = 0) -> int:
        """A checkpoint of random weights; its version. Begins the index if no worker has."""
        path = self.directory / "checkpoints" / f"random-{seed}.safetensors"
        write_random_checkpoint(path, catalogue, seed)
        return self.publish_checkpoint(path)

    def publish_checkpoint(self, path: Path) -> int:
        """A checkpoint's version. Begins the index if no worker has."""
        if self.control_state().init is None:
            init = describe_index(self.connection, self.topic_prefix, SHARDS, USER_PARTITIONS, self.id_kind)
            ensure_init(self.control, init, SystemClock().now_ms(), "aif bench")
        with self.publisher() as publisher:
            return publisher.publish_checkpoint_file(self.control.store, path).offset

    def wait_live(self, version: int, worker: Child) -> None:
        """Until `version` is the live one. Raises Unavailable where the worker has ended."""

        def is_live() -> bool:
            worker.check()
            current = self.control_state().current
            return current is not None and current.version == version

        wait_until(is_live, _LIVE_S_MAX, f"version {version} to be live", poll_s=0.01)

    def start_server(self) -> PlainClient:
        """A connection to a server that has loaded the live version; the caller closes it."""
        self.serve("server", "serve", "--port", str(self.port))
        server = PlainClient(self.url)
        self.wait_for(server.is_ready, "the server to have loaded the version")
        return server

    def source_ends(self) -> dict[int, tuple[int, ...]]:
        """End offsets of every shard's source topics, in the order of a delta header."""
        ends = [end_offsets(self.bootstrap_servers, self.topic_prefix + topic) for topic in SHARD_TOPICS]
        return {shard: tuple(by_partition[shard] for by_partition in ends) for shard in range(SHARDS)}


@contextmanager
def open_bench_stage(id_kind: IdKind = IdKind.INT64, broker_heap_mib: int = HEAP_MIB, /, **settings: str) -> Iterator[BenchStage]:
    """A stage with its broker, removed at the end with everything in it, also when a TERM ends the bench. After an error its logs are kept."""
    leave_in_order()
    directory = Path(tempfile.mkdtemp(prefix="aif-bench-"))
    stage = BenchStage(directory, id_kind, settings=settings)
    try:
        stage.start_broker(broker_heap_mib)
        yield stage
    except Exception:
        tell(f"The bench failed; the logs of its processes are in {stage.keep_logs()}")
        raise
    finally:
        stage.stop()


def write_random_checkpoint(path: Path, catalogue: Catalogue, seed: int = 0) -> None:
    """A checkpoint for the catalogue's schema with random weights."""
    import torch

    from schemas.model.checkpoint import write_checkpoint
    from schemas.model.lsh import make_w_hash
    from schemas.model.network import AifNetwork
    from schemas.model.spec import ModelSpec

    spec = ModelSpec(catalogue.schema, **{**MODEL_SIZES, **catalogue.model})
    torch.manual_seed(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, AifNetwork(spec, make_w_hash(_W_HASH_SEED, spec.hash_bits, spec.schema.mm_width)), f"random-{seed}", {})


# --- how far the workers are ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """The progress in one record of index-deltas: the shard had applied up to these offsets by `at_ms` (the producer's clock)."""

    at_ms: int
    shard: int
    next_offsets: tuple[int, ...]


class AppliedWatch(Closeable):
    """Follows index-deltas from now on, from before the workers are started. Use as a context manager."""

    def __init__(self, stage: BenchStage) -> None:
        ends = end_offsets(stage.bootstrap_servers, stage.topic_prefix + INDEX_DELTAS)
        self._follower = TopicFollower(stage.bootstrap_servers, INDEX_DELTAS, ends, prefix=stage.topic_prefix)
        self.seen: list[Applied] = []
        self._told: dict[int, tuple[int, ...]] = {}

    def close(self) -> None:
        """Leaves the topic."""
        self._follower.close()

    def poll(self, timeout_s: float = 0.05) -> None:
        """Reads new records."""
        for record in self._follower.poll(1_000, timeout_s):
            try:
                header = decode_delta({}, record.value or b"").header
            except Corrupted:  # a foreign record
                continue
            self.seen.append(Applied(record.timestamp_ms, header.shard, header.next_offsets))
            self._told[header.shard] = tuple(map(max, self._told.get(header.shard, header.next_offsets), header.next_offsets))

    def wait(
        self, ends: Mapping[int, tuple[int, ...]], timeout_s: float = _APPLIED_S_MAX, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Until every shard told that it applied up to `ends`; `meanwhile` is called all the time."""

        def reached() -> bool:
            meanwhile()
            self.poll()
            nothing = (0,) * len(SHARD_TOPICS)
            return all(a >= b for shard, wanted in ends.items() for a, b in zip(self._told.get(shard, nothing), wanted, strict=True))

        wait_until(reached, timeout_s, f"{dict(ends)} to be applied", poll_s=0.1)


def imported_at_s(child: Child) -> float:
    """When a worker of `start_worker` had its imports, by the clock of this machine."""
    stamps = [json.loads(line)["imported_at_s"] for line in child.log_path.read_text().splitlines() if line.startswith(_IMPORTED)]
    return float(stamps[-1])


def peak_rss_mb(child: Child) -> dict[str, float]:
    """Largest resident memory so far, in MB, by role: the child itself, and the largest of the processes that it started, or these started.

    Pages that a fork shares with its template count in both.
    """
    return {"self": _peak_mb(child.pid), "children": max(map(_peak_mb, started_by(child)), default=0.0)}


def _peak_mb(pid: int) -> float:
    """0 of a process that has just ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def processor_s(child: Child) -> float:
    """Processor time so far, in seconds, of the child and of all running processes below it."""
    ticks = [int(fields[11]) + int(fields[12]) for fields in _running_below(child).values()]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def started_by(child: Child) -> set[int]:
    """Processes that a child started, or these started, and which still run."""
    return set(_running_below(child)) - {child.pid}


def _running_below(child: Child) -> dict[int, list[str]]:
    """The child, its children and grandchildren, with the fields of /proc/PID/stat of each, from its state on."""
    found: dict[int, list[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(stat.parent.name)] = fields
    parents = {pid: int(fields[1]) for pid, fields in found.items()}
    return {pid: fields for pid, fields in found.items() if child.pid in (pid, parents[pid], parents.get(parents[pid]))}


def tell(message: str, began: float | None = None) -> float:
    """A line of progress on standard error; returns now, for the next one."""
    now = time.monotonic()
    say(message if began is None else f"{message} ({now - began:.1f} s)")
    return now
