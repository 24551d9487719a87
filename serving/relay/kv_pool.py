"""The KV pool: prefixes by (user, version), in pages of a bounded memory; and behind it the host tier, for users who come back.

    reserve   pages for a whole prefix, before its first token is computed; kept prefixes without a lease give way, least recently used first
    lease     a prefix that a signal was admitted for, or a ranking reads, is never evicted
    keep      a finished prefix without a lease stays for the user's next request, until its time or another's need ends
    tier      a copy of a finished prefix in host memory, made by the prefix thread after the work, never while a ranking waits

Invariants: free and held pages are each page exactly once (`check`); bytes never exceed the bound; freed pages are poisoned; a prefix belongs to one version.
Every change is made under the pool's lock; a caller reads a leased prefix's pages outside it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.ids import Id
from schemas.model.ranker.spec import RankerSpec
from serving.core.kv_pages import KvPages
from serving.relay.window import Window

_EXPECTED_MAX = 1_000  # rankings of a prefix: callers may share one user id, such as that of all visitors who are not logged in
PAGE_ELEMENTS = 64 * 1024  # fp16 numbers of a page: 256 tokens of two layers of width 64


class PrefixKey(NamedTuple):
    """Whose prefix, on which version."""

    user: Id
    version: int


@dataclass
class Prefix:
    """A prefix in the pool. `done`: its tokens whose keys and values are in the pages. `request_ids`: the signals that no ranking has followed yet, the oldest
    first."""

    key: PrefixKey
    spec: RankerSpec
    window: Window
    pages: list[int]
    expires_s: float
    done: int = 0
    leases: int = 0
    request_ids: dict[str, None] = field(default_factory=dict)
    taken_over: bool = False  # a ranking computes the rest; the prefix thread leaves it alone
    dropped: bool = False

    @property
    def finished(self) -> bool:
        """All tokens are there."""
        return self.done >= self.window.tokens


class _Saved(NamedTuple):
    window: Window
    done: int
    data: Any
    size_bytes: int
    expires_s: float


class KvPool:
    """`memory`: a PageMemory of `pages` pages. `host_bytes`: of the host tier, 0 = none. An admitted prefix waits `signal_s` for its ranking. A finished one
    is kept `keep_s` for the user's next request."""

    def __init__(
        self, memory: Any, pages: int, host_bytes: int, signal_s: float, keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory, self._host_bytes, self._signal_s, self._keep_s, self._clock = memory, host_bytes, signal_s, keep_s, clock
        self.pages, self._pages = pages, KvPages(pages)
        self._prefixes: OrderedDict[PrefixKey, Prefix] = OrderedDict()
        self._leased_out: list[Prefix] = []  # dropped while leased: their pages come back with the last lease
        self._saved: OrderedDict[PrefixKey, _Saved] = OrderedDict()
        self._saved_bytes = 0
        self.wasted, self.evicted, self.reloaded = 0, 0, 0
        self.lock = threading.RLock()

    # --- bounds ---------------------------------------------------------------------------------------------------------

    def pages_for(self, spec: RankerSpec, tokens: int) -> int:
        """How many pages so many tokens take."""
        return -(-tokens // self.memory.tokens(spec))

    @property
    def pages_free(self) -> int:
        """Pages that are free, or held by prefixes that may be evicted."""
        with self.lock:
            return self._pages.free + sum(len(prefix.pages) for prefix in self._prefixes.values() if not prefix.leases)

    @property
    def resident_bytes(self) -> int:
        """Bytes of all pages in use."""
        return (self._pages.total - self._pages.free) * self.memory.elements * 2

    @property
    def host_bytes(self) -> int:
        """Bytes in the host tier."""
        return self._saved_bytes

    def __len__(self) -> int:
        return len(self._prefixes)

    # --- prefixes -------------------------------------------------------------------------------------------------------

    def find(self, key: PrefixKey) -> Prefix | None:
        """The prefix under `key`, marked as used."""
        with self.lock:
            prefix = self._prefixes.get(key)
            if prefix is not None:
                self._prefixes.move_to_end(key)
            return prefix

    def borrow(self, key: PrefixKey) -> Prefix | None:
        """The prefix under `key`, marked as used and held; the caller releases it."""
        with self.lock:
            prefix = self.find(key)
            if prefix is not None:
                self.lease(prefix)
            return prefix

    def reserve(self, key: PrefixKey, spec: RankerSpec, window: Window) -> Prefix | None:
        """A new prefix with pages for all its tokens instead of the former one of this key, leased once; None if there is no room."""
        with self.lock:
            self.drop(key)
            pages = self._take(self.pages_for(spec, window.tokens))
            if pages is None:
                return None
            prefix = Prefix(key, spec, window, pages, self._clock() + self._signal_s, leases=1)
            self._prefixes[key] = prefix
            return prefix

    def grow(self, prefix: Prefix, window: Window) -> bool:
        """Gives a prefix pages for a longer window that begins with its own. False, and nothing changed, if there is no room."""
        with self.lock:
            more = self.pages_for(prefix.spec, window.tokens) - len(prefix.pages)
            prefix.leases += 1
            pages = self._take(max(0, more))
            prefix.leases -= 1
            if pages is None:
                return False
            prefix.pages.extend(pages)
            prefix.window, prefix.taken_over = window, False
            return True

    def expect(self, prefix: Prefix, request_id: str) -> None:
        """Notes that the ranking of this request will come for the prefix, and holds it until then."""
        with self.lock:
            prefix.leases += not prefix.request_ids
            prefix.request_ids[request_id] = None
            if len(prefix.request_ids) > _EXPECTED_MAX:
                del prefix.request_ids[next(iter(prefix.request_ids))]
                self.wasted += 1
            prefix.expires_s = self._clock() + self._signal_s

    def arrive(self, prefix: Prefix, request_id: str) -> bool:
        """Notes that the ranking has come and holds the prefix itself. Returns whether it was expected."""
        with self.lock:
            if request_id not in prefix.request_ids:
                return False
            del prefix.request_ids[request_id]
            if not prefix.request_ids:
                self.release(prefix)
            return True

    def lease(self, prefix: Prefix) -> None:
        """Holds a prefix."""
        with self.lock:
            prefix.leases += 1

    def release(self, prefix: Prefix) -> None:
        """Gives a hold back. A finished prefix is kept from now on; an unfinished one without a hold is dropped."""
        with self.lock:
            prefix.leases -= 1
            if not prefix.request_ids:
                prefix.expires_s = self._clock() + self._keep_s
            if prefix.leases:
                return
            if prefix.dropped:
                self._leased_out = [one for one in self._leased_out if one is not prefix]
                self._free(prefix)
            elif not prefix.finished:
                self.drop(prefix.key)

    @contextmanager
    def held(self, prefix: Prefix) -> Iterator[Prefix]:
        """A lease for a block."""
        self.lease(prefix)
        try:
            yield prefix
        finally:
            self.release(prefix)

    def drop(self, key: PrefixKey) -> None:
        """Forgets a prefix; its pages are free after the last lease ends."""
        with self.lock:
            prefix = self._prefixes.pop(key, None)
            if prefix is None:
                return
            prefix.dropped = True
            if prefix.request_ids:  # their rankings will find another prefix, or none
                prefix.request_ids.clear()
                prefix.leases -= 1
            if prefix.leases:
                self._leased_out.append(prefix)
            else:
                self._free(prefix)

    def drop_other_versions(self, alive: Collection[int]) -> None:
        """Forgets everything of versions that are not resident any more, here and in the host tier."""
        with self.lock:
            gone = [key for key in self._prefixes if key.version not in alive]
            for key in [key for key in self._saved if key.version not in alive]:
                self._forget_saved(key)
        for key in gone:  # the lock is free in between: to poison all pages at once takes long, and a ranking would wait for it
            self.drop(key)

    def expire(self) -> None:
        """Ends signals whose ranking never came, and forgets kept prefixes whose time is over."""
        now_s = self._clock()
        with self.lock:
            over = [one for one in self._prefixes.values() if one.expires_s < now_s]
        for prefix in over:
            with self.lock:
                if prefix.dropped or prefix.expires_s >= now_s:
                    continue
                if prefix.request_ids:
                    self.wasted += len(prefix.request_ids)
                    prefix.request_ids.clear()
                    self.release(prefix)
                elif not prefix.leases:
                    self.drop(prefix.key)
        with self.lock:
            for key in [key for key, saved in self._saved.items() if saved.expires_s < now_s]:
                self._forget_saved(key)

    def _take(self, count: int) -> list[int] | None:
        """Free pages, after evicting prefixes without a lease, the least recently used first."""
        if count > self.pages_free:
            return None
        while self._pages.free < count:
            victim = next(key for key, prefix in self._prefixes.items() if not prefix.leases)
            self.drop(victim)
            self.evicted += 1
        return self._pages.take(count)

    def _free(self, prefix: Prefix) -> None:
        self.memory.poison(prefix.pages)
        self._pages.give_back(prefix.pages)
        prefix.pages = []

    # --- the host tier --------------------------------------------------------------------------------------------------

    def save(self, prefix: Prefix) -> None:
        """Copies a finished prefix to the host tier. REQUIRES: the caller holds it."""
        with self.lock:
            window, done, pages = prefix.window, prefix.done, prefix.pages[: self.pages_for(prefix.spec, prefix.done)]
        size = len(pages) * self.memory.elements * 2
        if size > self._host_bytes or prefix.dropped:
            return
        data = self.memory.save(pages)
        with self.lock:
            if prefix.dropped:
                return  # its version may be gone
            self._forget_saved(prefix.key)
            while self._saved_bytes + size > self._host_bytes:
                self._forget_saved(next(iter(self._saved)))
            self._saved[prefix.key] = _Saved(window, done, data, size, self._clock() + self._keep_s)
            self._saved_bytes += size

    def saved_tokens(self, key: PrefixKey, window: Window) -> int:
        """How many tokens of a prefix that this window begins with the host tier has."""
        with self.lock:
            saved = self._saved.get(key)
            return saved.done if saved is not None and window.begins_with(saved.window) else 0

    def reload(self, key: PrefixKey, spec: RankerSpec, window: Window) -> Prefix | None:
        """Copies the saved prefix back, with room for the whole window, leased once; None if it is gone or there is no room."""
        with self.lock:
            saved = self._saved.get(key)
            if saved is None or not window.begins_with(saved.window):
                return None
            prefix = self.reserve(key, spec, window)
            if prefix is None:
                return None
            self._saved.move_to_end(key)
            used = self.pages_for(spec, saved.done)
            self.memory.restore(prefix.pages[:used], saved.data[:used])
            prefix.done = saved.done
            self.reloaded += 1
            return prefix

    def _forget_saved(self, key: PrefixKey) -> None:
        saved = self._saved.pop(key, None)
        if saved is not None:
            self._saved_bytes -= saved.size_bytes

    # --- invariants -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ValueError if a page is lost or held twice, or a hold is below zero."""
        with self.lock:
            held = [*self._prefixes.values(), *self._leased_out]
            self._pages.check([prefix.pages for prefix in held])
            wrong = [prefix.key for prefix in held if prefix.leases < 0]
            if wrong:
                raise ValueError(f"prefixes {wrong[:3]} were given back more often than they were taken")
