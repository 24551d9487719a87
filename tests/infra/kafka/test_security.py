"""Clients over TLS and logins, against a real broker with an authorizer."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.admin import apply_topics, end_offsets, fetch_topics
from infra.kafka.log_gaps import LogGaps
from infra.kafka.publisher import Publisher
from infra.kafka.reader import read_topic
from infra.kafka.security import KafkaConnection
from infra.settings import InfraSettings, load_settings
from infra.tools.doctor import FAIL, examine
from schemas.errors import Unavailable
from schemas.topics import ITEM_FEATURES
from tests.infra.kafka.secure_broker import PASSWORD, Authority, SecureBroker, run_secure_broker, run_token_endpoint, unsecured_token


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with run_secure_broker(tmp_path_factory.mktemp("secure")) as broker:
        broker.add_users("reader", "stranger", "writer")
        apply_topics(broker.plain, "aif.", 1, 1)
        for user in ("reader", "writer"):
            broker.allow(user, "TOPIC", "aif.*", "DESCRIBE", "READ", "WRITE")
        yield broker


def talk(connection: KafkaConnection) -> None:
    """What the clients of all three libraries' set-ups do: ask, send, read, and look into a gap."""
    before = end_offsets(connection, f"aif.{ITEM_FEATURES}")[0]
    with Publisher(connection, "aif.", "test", 1, 1, "int64") as publisher:
        publisher.publish_item(1, 1, {})
    records = list(read_topic(connection, ITEM_FEATURES, start={0: before}, prefix="aif."))
    assert [record.offset for record in records] == [before]
    with LogGaps(connection) as gaps:
        assert gaps.skipped_to(f"aif.{ITEM_FEATURES}", 0, before, before + 1) == before


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_clients_log_in_with_a_password_over_tls(broker: SecureBroker, mechanism: str) -> None:
    talk(broker.scram("reader", mechanism=mechanism))


def test_a_password_comes_from_a_file(broker: SecureBroker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    talk(broker.scram("reader", password=None, password_file=tmp_path / "password"))


def test_clients_show_certificates(broker: SecureBroker) -> None:
    talk(broker.certificate("reader"))


def test_clients_fetch_tokens_from_an_endpoint(broker: SecureBroker) -> None:
    with run_token_endpoint("app", "s3cret", "reader") as url:
        talk(broker.token(token_url=url, client_id="app", client_secret="s3cret"))


def test_clients_read_tokens_from_a_file(broker: SecureBroker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(unsecured_token("reader"))
    connection = broker.token(token_file=tmp_path / "token")
    end = end_offsets(connection, f"aif.{ITEM_FEATURES}")[0]
    with LogGaps(connection) as gaps:
        assert gaps.skipped_to(f"aif.{ITEM_FEATURES}", 0, 0, end) == (0 if end else end)


def fail(connection: KafkaConnection, topic: str = f"aif.{ITEM_FEATURES}") -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        end_offsets(connection, topic, deadline_s=10.0)
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_a_wrong_password_is_named_with_its_user(broker: SecureBroker) -> None:
    error = fail(broker.scram("reader", "wrong"))
    assert error.code == "kafka_login_failed"
    assert "User:reader" in error.message and "AIF_KAFKA_SECURITY__USERNAME" in error.message


def test_an_unknown_authority_is_named(broker: SecureBroker, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other").file
    error = fail(broker.scram("reader", ca_file=other))
    assert error.code == "kafka_tls_failed" and str(other) in error.message and "AIF_KAFKA_SECURITY__CA_FILE" in error.message


def test_a_missing_right_is_named_with_user_and_topic(broker: SecureBroker) -> None:
    error = fail(broker.scram("stranger"))
    assert error.code == "kafka_not_authorized"
    assert "User:stranger" in error.message and f"topic aif.{ITEM_FEATURES}" in error.message and "kafka-security.md" in error.message


def test_topics_that_a_client_may_not_see_are_not_taken_for_missing_ones(broker: SecureBroker) -> None:
    with pytest.raises(Unavailable, match=r"kafka_not_authorized.*User:stranger"):
        fetch_topics(broker.scram("stranger"), "aif.", deadline_s=10.0)


def test_a_token_endpoint_that_refuses_is_named(broker: SecureBroker) -> None:
    with run_token_endpoint("app", "s3cret", "reader") as url:
        error = fail(broker.token(token_url=url, client_id="app", client_secret="wrong"))
    assert error.code == "kafka_login_failed" and "token" in error.message


def test_reading_and_sending_without_the_right_is_named(broker: SecureBroker) -> None:
    topic = f"aif.{ITEM_FEATURES}"
    broker.allow("half", "TOPIC", topic, "DESCRIBE")
    broker.add_users("half")
    half = broker.scram("half")
    with pytest.raises(Unavailable, match=rf"kafka_not_authorized.*User:half.*{topic}"):
        list(read_topic(half, ITEM_FEATURES, start={0: 0}, end={0: 1}, prefix="aif."))
    publisher = Publisher(half, "aif.", "test", 1, 1, "int64")
    try:
        with pytest.raises(Unavailable, match=rf"not_delivered.*User:half, topic {topic}"):
            publisher.publish_item(1, 1, {}).result(10)
    finally:
        with contextlib.suppress(Unavailable):
            publisher.close()


def test_the_doctor_names_the_missing_right_and_the_guide(broker: SecureBroker) -> None:
    stranger = broker.scram("stranger")
    environment = {
        "AIF_KAFKA__BOOTSTRAP_SERVERS": str(stranger),
        "AIF_KAFKA_SECURITY__PROTOCOL": "SASL_SSL",
        "AIF_KAFKA_SECURITY__CA_FILE": str(stranger.security.ca_file),
        "AIF_KAFKA_SECURITY__USERNAME": "stranger",
        "AIF_KAFKA_SECURITY__PASSWORD": PASSWORD,
        "AIF_INDEX__STORE": str(broker.folder / "index"),
    }
    findings = {finding.check: finding for finding in examine(load_settings(InfraSettings, environment=environment))}
    for check in ("broker", "topics"):
        assert findings[check].state == FAIL
        assert "kafka_not_authorized" in findings[check].found and "User:stranger" in findings[check].found
        assert "docs/how-to/kafka-security.md" in findings[check].next_step
    assert PASSWORD not in str(findings)
