"""A broker with TLS, logins and an authorizer, and the certificates of its clients. All are made for the test run that asks for them."""

import base64
import datetime as dt
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from infra.broker.properties import SecureListeners
from infra.broker.server import start_broker
from infra.kafka.security import KafkaConnection, KafkaSecurity
from infra.processes import free_ports

PASSWORD = "a secret of tests"
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Authority:
    """A certificate authority whose files are in `folder`."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _issue(self.folder / self.name, self.name, None)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate and of its key, for a client or a broker on loopback."""
        _issue(self.folder / name, name, self.folder / self.name)
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


def _issue(stem: Path, name: str, issuer: Path | None) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer: Any = key
    signed_by = subject
    if issuer is not None:
        signer = serialization.load_pem_private_key(issuer.with_suffix(".key").read_bytes(), None)
        signed_by = x509.load_pem_x509_certificate(issuer.with_suffix(".pem").read_bytes()).subject
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    built = (
        x509.CertificateBuilder(
            signed_by, subject, key.public_key(), x509.random_serial_number(), now - dt.timedelta(1), now + dt.timedelta(9)
        )
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    stem.with_suffix(".pem").write_bytes(built.sign(signer, hashes.SHA256()).public_bytes(pem))
    stem.with_suffix(".key").write_bytes(key.private_bytes(pem, pkcs8, plain))


@dataclass(frozen=True)
class SecureBroker:
    """`plain` is the address of its superuser; `ports` are those of the other protocols."""

    authority: Authority
    plain: str
    ports: dict[str, int]
    folder: Path

    def scram(self, user: str, password: str = PASSWORD, **more: Any) -> KafkaConnection:
        """A login over TLS."""
        values = {"protocol": "SASL_SSL", "ca_file": self.authority.file, "username": user, "password": password, **more}
        return KafkaConnection(f"127.0.0.1:{self.ports['SASL_SSL']}", KafkaSecurity.model_validate(values))

    def certificate(self, name: str) -> KafkaConnection:
        """A client that its certificate names."""
        cert, key = self.authority.issue(name)
        return self.over_tls(cert_file=cert, key_file=key)

    def over_tls(self, **values: Any) -> KafkaConnection:
        security = KafkaSecurity.model_validate({"protocol": "SSL", "ca_file": self.authority.file, **values})
        return KafkaConnection(f"127.0.0.1:{self.ports['SSL']}", security)

    def token(self, **values: Any) -> KafkaConnection:
        """A login with a token over TLS."""
        section = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "ca_file": self.authority.file, **values}
        return KafkaConnection(f"127.0.0.1:{self.ports['SASL_SSL']}", KafkaSecurity.model_validate(section))

    def add_users(self, *names: str) -> None:
        """Users with both SCRAM mechanisms and one password."""
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 2})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            changes = [UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 4096), PASSWORD.encode()) for name in names]
            for future in admin.alter_user_scram_credentials(changes).values():
                future.result()

    def allow(self, user: str, resource: str, pattern: str, *operations: str) -> None:
        """Rights of a user on a topic, group or the cluster. A pattern that ends in * is a prefix."""
        bindings = [AclBinding(*_right(user, resource, pattern, operation)) for operation in operations]
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 2})
        for future in admin.create_acls(bindings).values():
            future.result()

    def forbid(self, user: str, resource: str, pattern: str, operation: str) -> None:
        """Takes one of these rights away."""
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 2})
        for future in admin.delete_acls([AclBindingFilter(*_right(user, resource, pattern, operation))]).values():
            assert len(future.result()) == 1


def _right(user: str, resource: str, pattern: str, operation: str) -> tuple[Any, ...]:
    kind = ResourcePatternType.PREFIXED if pattern.endswith("*") else ResourcePatternType.LITERAL
    return ResourceType[resource], pattern.rstrip("*"), kind, f"User:{user}", "*", AclOperation[operation], AclPermissionType.ALLOW


@contextmanager
def run_secure_broker(folder: Path) -> Iterator[SecureBroker]:
    """A broker whose plain port on loopback is its superuser's; everyone else has the rights that `allow` gives."""
    authority = Authority(folder / "tls")
    cert, key = authority.issue("broker")
    (folder / "broker.pem").write_bytes(key.read_bytes() + cert.read_bytes())
    ssl_port, sasl_port = free_ports(2)
    token_login = f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    scram_login = f"{_LOGIN}.scram.ScramLoginModule required;"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram_login,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram_login,
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": token_login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    ports = {"SSL": ssl_port, "SASL_SSL": sasl_port}
    broker = start_broker(folder / "broker", more=SecureListeners(ports, properties))
    try:
        yield SecureBroker(authority, broker.bootstrap_servers, ports, folder)
    finally:
        broker.stop()


def unsecured_token(subject: str, life_s: float = 600.0) -> str:
    """A token without a signature (RFC 7515, appendix A.5), which Kafka's unsecured validator takes."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now_s = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now_s, 'exp': now_s + life_s})}."


@contextmanager
def run_token_endpoint(client_id: str, secret: str, subject: str) -> Iterator[str]:
    """An endpoint of the client credentials grant; its URL."""
    wanted = "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"]))
            right = self.headers["Authorization"] == wanted and b"grant_type=client_credentials" in form
            body = json.dumps(
                {"access_token": unsecured_token(subject), "expires_in": 600} if right else {"error": "invalid_client"}
            ).encode()
            self.send_response(200 if right else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
