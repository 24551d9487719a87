"""The user states that call 1 left for call 2: a pool with bounds on entries and bytes.

- The key is (user, version), plus the request id if the request itself brought the user's history (protocol C5).
- A state made from the server's own view of a user remembers the offsets of that history; a newer behaviour makes it stale. A stale state stays until a
  fresh one replaces it, because it is a rung of the ladder.
- The least recently used state is evicted first, but never one that a request holds. If requests hold all the room, a new state serves its own request
  and is not kept, and a stale one stays. So `size_bytes` and `len` never exceed their bounds.
- Everything runs in the server's event loop, so there is no lock.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

from schemas.ids import Id
from serving.engine.work import UserState
from serving.users.user_store import HistoryOffsets

TTL_S_DEFAULT = 600.0
_SWEEP_SHARE = 0.05  # share of the TTL that an expired state may still take up room


@dataclass(frozen=True, slots=True)
class StateKey:
    """`request_id` is set only for a history that came in the request."""

    user: Id
    version: int
    request_id: str | None = None


def prior_key(version: int) -> StateKey:
    """The key of the empty user's state. No user has it, because no id is an empty text."""
    return StateKey("", version)


@dataclass(slots=True)
class _Kept:
    state: UserState
    offsets: HistoryOffsets | None
    made_s: float
    leases: int = 0


class Lease:
    """A state that stays in the pool until the lease ends."""

    def __init__(self, kept: _Kept) -> None:
        self._kept: _Kept | None = kept
        self.state, self.offsets = kept.state, kept.offsets
        kept.leases += 1

    def end(self) -> None:
        """Lets the state be evicted again. A second call does nothing."""
        if self._kept is not None:
            self._kept.leases -= 1
            self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class StatePool:
    """`events` counts look-ups (hit, unchecked, stale, expired, miss) and changes (kept, evicted, no_room, dropped)."""

    def __init__(self, entries_max: int, bytes_max: int, ttl_s: float = TTL_S_DEFAULT, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries_max, self._bytes_max, self._ttl_s, self._clock = entries_max, bytes_max, ttl_s, clock
        self._kept: OrderedDict[StateKey, _Kept] = OrderedDict()
        self._by_user: dict[Id, set[StateKey]] = {}
        self.size_bytes = 0
        self._swept: frozenset[int] | None = None  # the pool holds states of these versions only; None: not known, look again
        self._sweep_due_s = 0.0
        self.events: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: StateKey) -> bool:
        return key in self._kept

    def put(self, key: StateKey, state: UserState, offsets: HistoryOffsets | None = None) -> None:
        """Keeps a state instead of the one under its key, if evicting states that no request holds makes enough room; else everything stays."""
        evicted = self._plan_room(key, state.size_bytes)
        if evicted is None:
            self.events["no_room"] += 1
            return
        for other in (key, *evicted):
            self._remove(other)
        self.events["evicted"] += len(evicted)
        self._kept[key] = _Kept(state, offsets, self._clock())
        if self._swept is not None and key.version not in self._swept:
            self._swept = None
        self._by_user.setdefault(key.user, set()).add(key)
        self.size_bytes += state.size_bytes
        self.events["kept"] += 1

    def find(self, key: StateKey, offsets: HistoryOffsets | None = None, checked: bool = True) -> Lease | None:
        """The fresh state under a key. `offsets`: of the history now; `checked` False: they are not known, and any state within the TTL will do."""
        kept = self._look(key)
        if kept is None:
            return None
        if checked and kept.offsets != offsets:
            self.events["stale"] += 1
            return None
        self._kept.move_to_end(key)
        self.events["hit" if checked else "unchecked"] += 1
        return Lease(kept)

    def find_last(self, user: Id, versions: Collection[int]) -> Lease | None:
        """The newest state, stale or not, of a user on one of `versions`; not of a history that came in a request."""
        keys = [k for k in self._by_user.get(user, ()) if k.request_id is None and k.version in versions]
        found = [kept for kept in (self._look(key, count=False) for key in keys) if kept is not None]
        return Lease(max(found, key=lambda kept: kept.made_s)) if found else None

    def users_of(self, version: int) -> list[Id]:
        """The users with a state of that version from the server's own view, the most recently used first."""
        return [key.user for key in reversed(self._kept) if key.version == version and key.request_id is None and key != prior_key(version)]

    def drop_other_versions(self, resident: frozenset[int]) -> int:
        """Drops states of versions that are not resident, and expired ones, unless a request holds them. Returns how many.

        Called several times a second. It looks at every state only if the versions changed, a state was held last time, or an expiry sweep is due.
        """
        now_s = self._clock()
        if resident == self._swept and now_s < self._sweep_due_s:
            return 0
        old_s = now_s - self._ttl_s
        out = [key for key, kept in self._kept.items() if key.version not in resident or kept.made_s < old_s]
        gone = [key for key in out if not self._kept[key].leases]
        for key in gone:
            self._remove(key)
        self._swept, self._sweep_due_s = resident if len(gone) == len(out) else None, now_s + _SWEEP_SHARE * self._ttl_s
        self.events["dropped"] += len(gone)
        return len(gone)

    def _look(self, key: StateKey, count: bool = True) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is not None and self._clock() - kept.made_s > self._ttl_s:
            self._remove(key)
            self.events["expired"] += count
            return None
        self.events["miss"] += count and kept is None
        return kept

    def _plan_room(self, key: StateKey, size_bytes: int) -> list[StateKey] | None:
        """The oldest states that have to go so that one of that size fits under `key`; None if what requests hold leaves no room for it."""
        replaced = self._kept.get(key)
        entries, free_bytes = len(self._kept) - (replaced is not None), self._bytes_max - self.size_bytes
        free_bytes += 0 if replaced is None else replaced.state.size_bytes
        evicted = list[StateKey]()
        oldest = (other for other, kept in self._kept.items() if not kept.leases and other != key)
        while entries >= self._entries_max or size_bytes > free_bytes:
            if (other := next(oldest, None)) is None:
                return None
            evicted.append(other)
            entries, free_bytes = entries - 1, free_bytes + self._kept[other].state.size_bytes
        return evicted

    def _remove(self, key: StateKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self.size_bytes -= kept.state.size_bytes
        keys = self._by_user[key.user]
        keys.discard(key)
        if not keys:
            del self._by_user[key.user]
