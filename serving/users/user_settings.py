"""Settings of a server's knowledge of users: its view of the user topics, and the states that it keeps between the calls."""

from pathlib import Path

from pydantic import Field, SecretStr

from infra.folders import user_data_dir
from infra.settings import Section
from schemas.limits import MIB, USER_STATES_MAX
from serving.core.admission import QUEUED_WORK_MAX


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
    # With a key, call 1 gives the user's state to a client that asks for it, signed; any server with the same key and index accepts it in call 2.
    carried_state_key: SecretStr | None = Field(
        None, min_length=16, description="Key that signs states carried by clients; none: no states are carried"
    )
    # How much work may wait for the engine in a flood, in multiples of the mean work; a request beyond that is refused at once.
    queued_work_max: float = Field(
        QUEUED_WORK_MAX, ge=1, description="Work that may wait for the engine in a flood, in multiples of the mean work of a request"
    )
