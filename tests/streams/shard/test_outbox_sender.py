"""The sender of the outbox on a real broker: what counts as delivered after a connection was lost."""

import gc
import threading
import weakref

import pytest
from confluent_kafka import KafkaError

from infra.kafka.admin import apply_topics
from infra.processes import free_ports, wait_until
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.topics import INDEX_DELTAS
from streams.shard.outbox import OutboxEntry
from streams.shard.outbox_sender import OutboxSender
from tests.infra.kafka.deleted_topics import delete_topics


def test_after_a_lost_connection_nothing_is_confirmed_before_the_topics_were_compared(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    answers: list[AifError | None] = [Unavailable("kafka_unreachable", "not yet")]
    confirmed: list[int] = []
    failed: list[AifError] = []
    asked = threading.Semaphore(0)

    def check() -> None:
        asked.release()
        if (answer := answers[-1]) is not None:
            raise answer

    sender = OutboxSender(bootstrap_servers, topic_prefix, on_confirmed=confirmed.append, on_failure=failed.append, check_topics=check)

    def send(sequence: int) -> None:
        sender.send([OutboxEntry(sequence, INDEX_DELTAS, 0, b"", b"a delta")])
        wait_until(lambda: not sender._waiting, 30, "the broker's acknowledgement")

    send(0)
    wait_until(lambda: confirmed == [0], 30, "the confirmation")
    sender._note_error(KafkaError(KafkaError._TRANSPORT))
    send(1)
    assert confirmed == [0] and asked.acquire(timeout=30)
    answers.append(None)
    wait_until(lambda: confirmed == [0, 1], 30, "the confirmation of entries that were acknowledged meanwhile")
    answers.append(Incompatible("other_index", "another cluster"))
    sender._note_error(KafkaError(KafkaError._TRANSPORT))
    send(2)
    wait_until(lambda: bool(failed), 30, "the failure")
    assert confirmed == [0, 1]
    sender.close()


def test_a_topic_that_is_gone_ends_the_process_with_where_to_look_and_not_with_how_to_make_another(
    bootstrap_servers: str, topic_prefix: str
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    failed: list[AifError] = []
    sender = OutboxSender(bootstrap_servers, topic_prefix, on_confirmed=lambda _: None, on_failure=failed.append)
    delete_topics(bootstrap_servers, [topic_prefix + INDEX_DELTAS])
    sender.send([OutboxEntry(0, INDEX_DELTAS, 0, b"", b"a delta")])
    wait_until(lambda: failed, 60, "the refusal")
    assert failed[0].code == "outbox_refused" and "`aif doctor`" in failed[0].message and "aif topics" not in failed[0].message
    sender.close()


def test_an_unexpected_error_of_its_thread_ends_the_process_because_nothing_would_be_confirmed_any_more(
    bootstrap_servers: str, topic_prefix: str
) -> None:
    failed = list[BaseException]()

    def tick() -> None:
        raise AssertionError("the thread of shard 0 has ended")

    sender = OutboxSender(bootstrap_servers, topic_prefix, on_confirmed=lambda _: None, on_failure=failed.append, on_tick=tick)
    wait_until(lambda: failed, 30, "the failure")
    assert len(failed) == 1 and "has ended" in str(failed[0])
    sender.close()


def test_a_closed_sender_without_a_broker_sends_nothing_later_and_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client ends with its last reference, and every undelivered record would hold one."""
    monkeypatch.setattr("streams.shard.outbox_sender._FLUSH_S_MAX", 0.1)
    failed, confirmed = list[BaseException](), list[int]()
    sender = OutboxSender(f"127.0.0.1:{free_ports(1)[0]}", "p.", on_confirmed=confirmed.append, on_failure=failed.append)
    sender.send([OutboxEntry(0, INDEX_DELTAS, 0, b"", b"a delta")])
    sender.close()
    held = weakref.ref(sender)
    del sender
    gc.collect()
    assert held() is None and not failed and not confirmed


def test_the_end_of_a_sender_does_not_wait_for_a_slow_broker_that_is_asked_for_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.shard.outbox_sender._FLUSH_S_MAX", 0.1)
    monkeypatch.setattr("streams.shard.outbox_sender._THREAD_END_S_MAX", 0.1)
    asked, answered, confirmed = threading.Event(), threading.Event(), list[int]()

    def check() -> None:
        asked.set()
        assert answered.wait(30)

    def ignore(_: object) -> None: ...

    address = f"127.0.0.1:{free_ports(1)[0]}"
    sender = OutboxSender(address, "p.", on_confirmed=confirmed.append, on_failure=ignore, check_topics=check)
    sender._note_error(KafkaError(KafkaError._TRANSPORT))
    assert asked.wait(30)
    sender.close()
    assert sender._thread.is_alive()
    answered.set()
    wait_until(lambda: not sender._thread.is_alive(), 30, "the end of its thread")
    assert not confirmed
