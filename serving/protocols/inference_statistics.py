"""How many inferences each version answered and how long they took, in the form of Triton's statistics extension.

A failed request counts under the version it named, else under the current one. Queue time and compute time are not separated, because both happen in one
turn of the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_VERSIONS_MAX = 64  # kept at once; the least recently used one is dropped first
_NS = 1_000_000_000


@dataclass(slots=True)
class _Counts:
    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    last_ms: int = 0


class InferenceStatistics:
    """Counts by version. Used only in the event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def record(self, version: str, seconds: float, now_ms: int, failed: bool = False) -> None:
        """Counts one answered request that took `seconds` and ended at `now_ms` (wall clock)."""
        counts = self._counts.pop(version, None) or _Counts()
        self._counts[version] = counts  # the most recently used one is last
        if len(self._counts) > _VERSIONS_MAX:
            del self._counts[next(iter(self._counts))]
        counts.last_ms = now_ms
        if failed:
            counts.fail, counts.fail_ns = counts.fail + 1, counts.fail_ns + int(seconds * _NS)
        else:
            counts.success, counts.success_ns = counts.success + 1, counts.success_ns + int(seconds * _NS)

    def report(self, model: str, versions: Sequence[str]) -> list[Mapping[str, Any]]:
        """One entry per version; zeros for a version that was not used yet."""
        return [_entry(model, version, self._counts.get(version) or _Counts()) for version in versions]


def _entry(model: str, version: str, counts: _Counts) -> Mapping[str, Any]:
    return {
        "name": model,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.success,
        "execution_count": counts.success,
        "inference_stats": {
            "success": {"count": counts.success, "ns": counts.success_ns},
            "fail": {"count": counts.fail, "ns": counts.fail_ns},
        },
    }
