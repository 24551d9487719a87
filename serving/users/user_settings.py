"""Settings of what a server knows of users: its view of their topics, and the states of call 1 it keeps."""

from pathlib import Path

from pydantic import Field, SecretStr

from infra.folders import user_data_dir
from infra.settings import Section
from schemas.limits import MIB, USER_STATES_MAX
from serving.core.admission import QUEUED_WORK_MAX


class UsersSection(Section):
    """The server's own view of users, and the states of call 1 it keeps."""

    # One RocksDB directory a server, made again from the log when it is lost; servers on one host share the folder, each with a directory of its own.
    data_dir: Path = Field(default_factory=lambda: user_data_dir() / "users")
    users_max: int = Field(100_000_000, ge=1)  # on disk
    decoded_users_max: int = Field(10_000, ge=1)  # in memory, with at most this many behaviours together (20 bytes each, 250 with features)
    decoded_behaviours_max: int = Field(500_000, ge=1)
    states_max: int = Field(USER_STATES_MAX, ge=1, le=USER_STATES_MAX)
    states_bytes_max: int = Field(512 * MIB, ge=MIB)
    states_ttl_s: float = Field(600.0, gt=0)  # an older state is not used, also not for want of a better one
    # With a key, call 1 hands out a user's state on request, signed with it, and call 2 takes it back: any server with the same key and index does.
    carried_state_key: SecretStr | None = Field(None, min_length=16)
    # Times the mean work that may wait for the engine; a request beyond is refused at once.
    queued_work_max: float = Field(QUEUED_WORK_MAX, ge=1)
