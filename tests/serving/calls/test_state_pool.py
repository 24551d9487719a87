"""The pool of user states: bounds, leases, age, and a model of it under any sequence of steps."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from serving.calls.state_pool import Lease, StateKey, StatePool, prior_key
from tests.serving.fake_engine import FakeState


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def state(version: int = 1, size: int = 10) -> FakeState:
    return FakeState(version, size, 0, 0, False)


def test_a_state_that_a_request_holds_is_never_evicted_and_the_oldest_free_one_goes_instead() -> None:
    pool = StatePool(2, 1_000)
    keys = [StateKey(user, 1) for user in range(4)]
    pool.put(keys[0], state())
    held = pool.find(keys[0])
    assert held is not None
    for key in keys[1:3]:
        pool.put(key, state())
    assert keys[0] in pool and keys[1] not in pool and keys[2] in pool
    other = pool.find(keys[2])
    pool.put(keys[3], state())
    assert keys[3] not in pool and pool.events["no_room"] == 1, "all room is held: the new state serves its own request only"
    held.end()
    held.end()
    assert other is not None
    pool.put(keys[3], state())
    assert keys[3] in pool and keys[0] not in pool and pool.events["evicted"] == 2


def test_a_stale_state_is_no_hit_but_the_last_one_until_a_fresh_one_replaces_it() -> None:
    pool, key, other = StatePool(2, 1_000), StateKey(5, 1), StateKey(6, 1)
    first, second = state(), state()
    pool.put(other, state())
    pool.put(key, first, (0, 3))
    assert pool.find(key, (0, 4)) is None and pool.events["stale"] == 1
    last = pool.find_last(5, {1, 2})
    assert last is not None and last.state is first
    unchecked = pool.find(key, checked=False)
    assert unchecked is not None and pool.events["unchecked"] == 1
    pool.put(key, second, (0, 4))
    fresh = pool.find(key, (0, 4))
    assert fresh is not None and fresh.state is second and other in pool, "a state that replaces its like takes no other's room"


def test_a_state_for_which_requests_leave_no_room_takes_nothing_away_from_others_nor_its_own_users_older_one() -> None:
    pool = StatePool(10, 100)
    held_key, other, key = StateKey(1, 1), StateKey(2, 1), StateKey(5, 1)
    for one in (held_key, other, key):
        pool.put(one, state(size=30), (0, 3))
    held = pool.find(held_key, (0, 3))
    assert held is not None
    for size in (80, 101):
        pool.put(key, state(size=size), (0, 4))
    assert pool.events["no_room"] == 2 and pool.events["evicted"] == 0
    last = pool.find_last(5, {1})
    assert last is not None and last.offsets == (0, 3) and other in pool and pool.size_bytes == 90
    last.end()
    pool.put(key, state(size=70), (0, 4))
    assert key in pool and other not in pool and pool.size_bytes == 100


def test_the_last_state_is_the_newest_of_the_users_own_history_on_a_version_that_is_there() -> None:
    clock = Clock()
    pool = StatePool(10, 1_000, clock=clock)
    for version, request in ((1, None), (2, None), (3, None), (1, "r")):
        clock.now_s += 1
        pool.put(StateKey(5, version, request), state(version))
    found = pool.find_last(5, {1, 2})
    assert found is not None and found.state.version == 2
    assert pool.find_last(5, {9}) is None and pool.find_last(6, {1}) is None


def test_a_state_past_its_age_is_gone() -> None:
    clock = Clock()
    pool, key = StatePool(10, 1_000, ttl_s=60, clock=clock), StateKey(5, 1)
    pool.put(key, state())
    clock.now_s = 60
    assert pool.find(key) is not None
    clock.now_s = 60.1
    assert pool.find_last(5, {1}) is None
    pool.put(key, state())
    clock.now_s = 200
    assert pool.find(key) is None and pool.events["expired"] == 1 and pool.size_bytes == 0


def test_states_of_a_version_that_left_go_unless_a_request_holds_them() -> None:
    pool = StatePool(10, 1_000)
    for version in (1, 2):
        pool.put(StateKey(5, version), state(version))
    with pool.find(StateKey(5, 1)) or Lease.__new__(Lease):
        assert pool.drop_other_versions(frozenset({2})) == 0
    assert pool.drop_other_versions(frozenset({2})) == 1 and len(pool) == 1


def test_a_state_that_lands_after_its_version_left_goes_at_the_next_look_and_an_old_one_in_time() -> None:
    clock = Clock()
    pool = StatePool(10, 1_000, ttl_s=100, clock=clock)
    pool.put(StateKey(5, 2), state(2))
    assert pool.drop_other_versions(frozenset({2})) == 0
    pool.put(StateKey(6, 1), state(1))
    assert pool.drop_other_versions(frozenset({2})) == 1 and StateKey(5, 2) in pool
    clock.now_s += 101
    assert pool.drop_other_versions(frozenset({2})) == 1 and len(pool) == 0


def test_the_empty_users_key_is_nobody_elses() -> None:
    assert prior_key(1) == StateKey("", 1)


steps = st.lists(
    st.tuples(st.sampled_from(["put", "find", "end", "drop"]), st.integers(0, 5), st.integers(1, 2), st.integers(1, 60)), max_size=60
)


@given(steps)
def test_whatever_happens_the_bounds_hold_the_bytes_are_right_and_held_states_stay(steps: list[tuple[str, int, int, int]]) -> None:
    pool = StatePool(entries_max=4, bytes_max=100)
    leases: list[tuple[StateKey, Lease]] = []
    for step, user, version, size in steps:
        key = StateKey(user, version)
        if step == "put" and all(held != key for held, _ in leases):
            pool.put(key, state(version, size))
        elif step == "find" and (lease := pool.find(key)) is not None:
            leases.append((key, lease))
        elif step == "end" and leases:
            leases.pop()[1].end()
        elif step == "drop":
            pool.drop_other_versions(frozenset({version}))
        assert len(pool) <= 4 and pool.size_bytes <= 100
        assert all(key in pool for key, _ in leases)
    for _, lease in leases:
        lease.end()
    pool.drop_other_versions(frozenset())
    assert (len(pool), pool.size_bytes) == (0, 0) and pool.find_last(0, {1, 2}) is None
