"""The encoders of versions, and which versions have none because the index store has damaged or lost their checkpoint.

Invariant: a copy that could not be read is read again only after a pause, and is used as soon as it can be.
"""

from collections.abc import Iterable

from infra.clock import Clock
from schemas.errors import AifError, Corrupted
from schemas.index.control import VersionStatus
from streams.encoder_protocol import Encoder, Encoders


class ReadableEncoders:
    """See the module. Belongs to the reconciling thread."""

    def __init__(self, encoders: Encoders, clock: Clock, retry_s: float) -> None:
        self._encoders, self._clock, self._retry_s = encoders, clock, retry_s
        self._lost: dict[int, tuple[Corrupted, float]] = {}  # and when to read again

    @property
    def fingerprint(self) -> str:
        """The encoder fingerprint of this process."""
        return self._encoders.fingerprint

    def get(self, version: int, checkpoint_sha256: str) -> Encoder:
        """The encoder of a version. Raises Corrupted (`checkpoint_damaged`), and what else the store raises."""
        error, retry_at = self._lost.get(version, (None, 0.0))
        if error is not None and self._clock.monotonic() < retry_at:
            raise error
        try:
            encoder = self._encoders.get(version, checkpoint_sha256)
        except Corrupted as found:
            self._lost[version] = found, self._clock.monotonic() + self._retry_s
            raise
        self._lost.pop(version, None)
        return encoder

    def why_none(self, version: int) -> str:
        """Why a shard of this process continues without rows of a version."""
        return str(self._lost[version][0]) if version in self._lost else f"this worker's encoder is {self.fingerprint}"

    def find_lost(self, receiving: Iterable[VersionStatus]) -> dict[int, str]:
        """Those of the versions whose checkpoint could not be read when it was last tried, and why. Due ones are tried again."""
        wanted = {status.version: status for status in receiving}
        for version in list(self._lost):
            try:
                if version in wanted:
                    self.get(version, wanted[version].checkpoint_sha256)
                else:
                    del self._lost[version]
            except AifError:
                continue
        return {version: error.message for version, (error, _) in self._lost.items()}
