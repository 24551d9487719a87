"""The producer behind everything that this project sends: idempotent, acknowledged by all replicas, to topics that exist.

Invariants: sending never makes a topic, which would have the broker's settings and not those of schemas/topics.py. The key decides the partition as in every
other client of the topics (murmur2). Memory is bounded: `produce` raises BufferError while the queue is full. The client's `close` waits without a limit
while the broker is away, so a sender calls `flush` with a limit, then `purge` for the rest.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer

from infra.kafka.security import Bootstrap, client_config
from schemas.limits import MIB

_MESSAGE_BYTES_MAX = 8 * MIB  # more than any topic takes: the broker decides
_QUEUE_KIB_MAX = 64 * 1024
_POLL_S = 0.05


def open_producer(
    bootstrap: Bootstrap, delivery_s_max: float, on_error: Callable[[KafkaError], None] | None = None, transactional_id: str = ""
) -> Producer:
    """A producer that tries for `delivery_s_max` seconds to deliver a record (0: without a limit). It calls `on_error` within `poll`, also at the end of each
    connection. With a `transactional_id` it sends in transactions, which the caller begins and ends."""
    return Producer(
        {
            **client_config(bootstrap, on_error),
            **({"transactional.id": transactional_id} if transactional_id else {}),
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "linger.ms": 0,  # freshness counts from the call, and under load batches form by themselves
            "batch.size": 1 << 20,
            "delivery.timeout.ms": int(delivery_s_max * 1_000),
            "message.max.bytes": _MESSAGE_BYTES_MAX,
            "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
            "reconnect.backoff.max.ms": 1_000,
            "allow.auto.create.topics": False,
        }
    )


def produce(producer: Producer, topic: str, value: bytes | None, key: bytes, partition: int, **options: Any) -> None:
    """Hand over a record, and wait while the queue is full. Raises KafkaException as `Producer.produce`, which has the `options`."""
    while True:
        try:
            producer.produce(topic, value, key, partition, **options)
            return
        except BufferError:  # the broker is slower than the sender
            producer.poll(_POLL_S)
