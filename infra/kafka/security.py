"""How clients connect to Kafka: TLS, authentication, and the one function for each library that turns settings into a client's configuration.

Invariants: no other file names a broker address or a secret to a client. Secrets are never part of a message. Files with secrets are read when a client is
made, so a client that is made later has the new ones.
"""

import functools
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from infra.kafka.oauth import TokenSource
from schemas.errors import AifError, Misconfigured, Unavailable

_REPEAT_S = 30.0  # between two log lines about the same refusal
REFUSALS = frozenset({"kafka_login_failed", "kafka_tls_failed", "kafka_not_authorized"})  # codes of `refusal`
_log = logging.getLogger("aif.kafka.security")


class KafkaSecurity(BaseModel):
    """TLS and authentication of every Kafka client of this process. PEM files throughout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How clients connect: with or without TLS, with or without a login"
    )
    allow_plain_text: bool = Field(False, description="Connect without TLS to a broker beyond loopback")
    ca_file: Path | None = Field(
        None, description="PEM file of the authorities that may sign the brokers' certificates; none: those of the system"
    )
    cert_file: Path | None = Field(None, description="PEM file of the client's certificate chain; goes with key_file")
    key_file: Path | None = Field(None, description="PEM file of the certificate's key")
    key_password: SecretStr | None = Field(None, description="Password of the key")
    key_password_file: Path | None = Field(None, description="File with the password of the key")
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        "SCRAM-SHA-512", description="How the client logs in with one of the two SASL protocols"
    )
    username: str = Field("", description="User of SCRAM")
    password: SecretStr | None = Field(None, description="Password of SCRAM")
    password_file: Path | None = Field(None, description="File with the password of SCRAM")
    # OAUTHBEARER: a token from an endpoint (client credentials grant), or one that another program keeps in a file.
    token_url: str = Field("", description="Endpoint of OAuth tokens (client credentials grant)")
    client_id: str = Field("", description="Client id at the token endpoint")
    client_secret: SecretStr | None = Field(None, description="Client secret at the token endpoint")
    client_secret_file: Path | None = Field(None, description="File with the client secret")
    scope: str = Field("", description="Scope that is asked of the token endpoint")
    token_file: Path | None = Field(None, description="File with an OAuth token that another program renews")

    @model_validator(mode="after")
    def _check(self) -> "KafkaSecurity":
        for secret in ("key_password", "password", "client_secret"):
            if getattr(self, secret) is not None and getattr(self, f"{secret}_file") is not None:
                raise ValueError(f"{secret} and {secret}_file are both given; give one")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; give both or none")
        if not self.tls and (self.ca_file or self.cert_file):
            raise ValueError(f"protocol {self.protocol} uses no certificates; set protocol to SSL or SASL_SSL")
        if not self.sasl and (self.username or self.token_url or self.token_file):
            raise ValueError(f"protocol {self.protocol} has no login; set protocol to SASL_SSL")
        if self.sasl and self.mechanism == "OAUTHBEARER":
            if bool(self.token_url) == bool(self.token_file):
                raise ValueError("mechanism OAUTHBEARER takes either token_url, client_id and a secret, or token_file")
            if self.token_url and not (self.client_id and (self.client_secret or self.client_secret_file)):
                raise ValueError("token_url takes client_id, and client_secret or client_secret_file")
        elif self.sasl and not (self.username and (self.password or self.password_file)):
            raise ValueError(f"mechanism {self.mechanism} takes username, and password or password_file")
        return self

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether the client logs in."""
        return self.protocol.startswith("SASL")

    @property
    def principal(self) -> str:
        """Who the broker takes this client for, as far as the settings say."""
        if self.sasl:
            return f"User:{self.username}" if self.username else "the subject of the OAuth token"
        return f"the subject of {self.cert_file}" if self.cert_file else "User:ANONYMOUS"

    def secret(self, name: str) -> str | None:
        """The value of `name`, from the settings or from its file; None without either. Raises Misconfigured (`kafka_secret_unreadable`)."""
        value: SecretStr | None = getattr(self, name)
        path: Path | None = getattr(self, f"{name}_file")
        if value is not None or path is None:
            return None if value is None else value.get_secret_value()
        try:
            return path.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(
                "kafka_secret_unreadable", f"kafka_security.{name}_file {path} cannot be read ({error}); name a readable file"
            ) from error

    def ssl_context(self) -> ssl.SSLContext:
        """TLS with this section's certificates; host names are verified. Raises Misconfigured (`kafka_certificate_unusable`)."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            if self.cert_file is not None and self.key_file is not None:
                # Without a password the library would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.cert_file, self.key_file, self.secret("key_password") or "")
        except (OSError, ValueError) as error:
            files = ", ".join(str(path) for path in (self.ca_file, self.cert_file, self.key_file) if path is not None)
            raise Misconfigured(
                "kafka_certificate_unusable",
                f"the TLS files {files} cannot be used: {error}; kafka_security wants readable PEM files, and the key's own password",
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """A cluster and how to connect to it. Raises Misconfigured (`kafka_plain_text`) for a broker beyond loopback without TLS, unless the section allows it."""

    bootstrap_servers: str
    security: KafkaSecurity = field(default_factory=KafkaSecurity)

    def __post_init__(self) -> None:
        if self.security.tls or self.security.allow_plain_text:
            return
        if far := [address for address in self.bootstrap_servers.split(",") if address.strip() and not _is_loopback(address)]:
            raise Misconfigured(
                "kafka_plain_text",
                f"the broker {far[0]} is beyond loopback, and protocol {self.security.protocol} sends everything unencrypted; set "
                "AIF_KAFKA_SECURITY__PROTOCOL=SASL_SSL or SSL, or AIF_KAFKA_SECURITY__ALLOW_PLAIN_TEXT=true in a network that you trust",
            )

    def __str__(self) -> str:
        return self.bootstrap_servers


Bootstrap = str | KafkaConnection  # an address alone: no TLS, no login


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """The topics of one deployment: a cluster, and the prefix of their names."""

    bootstrap: Bootstrap
    topic_prefix: str


def client_config(bootstrap: Bootstrap, on_error: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """What every confluent-kafka client has in common: addresses, TLS, login, log level, and an error callback that logs refusals and then calls `on_error`.

    Raises Misconfigured (`kafka_plain_text`, `kafka_secret_unreadable`, `kafka_certificate_unusable`)."""
    connection = as_connection(bootstrap)
    security = connection.security
    config: dict[str, Any] = {
        "bootstrap.servers": connection.bootstrap_servers,
        "log_level": 2,
        "error_cb": _log_refusals(connection, on_error),
    }
    if security.protocol != "PLAINTEXT":
        config["security.protocol"] = security.protocol
    if security.tls:
        security.ssl_context()  # librdkafka's own errors about files name no setting
        files = {"ssl.ca.location": security.ca_file, "ssl.certificate.location": security.cert_file, "ssl.key.location": security.key_file}
        config |= {name: str(path) for name, path in files.items() if path is not None}
        if (key_password := security.secret("key_password")) is not None:
            config["ssl.key.password"] = key_password
    if security.sasl:
        config["sasl.mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            config |= _confluent_tokens(security)
        else:
            config |= {"sasl.username": security.username, "sasl.password": security.secret("password")}
    return config


def refusal(bootstrap: Bootstrap, error: Any, what: str) -> AifError | None:
    """The error for a client that the broker, or TLS, refuses: `error` is a KafkaError of `what` (a topic, a group). None for any other error."""
    from confluent_kafka import KafkaError

    code, text, address = error.code(), error.str(), str(bootstrap)
    security = as_connection(bootstrap).security
    if code == KafkaError._AUTHENTICATION:
        next_step = "correct AIF_KAFKA_SECURITY__USERNAME and its password, and see that the broker has this user"
        if security.mechanism == "OAUTHBEARER":
            next_step = (
                "correct the token_url, client_id, secret or token_file of [kafka_security], and see that the broker trusts its issuer"
            )
        return Unavailable(
            "kafka_login_failed", f"broker {address} refused {security.principal} with {security.mechanism}: {text}; {next_step}"
        )
    if code == KafkaError._SSL:
        trusted = security.ca_file or "the system's authorities"
        next_step = "set AIF_KAFKA_SECURITY__CA_FILE to the authority that signed the broker's certificate, and CERT_FILE to one that the broker trusts"
        return Unavailable("kafka_tls_failed", f"TLS with broker {address} failed, trusting {trusted}: {text}; {next_step}")
    if code in _unauthorized():
        return not_authorized(bootstrap, f"{what}: {text}")
    return None


def not_authorized(bootstrap: Bootstrap, what: str) -> Unavailable:
    """The error for a principal that lacks a right."""
    principal = as_connection(bootstrap).security.principal
    return Unavailable(
        "kafka_not_authorized",
        f"broker {bootstrap} refused {principal}, {what}; grant it the right: docs/how-to/kafka-security.md lists those of each role",
    )


def _log_refusals(connection: KafkaConnection, then: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """An error callback that logs each kind of refusal once in a while: librdkafka itself retries without a log line."""
    logged_s: dict[int, float] = {}

    def note(error: Any) -> None:
        code, now = error.code(), time.monotonic()
        if now > logged_s.get(code, float("-inf")) + _REPEAT_S and (refused := refusal(connection, error, "a request")):
            logged_s[code] = now
            _log.error("%s", refused)
        if then is not None:
            then(error)

    return note


def _unauthorized() -> frozenset[int]:
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }
    )


def _confluent_tokens(security: KafkaSecurity) -> dict[str, Any]:
    """librdkafka asks an endpoint by itself. With a callback of ours confluent-kafka sleeps for a second in each new client, so only a file has one."""
    if security.token_file is not None:
        source = token_source(security)
        source.fetch()  # its error names the file; that of the client does not
        return {"oauth_cb": lambda _: source.fetch()}
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": security.token_url,
        "sasl.oauthbearer.client.id": security.client_id,
        "sasl.oauthbearer.client.secret": security.secret("client_secret"),
        **({"sasl.oauthbearer.scope": security.scope} if security.scope else {}),
    }


@functools.lru_cache(16)
def token_source(security: KafkaSecurity) -> TokenSource:
    """One for all clients of a login, so that a token is fetched once."""
    return TokenSource(
        security.token_url, security.client_id, lambda: security.secret("client_secret") or "", security.scope, security.token_file
    )


def as_connection(bootstrap: Bootstrap) -> KafkaConnection:
    """The connection; of an address alone, a plain one."""
    return bootstrap if isinstance(bootstrap, KafkaConnection) else KafkaConnection(bootstrap)


def _is_loopback(address: str) -> bool:
    try:
        host = urlsplit("//" + address.strip().rpartition("://")[2]).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
