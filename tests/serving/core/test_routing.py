"""Routing: both calls of a user meet, a server that leaves moves only its own, load stays near the mean."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.core.routing import LOAD_BOUND, ServerLoad, plan_route, rank_servers

URLS = [f"http://server-{i}:8100" for i in range(5)]
servers = st.lists(st.sampled_from(URLS), min_size=1, max_size=5, unique=True)


@given(st.integers(0, 4095), servers, st.randoms(use_true_random=False))
def test_the_order_depends_on_the_servers_and_not_on_how_they_are_listed(user: int, urls: list[str], rng: object) -> None:
    shuffled = sorted(urls, key=lambda _: rng.random())  # type: ignore[attr-defined]
    assert rank_servers(user, urls) == rank_servers(user, shuffled)
    assert sorted(rank_servers(user, urls)) == sorted(urls)


@given(st.integers(0, 4095), servers)
def test_a_server_that_leaves_moves_only_its_own_users(user: int, urls: list[str]) -> None:
    order = rank_servers(user, urls)
    for gone in urls[1:]:
        assert rank_servers(user, [url for url in urls if url != gone]) == [url for url in order if url != gone]


def test_users_spread_evenly_and_few_move_when_one_of_twelve_servers_leaves() -> None:
    urls, users = [f"http://server-{i}:8100" for i in range(12)], [f"user-{n}" for n in range(6_000)]
    before, after = ({user: rank_servers(user, some)[0] for user in users} for some in (urls, urls[1:]))
    counts = Counter(before.values())
    assert len(counts) == 12 and max(counts.values()) <= 1.25 * len(users) / 12
    moved = [user for user in users if before[user] != after[user]]
    assert len(moved) <= (1 / 12 + 0.02) * len(users)
    assert {before[user] for user in moved} == {urls[0]}


def test_a_lost_server_is_tried_last_and_a_full_one_after_those_with_room() -> None:
    first, second, *_ = rank_servers(7, URLS)

    def route(**of_first: object) -> list[str]:
        return plan_route(7, [ServerLoad(url, **(of_first if url == first else {})) for url in URLS])  # type: ignore[arg-type]

    assert route()[:2] == [first, second]
    assert route(healthy=False)[0] == second and route(healthy=False)[-1] == first
    assert route(in_flight=40)[0] == second and route(in_flight=40)[-1] == first


def test_if_all_are_lost_all_are_tried() -> None:
    assert plan_route(7, [ServerLoad(url, healthy=False) for url in URLS]) == rank_servers(7, URLS)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=400))
def test_no_server_ever_has_much_more_than_its_share_in_flight(users: list[int]) -> None:
    loads = dict.fromkeys(URLS, 0)
    for count, user in enumerate(users, 1):
        chosen = plan_route(user, [ServerLoad(url, in_flight=load) for url, load in loads.items()])[0]
        loads[chosen] += 1
        assert loads[chosen] <= LOAD_BOUND * count / len(URLS) + 1
