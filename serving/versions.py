"""Follows the control log: loads the version that should be served into the free slot, catches up its deltas, flips. (Signatures first.)"""

from infra.settings import KafkaSettings
from serving.engine.loop import Engine


class VersionFollower:
    """One thread beside the engine. Any error keeps the running version and is in `last_error`."""

    def __init__(self, engine: Engine, store_url: str, kafka: KafkaSettings, poll_s: float = 0.2, slot_bytes: int = 0) -> None: ...

    def start(self) -> None:
        """Starts the loader process and the thread."""

    def close(self) -> None:
        """Stops the thread, the delta followers and the loader process; releases the slots."""

    @property
    def ready(self) -> bool:
        """A version is live in the engine."""
        raise NotImplementedError

    @property
    def last_error(self) -> str:
        """Why the wanted version is not being served; empty if it is."""
        raise NotImplementedError

    @property
    def counters(self) -> dict[str, int]:
        """loads, load_failures, flips."""
        raise NotImplementedError
