"""The clock of an index store, for what is compared with the times of its files: grace periods, ages of revisions and of snapshots (protocol B10, B12).

A worker whose own clock is a day ahead would remove files that somebody has put just now, and want a new revision at every step.
Invariant: the store is asked once, and time continues from there by the monotonic clock, so a clock that jumps moves nothing.
"""

import secrets

from infra.clock import Clock
from infra.index.store import IndexStore


def fetch_store_time_ms(store: IndexStore) -> int:
    """What time it is for the store: that of a file put just now, which is removed again. Raises what the store raises."""
    path = f"probes/{secrets.token_hex(8)}"
    store.put_exclusive(path, b"")
    try:
        return store.stat(path).put_ms
    finally:
        store.remove(path)


class StoreClock:
    """A Clock. `now_ms` raises what the store raises until it has answered once."""

    def __init__(self, store: IndexStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._asked: tuple[int, float] | None = None  # the store's time, and the monotonic time then

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, by the store."""
        if self._asked is None:
            self._asked = fetch_store_time_ms(self._store), self._clock.monotonic()
        asked_ms, asked_at = self._asked
        return asked_ms + int((self._clock.monotonic() - asked_at) * 1000)

    def monotonic(self) -> float:
        """As that of this machine."""
        return self._clock.monotonic()
