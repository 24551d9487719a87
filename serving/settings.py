"""Settings of the server process. Nothing here changes the numbers in an answer: what does is in the model's spec and the manifest."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from infra.broker.record import recorded_address
from infra.settings import ProcessSettings, Section
from schemas.limits import CANDIDATES_MAX, DEADLINE_MS_MAX, QUEUED_REQUESTS_MAX
from schemas.requests import DEADLINE_MS_DEFAULT
from serving.users.user_settings import UsersSection

PORT_DEFAULT = 8100


class ServeSection(Section):
    """Where the server listens and which requests it accepts."""

    host: str = Field("127.0.0.1", min_length=1)  # loopback; another address needs a token
    port: int = Field(PORT_DEFAULT, ge=0, le=65_535)  # 0 = any free port
    grpc: bool = True  # the same model over gRPC, on a port of its own
    grpc_port: int | None = Field(None, ge=0, le=65_535)  # None = the HTTP port + 1, or any free port if that is 0
    token: SecretStr | None = None  # every request except the probes must carry it: `Authorization: Bearer <token>`
    allow_open: bool = False  # listen beyond loopback without a token
    tls_cert: Path | None = None  # PEM file with the chain; with tls_key both ports accept only TLS
    tls_key: Path | None = None  # PEM; both are read at the start, so a renewed pair needs a restart
    address_file: Path | None = None  # gets one JSON object {"url", "grpc", "pid"} when the ports are open
    candidates_max: int = Field(20_000, ge=1, le=CANDIDATES_MAX)
    deadline_ms: int = Field(DEADLINE_MS_DEFAULT, ge=1, le=DEADLINE_MS_MAX)  # for a request that names none
    requests_max: int = Field(QUEUED_REQUESTS_MAX, ge=1, le=QUEUED_REQUESTS_MAX)  # in work at once; the next one gets 429
    # A connection is closed if it sends no request, or reads no answer, for this long; over HTTP after a second if new clients wait and connections have all
    # of the port's places (4,096, or a quarter of the process's files). A pool of connections should give up idle ones earlier, or now and then a request is
    # sent on one that is being closed.
    idle_s: float = Field(10.0, ge=0.1, le=3600)
    access_log: bool = False  # log a line per request of both ports at level info instead of debug
    broker_silent_s_max: float = Field(
        30.0, ge=6, le=86400
    )  # without an answer of the broker (asked every 5 s) before answers name `broker_silent`
    # Answers of the JSON routes, with the histories that they were computed from, for `aif verify-answers FILE`; only those that made their user half
    # themselves. One object a line, at most one in record_every_s, at most record_answers_max until the next start.
    record_file: Path | None = None
    record_every_s: float = Field(1.0, ge=0, le=3600)
    record_answers_max: int = Field(1_000, ge=1, le=1_000_000)
    report_every_s: float = Field(10.0, ge=0, le=60)  # between two records of server-reports; 0 = no reports, so no automatic rollback
    # After SIGTERM: how long to answer while not ready, so that load balancers can send requests elsewhere. Each answer closes its connection meanwhile:
    # without it, a server that ends cuts the request of every second busy connection, which its client had just sent.
    leave_s: float = Field(0.25, ge=0, le=60)
    drain_s: float = Field(5.0, ge=0, le=60)  # after that: how long to wait for running requests


class EngineSection(Section):
    """The engine: its device, the memory of versions, the checks of its answers."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    slot_bytes: int = Field(
        0, ge=0
    )  # of each of the two slots at the start; 0 = 1.5 times the first version. A version that needs more gets a larger one
    poll_s: float = Field(0.2, gt=0, le=60)  # between two reads of the control log
    parity_share: float = Field(0.001, ge=0, le=1)  # share of answers that the reference recomputes beside the engine; 0 = none
    parity_every_s: float = Field(10.0, ge=0)  # at least this long between two: the reference is slow and uses a whole core


class ServerSettings(ProcessSettings):
    """All settings of `aif serve`."""

    serve: ServeSection = Field(default_factory=ServeSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    users: UsersSection = Field(default_factory=UsersSection)

    def bootstrap_servers(self) -> str:
        """As of every process; but where no broker is named, the address that the local one had last will do, because a server starts without it."""
        return self.kafka.bootstrap_servers or recorded_address(self.broker.data_dir, running=False)
