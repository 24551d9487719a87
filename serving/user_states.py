"""The states that call 1 left for call 2: a least-recently-used store with two bounds, entries and bytes.

Here: keys, bounds, and what makes a state unusable. Not here: how a state is made (user_call.py, the engine).
Key = (user, version), plus the request id when the request carried the user's history itself (protocol C5). A state of the server's own
view of a user remembers the offsets of that history: a newer behaviour makes it stale, and it is dropped at the next look.
Everything runs in the server's event loop, so there is no lock.
"""

from collections import OrderedDict
from dataclasses import dataclass

from schemas.ids import Id
from serving.engine.work import UserState

HistoryOffsets = tuple[int, int]  # last offset folded of user-features and of user-behaviours


@dataclass(frozen=True, slots=True)
class StateKey:
    """`request_id` only for a history that came in the request."""

    user: Id
    version: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    state: UserState
    offsets: HistoryOffsets | None


class UserStates:
    """Bounded, least recently used first out. `entries` and `size_bytes` never exceed their bounds."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max, self._bytes_max = entries_max, bytes_max
        self._kept: OrderedDict[StateKey, _Kept] = OrderedDict()
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: StateKey, state: UserState, offsets: HistoryOffsets | None = None) -> None:
        """Keeps a state; a state larger than all the room is not kept."""
        self._remove(key)
        if state.size_bytes > self._bytes_max:
            return
        self._kept[key] = _Kept(state, offsets)
        self.size_bytes += state.size_bytes
        while len(self._kept) > self._entries_max or self.size_bytes > self._bytes_max:
            self._remove(next(iter(self._kept)))
            self.evicted += 1

    def find(self, key: StateKey, offsets: HistoryOffsets | None = None) -> tuple[UserState | None, str]:
        """(state, outcome): outcome is "hit", "miss" or "stale" (made from an older history than `offsets`; it is dropped)."""
        kept = self._kept.get(key)
        if kept is None:
            return None, "miss"
        if kept.offsets != offsets:
            self._remove(key)
            return None, "stale"
        self._kept.move_to_end(key)
        return kept.state, "hit"

    def drop_other_versions(self, resident: frozenset[int]) -> int:
        """Forgets the states of versions that no slot holds any more. Returns how many."""
        gone = [key for key in self._kept if key.version not in resident]
        for key in gone:
            self._remove(key)
        return len(gone)

    def _remove(self, key: StateKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size_bytes -= kept.state.size_bytes
