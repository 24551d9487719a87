"""Settings of the server process. Nothing here changes the numbers in an answer: what does is in the model's spec and the manifest."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from infra.broker.record import recorded_address
from infra.folders import user_data_dir
from infra.kafka.security import KafkaConnection
from infra.settings import ProcessSettings, Section
from schemas.limits import CANDIDATES_MAX, DEADLINE_MS_MAX, MIB, QUEUED_REQUESTS_MAX, USER_STATES_MAX
from schemas.requests import DEADLINE_MS_DEFAULT
from serving.allocation.settings import AllocationSection
from serving.core.admission import FLOOD_QUEUE_MAX
from serving.relay.settings import RelaySection

PORT_DEFAULT = 8100


class UsersSection(Section):
    """The server's own view of users, and the states that it keeps between the calls."""

    # Each server has a RocksDB directory of its own in this folder. A lost one is built again from the log.
    data_dir: Path = Field(
        default_factory=lambda: user_data_dir() / "users", description="Folder in which each server has a RocksDB directory of its own"
    )
    users_max: int = Field(100_000_000, ge=1, description="Users on disk")
    decoded_users_max: int = Field(10_000, ge=1, description="Users whose history is in memory")
    decoded_behaviours_max: int = Field(500_000, ge=1, description="Behaviours of all users in memory")
    states_max: int = Field(USER_STATES_MAX, ge=1, le=USER_STATES_MAX, description="States of call 1 that are kept")
    states_bytes_max: int = Field(512 * MIB, ge=MIB, description="Memory of the kept states")
    states_ttl_s: float = Field(600.0, gt=0, description="Age at which a kept state is no longer used")
    # With a key, call 1 gives the user's state, signed, to a client that asks for it. Any server with the same key and index accepts it in call 2.
    carried_state_key: SecretStr | None = Field(
        None, min_length=16, description="Key that signs states carried by clients; none: no states are carried"
    )


class ServeSection(Section):
    """Where the server listens and which requests it accepts."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; beyond loopback a token is required")
    port: int = Field(PORT_DEFAULT, ge=0, le=65_535, description="Port of HTTP; 0: any free one")
    grpc: bool = Field(True, description="Serve the same model over gRPC, on a port of its own")
    grpc_port: int | None = Field(None, ge=0, le=65_535, description="Port of gRPC; none: the HTTP port + 1, or any free one if that is 0")
    token: SecretStr | None = Field(None, description="Bearer token that every request except the probes must carry")
    allow_open: bool = Field(False, description="Listen beyond loopback without a token")
    tls_cert: Path | None = Field(
        None,
        description="PEM file of the certificate chain; with tls_key both ports accept only TLS. Read at the start: restart the server after a renewal",
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key")
    address_file: Path | None = Field(None, description="File that gets one JSON object {url, grpc, pid} when the ports are open")
    candidates_max: int = Field(20_000, ge=1, le=CANDIDATES_MAX, description="Candidates of one request")
    deadline_ms: int = Field(DEADLINE_MS_DEFAULT, ge=1, le=DEADLINE_MS_MAX, description="Deadline of a request that names none")
    requests_max: int = Field(
        QUEUED_REQUESTS_MAX, ge=1, le=QUEUED_REQUESTS_MAX, description="Requests in work at once; the next one gets status 429"
    )
    flood_queue_max: float = Field(
        FLOOD_QUEUE_MAX,
        ge=1,
        description="Work that may wait for the engine in a flood, in multiples of a request's mean work; more is refused",
    )
    # A connection is closed if it sends no request, or reads no answer, for this long. Over HTTP it is a second if new clients wait and all of the port's
    # places are taken (4,096, or a quarter of the process's files). A pool of connections should give up idle ones earlier. Otherwise now and then a request
    # is sent on one that is being closed.
    idle_s: float = Field(10.0, ge=0.1, le=3600, description="Time without a request or a read after which a connection is closed")
    access_log: bool = Field(False, description="Log a line per request at level info instead of debug")
    broker_silent_s_max: float = Field(
        30.0, ge=6, le=86400, description="Time without an answer of the broker before answers name `broker_silent`"
    )
    statistics_age_s_max: float = Field(
        30.0, ge=0, le=86400, description="Age of an item statistic above which answers name `statistics_behind`; 0: never"
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

    device: Literal["cpu", "cuda"] = Field("cpu", description="Device of the engine; the code for cuda has not run on a GPU yet")
    arena_bytes: int = Field(0, ge=0, description="Memory of each of the two version arenas at the start; 0: 1.5 times the first version")
    poll_s: float = Field(0.2, gt=0, le=60, description="Time between two reads of the control log")
    parity_share: float = Field(0.001, ge=0, le=1, description="Share of answers that the reference recomputes; 0: none")
    parity_every_s: float = Field(10.0, ge=0, description="Least time between two recomputed answers")


class ServerSettings(ProcessSettings):
    """All settings of `aif serve`."""

    serve: ServeSection = Field(default_factory=ServeSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    users: UsersSection = Field(default_factory=UsersSection)
    relay: RelaySection = Field(default_factory=RelaySection)
    allocation: AllocationSection = Field(default_factory=AllocationSection)

    def connection(self) -> KafkaConnection:
        """As of every process; but where no broker is named, the address that the local one had last will do, because a server starts without it."""
        return KafkaConnection(self.kafka.bootstrap_servers or recorded_address(self.broker.data_dir, running=False), self.kafka_security)
