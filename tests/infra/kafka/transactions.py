"""Producers with transactions, as publishers of other systems have them."""

from confluent_kafka import Producer

WAIT_S = 60


def open_transactional(bootstrap: str, name: str) -> Producer:
    """A producer of that name; an open transaction of an earlier one is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    return producer


def send(producer: Producer, topic: str, *values: bytes, commit: bool, partition: int = 0) -> None:
    """One transaction with these records."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush(WAIT_S)  # or an abort would drop them unsent
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)
