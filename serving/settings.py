"""Settings of the server process. Nothing here changes the numbers in an answer: what does is in the model's spec and the manifest."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from infra.broker.record import recorded_address
from infra.kafka.security import KafkaConnection
from infra.settings import ProcessSettings, Section
from schemas.limits import CANDIDATES_MAX, DEADLINE_MS_MAX, QUEUED_REQUESTS_MAX
from schemas.requests import DEADLINE_MS_DEFAULT
from serving.relay.settings import RelaySection
from serving.users.user_settings import UsersSection

PORT_DEFAULT = 8100


class ServeSection(Section):
    """Where the server listens and which requests it accepts."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; beyond loopback a token is required")
    port: int = Field(PORT_DEFAULT, ge=0, le=65_535, description="Port of HTTP; 0: any free one")
    grpc: bool = Field(True, description="Serve the same model over gRPC, on a port of its own")
    grpc_port: int | None = Field(None, ge=0, le=65_535, description="Port of gRPC; none: the HTTP port + 1, or any free one if that is 0")
    token: SecretStr | None = Field(None, description="Bearer token that every request except the probes must carry")
    allow_open: bool = Field(False, description="Listen beyond loopback without a token")
    tls_cert: Path | None = Field(None, description="PEM file of the certificate chain; with tls_key both ports accept only TLS")
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key")
    address_file: Path | None = Field(None, description="File that gets one JSON object {url, grpc, pid} when the ports are open")
    candidates_max: int = Field(20_000, ge=1, le=CANDIDATES_MAX, description="Candidates of one request")
    deadline_ms: int = Field(DEADLINE_MS_DEFAULT, ge=1, le=DEADLINE_MS_MAX, description="Deadline of a request that names none")
    requests_max: int = Field(
        QUEUED_REQUESTS_MAX, ge=1, le=QUEUED_REQUESTS_MAX, description="Requests in work at once; the next one gets status 429"
    )
    # A connection is closed if it sends no request, or reads no answer, for this long; over HTTP after a second if new clients wait and connections have all
    # of the port's places (4,096, or a quarter of the process's files). A pool of connections should give up idle ones earlier, or now and then a request is
    # sent on one that is being closed.
    idle_s: float = Field(10.0, ge=0.1, le=3600, description="Time without a request or a read after which a connection is closed")
    access_log: bool = Field(False, description="Log a line per request at level info instead of debug")
    broker_silent_s_max: float = Field(
        30.0, ge=6, le=86400, description="Time without an answer of the broker before answers name `broker_silent`"
    )
    # Answers of the JSON routes, with the histories that they were computed from, for `aif verify-answers FILE`; only those that made their user half
    # themselves. One object a line, at most one in record_every_s, at most record_answers_max until the next start.
    record_file: Path | None = Field(None, description="File to which answers are appended for `aif verify-answers`")
    record_every_s: float = Field(1.0, ge=0, le=3600, description="Least time between two recorded answers")
    record_answers_max: int = Field(1_000, ge=1, le=1_000_000, description="Answers recorded until the next start")
    report_every_s: float = Field(
        10.0, ge=0, le=60, description="Time between two records of server-reports; 0: no reports, so no automatic rollback"
    )
    # After SIGTERM: how long to answer while not ready, so that load balancers can send requests elsewhere. Each answer closes its connection meanwhile:
    # without it, a server that ends cuts the request of every second busy connection, which its client had just sent.
    leave_s: float = Field(0.25, ge=0, le=60, description="Time to answer while not ready after SIGTERM, so that load balancers move on")
    drain_s: float = Field(5.0, ge=0, le=60, description="Time to wait for running requests after that")

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"{'http' if self.tls_cert is None else 'https'}://{self.host}:{self.port}"


class EngineSection(Section):
    """The engine: its device, the memory of versions, the checks of its answers."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device of the engine")
    slot_bytes: int = Field(0, ge=0, description="Memory of each of the two version slots at the start; 0: 1.5 times the first version")
    poll_s: float = Field(0.2, gt=0, le=60, description="Time between two reads of the control log")
    parity_share: float = Field(0.001, ge=0, le=1, description="Share of answers that the reference recomputes; 0: none")
    parity_every_s: float = Field(10.0, ge=0, description="Least time between two recomputed answers")


class ServerSettings(ProcessSettings):
    """All settings of `aif serve`."""

    serve: ServeSection = Field(default_factory=ServeSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    users: UsersSection = Field(default_factory=UsersSection)
    relay: RelaySection = Field(default_factory=RelaySection)

    def connection(self) -> KafkaConnection:
        """As of every process; but where no broker is named, the address that the local one had last will do, because a server starts without it."""
        return KafkaConnection(self.kafka.bootstrap_servers or recorded_address(self.broker.data_dir, running=False), self.kafka_security)
