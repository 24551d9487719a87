"""The configuration of the local broker: one node that is broker and controller, small, on loopback only.

Pure: no file is touched.
Source: Apache Kafka 4.3 documentation, "Broker Configs" and "KRaft".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# One node: every internal topic has one replica, and few partitions, because each costs files and start time.
_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # A group of one laptop need not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
    # Topics come from the one table in schemas/topics.py; a typing error must not make another.
    "auto.create.topics.enable": "false",
    # A broker that was killed may register again only when its former session has ended: 9 s by default, and clients stand still.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.io.threads": "2",
    "num.network.threads": "2",
}

LOG4J2_XML = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders><Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class SecureListeners:
    """Further ports of the local broker, with TLS or a login, for whoever tries how clients connect: Kafka's name of a protocol to a port; and `properties`,
    which name the broker's certificate, its logins, and its authorizer."""

    ports: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def encode_server_properties(log_dir: Path, port: int, controller_port: int, more: SecureListeners | None = None) -> str:
    """server.properties for a node whose data is in `log_dir`."""
    more = more or SecureListeners()
    clients = [f"{name}://127.0.0.1:{at}" for name, at in {"PLAINTEXT": port, **more.ports}.items()]
    protocols = [_SINGLE_NODE["listener.security.protocol.map"], *(f"{name}:{name}" for name in more.ports)]
    return _encode(
        {
            **_SINGLE_NODE,
            "log.dirs": str(log_dir),
            "listeners": ",".join([*clients, f"CONTROLLER://127.0.0.1:{controller_port}"]),
            "advertised.listeners": ",".join(clients),
            "listener.security.protocol.map": ",".join(protocols),
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            **more.properties,
        }
    )


def encode_meta_properties(cluster_id: str, directory_id: str) -> str:
    """meta.properties of a formatted log directory: what `StorageTool format` writes next to bootstrap.checkpoint."""
    return _encode({"version": "1", "cluster.id": cluster_id, "node.id": "1", "directory.id": directory_id})


def decode_properties(text: str) -> dict[str, str]:
    """Keys and values of a Java properties text without escapes or continued lines."""
    lines = [line.strip() for line in text.splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _encode(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={_escaped(value)}\n" for key, value in values.items())


def _escaped(value: str) -> str:
    """A value as Java reads it back: only a backslash changes meaning in what we write."""
    return value.replace("\\", "\\\\")
