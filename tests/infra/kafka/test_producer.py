"""Every producer is set up in one place, so none makes topics by sending to them, or partitions otherwise."""

from pathlib import Path

from confluent_kafka import KafkaError

from infra.kafka.producer import open_producer

ROOT = Path(__file__).parents[3]


def test_no_other_file_sets_up_a_producer() -> None:
    made = [
        path for room in ("infra", "streams", "serving", "lab") for path in (ROOT / room).rglob("*.py") if " Producer(" in path.read_text()
    ]
    assert [path.relative_to(ROOT).as_posix() for path in made] == ["infra/kafka/producer.py"]


def test_a_record_for_a_topic_that_is_not_there_is_refused_and_not_kept_for_ever(bootstrap_servers: str, topic_prefix: str) -> None:
    errors: list[KafkaError | None] = []
    producer = open_producer(bootstrap_servers, 2.0)
    producer.produce(f"{topic_prefix}nothing", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20.0) == 0
    assert errors[0] is not None and errors[0].code() in {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    assert not {f"{topic_prefix}nothing"} & set(producer.list_topics(timeout=10.0).topics)
