"""Which version answers a request: the one of its token if that is resident, else the current one, unless the request is pinned.

Not here: versions coming and going (versions/version_follower.py), the wait for a watermark (watermark_wait.py).
"""

from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.requests import AtLeast
from schemas.token import VersionToken
from serving.calls.paced_engine import PacedEngine


def check_consistency(consistency: str | AtLeast, token: VersionToken | None) -> bool:
    """Whether the request is pinned to its token. Raises RejectedInput (`no_version_token`) if it is pinned and has no token."""
    if consistency == "pinned" and token is None:
        raise RejectedInput(
            "no_version_token", 'consistency "pinned" needs the version_token of an earlier answer; send it, or ask for "latest"'
        )
    return consistency == "pinned"


def choose_version(engine: PacedEngine, token: VersionToken | None, pinned: bool) -> VersionToken:
    """The version that answers: the token's if it is resident, else the current one.

    Raises Unavailable (`no_version`) if nothing is live yet, Incompatible (`version_gone`) if the request is pinned to a version that is not resident.
    That of another index is not.
    """
    current = engine.current
    if current is None:
        raise Unavailable("no_version", f"no version is live yet; {engine.why_none()}")
    if token is None:
        return current
    resident = engine.find_token(token.version)
    if resident is not None and token.is_compatible(resident):
        return resident
    if pinned:
        raise Incompatible("version_gone", f"the version of {token} is not resident (any more); the current version token is {current}")
    return current
