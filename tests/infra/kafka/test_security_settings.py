"""The section `kafka_security`: what it refuses, and what it never shows."""

from pathlib import Path

import pytest

from infra.kafka.aiokafka_options import aiokafka_options
from infra.kafka.security import KafkaConnection, KafkaSecurity, client_config
from infra.settings import InfraSettings, explain_settings, load_settings
from schemas.errors import Misconfigured
from streams.faust_shell import faust_broker
from tests.infra.kafka.secure_broker import Authority

ROOT = Path(__file__).parents[3]
FAR = {"AIF_KAFKA__BOOTSTRAP_SERVERS": "kafka-1.example.com:9093"}
LOGIN = {"AIF_KAFKA_SECURITY__PROTOCOL": "SASL_SSL", "AIF_KAFKA_SECURITY__USERNAME": "app"}


def load(**environment: str) -> InfraSettings:
    return load_settings(InfraSettings, environment=FAR | environment)


def test_plain_text_beyond_loopback_needs_a_setting_that_says_so() -> None:
    with pytest.raises(Misconfigured, match=r"kafka_plain_text.*kafka-1\.example\.com:9093.*ALLOW_PLAIN_TEXT"):
        load().connection()
    assert str(load(AIF_KAFKA_SECURITY__ALLOW_PLAIN_TEXT="true").connection()) == "kafka-1.example.com:9093"
    assert client_config(load(AIF_KAFKA_SECURITY__PROTOCOL="SSL").connection())["security.protocol"] == "SSL"


@pytest.mark.parametrize(
    "address", ["10.0.0.1:9092", "localhost:9092,kafka:9092", "[2001:db8::1]:9092", "localhost.example.com:1", "kafka", "[1:9092"]
)
def test_every_address_counts(address: str) -> None:
    with pytest.raises(Misconfigured, match="kafka_plain_text"):
        client_config(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9092", "localhost:9092,127.0.0.2:9092", "127.0.0.1:9092, ", "[::1]:9092", "localhost", "[::1]"]
)
def test_loopback_may_be_plain(address: str) -> None:
    assert client_config(address)["bootstrap.servers"] == address


def test_secrets_are_never_shown() -> None:
    environment = FAR | LOGIN | {"AIF_KAFKA_SECURITY__PASSWORD": "hunter2"}
    shown = {row.name: row.value for row in explain_settings(InfraSettings, environment)}
    assert shown["kafka_security.username"] == "app" and "hunter2" not in str(shown)
    settings = load_settings(InfraSettings, environment=environment)
    assert "hunter2" not in repr(settings) + str(settings.connection()) + repr(settings.connection())
    assert client_config(settings.connection())["sasl.password"] == "hunter2"


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"PASSWORD": "hunter2", "PASSWORD_FILE": "/a"}, "password and password_file are both given"),
        ({"CERT_FILE": "/a", "PASSWORD": "hunter2"}, "cert_file and key_file go together"),
        ({"USERNAME": ""}, "takes username, and password or password_file"),
        ({"PROTOCOL": "PLAINTEXT", "PASSWORD": "hunter2"}, "set protocol to SASL_SSL"),
        ({"PROTOCOL": "SASL_PLAINTEXT", "CA_FILE": "/a", "PASSWORD": "hunter2"}, "uses no certificates"),
        ({"MECHANISM": "OAUTHBEARER"}, "either token_url"),
        ({"MECHANISM": "OAUTHBEARER", "TOKEN_URL": "https://login"}, "token_url takes client_id"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(given: dict[str, str], rule: str) -> None:
    with pytest.raises(Misconfigured, match=r"setting_invalid: \[kafka_security\]") as caught:
        load(**LOGIN | {f"AIF_KAFKA_SECURITY__{name}": value for name, value in given.items()})
    assert rule in caught.value.message and "hunter2" not in caught.value.message


def test_a_misspelt_variable_gets_the_nearest_section() -> None:
    with pytest.raises(Misconfigured, match=r"did you mean AIF_KAFKA_SECURITY__\.\.\."):
        load(AIF_KAFKA_SECURITY_PROTOCOL="SSL")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(Misconfigured, match=rf"kafka_secret_unreadable.*password_file {gone}"):
        client_config(load(**LOGIN, AIF_KAFKA_SECURITY__PASSWORD_FILE=str(gone)).connection())
    with pytest.raises(Misconfigured, match=rf"kafka_certificate_unusable.*{gone}"):
        client_config(load(AIF_KAFKA_SECURITY__PROTOCOL="SSL", AIF_KAFKA_SECURITY__CA_FILE=str(gone)).connection())


def test_the_three_libraries_get_the_same_login(tmp_path: Path) -> None:
    security = KafkaSecurity(protocol="SASL_SSL", ca_file=Authority(tmp_path).file, username="app", password="hunter2")
    connection = KafkaConnection("a:1,b:2", security)
    confluent, aiokafka, faust = client_config(connection), aiokafka_options(connection), faust_broker(connection)
    credentials = faust["broker_credentials"]
    assert confluent["sasl.mechanism"] == aiokafka["sasl_mechanism"] == credentials.mechanism.value == "SCRAM-SHA-512"
    assert confluent["sasl.password"] == aiokafka["sasl_plain_password"] == credentials.password == "hunter2"
    assert confluent["security.protocol"] == aiokafka["security_protocol"] == credentials.protocol.value == "SASL_SSL"
    assert aiokafka["bootstrap_servers"] == ["a:1", "b:2"] and faust["broker"] == ["kafka://a:1", "kafka://b:2"]


def test_no_other_file_configures_a_client() -> None:
    named = ("bootstrap.servers", "kafka://", '"sasl.mechanism"')
    rooms = [path for room in ("aif", "infra", "lab", "streams", "serving") for path in (ROOT / room).rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in rooms if any(name in path.read_text() for name in named)]
    assert sorted(found) == ["infra/kafka/security.py", "streams/faust_shell.py"]  # the second gives Faust what aiokafka_options gives
    assert [p.name for p in rooms if "AIOKafkaClient(" in p.read_text() and "**aiokafka_options(" not in p.read_text()] == []
