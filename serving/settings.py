"""Settings of the server process, and nothing that changes an answer's numbers: those are in the model's spec and the manifest."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from infra.settings import ProcessSettings, Section
from schemas.limits import CANDIDATES_MAX, DEADLINE_MS_MAX, QUEUED_REQUESTS_MAX
from schemas.requests import DEADLINE_MS_DEFAULT
from serving.users.user_settings import UsersSection

PORT_DEFAULT = 8100


class ServeSection(Section):
    """Where the server listens and what it lets in."""

    host: str = "127.0.0.1"  # loopback; another address needs a token
    port: int = Field(PORT_DEFAULT, ge=0, le=65_535)  # 0: any free one
    grpc: bool = True  # the same model over gRPC, on a port of its own
    grpc_port: int | None = Field(None, ge=0, le=65_535)  # none given: the HTTP port + 1, any free one where that is 0
    token: SecretStr | None = None  # every request but the probes must carry it: `Authorization: Bearer <token>`
    allow_open: bool = False  # listen beyond loopback without a token
    tls_cert: Path | None = None  # PEM, the chain; with tls_key both ports speak TLS only
    tls_key: Path | None = None  # PEM
    address_file: Path | None = None  # gets one JSON object {"url", "grpc", "pid"} when the ports are open
    candidates_max: int = Field(20_000, ge=1, le=CANDIDATES_MAX)
    deadline_ms: int = Field(DEADLINE_MS_DEFAULT, ge=1, le=DEADLINE_MS_MAX)  # of a request that names none
    requests_max: int = Field(QUEUED_REQUESTS_MAX, ge=1, le=QUEUED_REQUESTS_MAX)  # in work at once; the next one is answered 429
    idle_s: float = Field(10.0, ge=0.1, le=3600)  # a connection that sends no request, or does not read its answer, for so long is closed
    access_log: bool = False  # one line per request at level info; otherwise at debug
    report_every_s: float = Field(10.0, ge=0, le=60)  # between two records of server-reports; 0: none, and nothing rolls back by itself
    # After SIGTERM: not ready, and still answering, until whoever asks for readiness sends elsewhere.
    leave_s: float = Field(0.0, ge=0, le=60)
    drain_s: float = Field(5.0, ge=0, le=60)  # then, for requests that are in work


class EngineSection(Section):
    """What the engine thread computes on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    slot_bytes: int = Field(0, ge=0)  # of each of the two slots; 0: 1.5 times the first version
    poll_s: float = Field(0.2, gt=0, le=60)  # between two looks at the control log
    parity_share: float = Field(0.001, ge=0, le=1)  # of the answers that the reference computes again beside the engine; 0: none
    parity_every_s: float = Field(10.0, ge=0)  # at most one in so long: the reference is slow and takes a core


class ServerSettings(ProcessSettings):
    """All settings of `aif serve`."""

    serve: ServeSection = Field(default_factory=ServeSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    users: UsersSection = Field(default_factory=UsersSection)
