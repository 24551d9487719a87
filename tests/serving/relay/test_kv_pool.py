"""The pool under random use: no page is lost, held twice or reused while somebody reads it, and bytes stay below the bound."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.model.ranker.spec import RankerSpec
from serving.relay.kv_pool import KvPool, Prefix, PrefixKey
from serving.relay.window import Window

SPEC = RankerSpec(width=8, heads=1, layers=1)
PAGES, TOKENS = 12, 4


class Memory:
    """Pages that remember whose tokens were written into them."""

    elements = TOKENS * 16

    def __init__(self) -> None:
        self.owner: dict[int, object] = {}

    def tokens(self, spec: RankerSpec) -> int:
        return TOKENS

    def poison(self, pages: list[int]) -> None:
        for page in pages:
            self.owner[page] = None

    def save(self, pages: list[int]) -> list[object]:
        return [self.owner.get(page) for page in pages]

    def restore(self, pages: list[int], saved: list[object]) -> None:
        self.owner.update(zip(pages, saved, strict=True))


def window_of(items: int, start: int = 0) -> Window:
    return Window({}, "{}", start, np.arange(items), np.zeros(items, np.int64), items)


def fill(pool: KvPool, prefix: Prefix) -> None:
    """What the prefix thread does at once."""
    for page in prefix.pages:
        pool.memory.owner[page] = prefix.key
    prefix.done = prefix.window.tokens


class PoolMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.pool = KvPool(Memory(), PAGES, 3 * TOKENS * 32, signal_s=5.0, keep_s=50.0, clock=lambda: self.now_s)
        self.reading: list[tuple[Prefix, list[int]]] = []  # with the pages that the reader has seen
        self.signals = 0

    @rule(user=st.integers(0, 4), version=st.integers(0, 1), items=st.integers(0, 20), finish=st.booleans())
    def signal(self, user: int, version: int, items: int, finish: bool) -> None:
        key = PrefixKey(user, version)
        held = [one for one in self.pool._prefixes.values() if one.leases and one.key != key]
        prefix = self.pool.reserve(key, SPEC, window_of(items))
        assert not any(one.dropped for one in held)
        if prefix is None:
            return
        assert all(self.pool.memory.owner.get(page) is None for page in prefix.pages)  # freed pages are poisoned
        self.signals += 1
        self.pool.expect(prefix, f"r{self.signals}")
        self.pool.release(prefix)
        if finish:
            with self.pool.held(prefix):
                fill(self.pool, prefix)
                self.pool.save(prefix)

    @rule(user=st.integers(0, 4), version=st.integers(0, 1), more=st.integers(0, 20))
    def come_back(self, user: int, version: int, more: int) -> None:
        prefix = self.pool.find(PrefixKey(user, version))
        if prefix is not None and self.pool.grow(prefix, window_of(len(prefix.window) + more)):
            with self.pool.held(prefix):
                fill(self.pool, prefix)

    @rule(user=st.integers(0, 4), version=st.integers(0, 1))
    def reload(self, user: int, version: int) -> None:
        prefix = self.pool.reload(PrefixKey(user, version), SPEC, window_of(20))
        if prefix is not None:
            used = self.pool.pages_for(SPEC, prefix.done)
            assert all(self.pool.memory.owner[page] == prefix.key for page in prefix.pages[:used])
            fill(self.pool, prefix)
            self.pool.release(prefix)

    @rule(user=st.integers(0, 4), version=st.integers(0, 1))
    def begin_ranking(self, user: int, version: int) -> None:
        prefix = self.pool.find(PrefixKey(user, version))
        if prefix is not None and prefix.finished:
            self.pool.lease(prefix)
            self.reading.append((prefix, list(prefix.pages)))
            for request_id in list(prefix.request_ids)[:1]:
                assert self.pool.arrive(prefix, request_id)

    @precondition(lambda self: self.reading)
    @rule(place=st.integers(0, 99))
    def end_ranking(self, place: int) -> None:
        self.pool.release(self.reading.pop(place % len(self.reading))[0])

    @rule(alive=st.sets(st.integers(0, 1)))
    def flip(self, alive: set[int]) -> None:
        self.pool.drop_other_versions(alive)
        assert all(key.version in alive for key in self.pool._prefixes)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.pool.expire()

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self.pool.check()
        assert self.pool.resident_bytes <= PAGES * TOKENS * 32
        assert self.pool.host_bytes <= 3 * TOKENS * 32

    @invariant()
    def what_is_read_is_never_reused(self) -> None:
        for prefix, pages in self.reading:
            assert all(self.pool.memory.owner[page] == prefix.key for page in pages)

    def teardown(self) -> None:
        for prefix, _ in self.reading:
            self.pool.release(prefix)
        for _ in range(2):  # signals end, then what was kept
            self.now_s += 1_000
            self.pool.expire()
        assert len(self.pool) == 0
        assert self.pool.resident_bytes == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_signal_without_a_ranking_is_wasted_and_its_pages_come_back() -> None:
    now_s = [0.0]
    pool = KvPool(Memory(), PAGES, 0, signal_s=5.0, keep_s=50.0, clock=lambda: now_s[0])
    prefix = pool.reserve(PrefixKey(1, 1), SPEC, window_of(9))
    assert prefix is not None
    pool.expect(prefix, "r")
    pool.release(prefix)
    assert pool.reserve(PrefixKey(2, 1), SPEC, window_of(4 * PAGES - 1)) is None  # it would need the pages that the ranking will need
    now_s[0] = 5.1
    pool.expire()
    assert (pool.wasted, pool.resident_bytes) == (1, 0)


def test_of_signals_that_keep_coming_without_their_rankings_the_oldest_are_forgotten() -> None:
    """Each new one extends the prefix's time, so no expiry ended the others: their request ids stayed in memory."""
    pool = KvPool(Memory(), PAGES, 0, signal_s=5.0, keep_s=50.0)
    prefix = pool.reserve(PrefixKey("visitor", 1), SPEC, window_of(9))
    assert prefix is not None
    for number in range(1_050):
        pool.expect(prefix, f"r{number}")
    assert (len(prefix.request_ids), pool.wasted) == (1_000, 50)
    assert not pool.arrive(prefix, "r49") and pool.arrive(prefix, "r50") and prefix.leases == 2


@pytest.mark.parametrize(
    ("newer", "fits"),
    [(window_of(9), True), (window_of(12), True), (window_of(8), False), (window_of(12, start=1), False)],
)
def test_a_prefix_is_used_by_content(newer: Window, fits: bool) -> None:
    assert newer.begins_with(window_of(9)) is fits
    other = Window({}, '{"age": 3}', 0, np.arange(12), np.zeros(12, np.int64), 12)
    assert not other.begins_with(window_of(9))
    changed = Window({}, "{}", 0, np.arange(12) + 1, np.zeros(12, np.int64), 12)
    assert not changed.begins_with(window_of(9))
