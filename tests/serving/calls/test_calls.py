"""Both calls through HTTP and the client: versions, states, consistency, what an answer says of itself."""

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from infra.kafka.reader import SourceRecord
from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.events import UserFeaturesRecord, encode_record
from schemas.ids import IdKind, partition_of
from schemas.requests import AtLeast, InlineBehaviour, PrerankRequest
from schemas.token import VersionToken
from schemas.topics import USER_FEATURES
from serving.client import Client
from serving.engine.work import EngineStatus, RankResult, RankWork, UserResult, UserWork
from tests import plain_http
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

NEXT = VersionToken(8, 0, "1" * 8)


@pytest.fixture
def front() -> Iterator[Front]:
    with open_front(FakeEngine()) as opened:
        yield opened


@pytest.fixture
def client(front: Front) -> Iterator[Client]:
    with Client(front.url) as opened:
        yield opened


def flip(engine: FakeEngine) -> None:
    engine.previous, engine.current = engine.current, NEXT


def test_call_two_uses_the_state_of_call_one_and_its_version(front: Front, client: Client) -> None:
    front.tell(1)
    first = client.user(1)
    assert (first.version_token, first.cold_user, first.behaviours) == ("7.0-00000000", False, 1)
    flip(front.engine)
    answer = client.rank(1, [1, 2, 3], request_id=first.request_id, version_token=first.version_token)
    assert (answer.rung, answer.version_token, answer.degraded) == ("cached", "7.0-00000000", [])
    assert client.rank(1, [1, 2, 3]).version_token == "8.0-11111111"


def test_when_the_tokens_version_is_gone_the_answer_says_that_it_changed(front: Front, client: Client) -> None:
    front.tell(1)
    first = client.user(1)
    front.engine.current = NEXT
    answer = client.rank(1, [1], request_id=first.request_id, version_token=first.version_token)
    assert (answer.rung, answer.version_token, answer.degraded) == ("inline", "8.0-11111111", ["version_changed"])


def test_without_a_live_version_both_calls_are_refused_at_once_with_the_reason() -> None:
    with open_front(FakeEngine(current=None, stuck=True)) as front, Client(front.url) as client:
        front.paced.why_none = lambda: "bad_part_file: version 3"
        for call in (lambda: client.user(1), lambda: client.rank(1, [1]), lambda: client.prerank(PrerankRequest(user_id=1, item_ids=[1]))):
            with pytest.raises(Unavailable, match="no version is live yet; bad_part_file: version 3") as caught:
                call()
            assert (caught.value.code, caught.value.retry_after_s) == ("no_version", 1.0)


class LeavingEngine(FakeEngine):
    """The version goes when a ranking arrives: after the state was chosen, before its turn."""

    def submit_rank(self, work: RankWork) -> "Future[RankResult]":
        self.current, self.previous = NEXT, None
        return super().submit_rank(work)


def test_a_version_that_goes_while_its_state_is_in_use_is_replaced_and_its_state_is_held_no_longer() -> None:
    with open_front(LeavingEngine()) as front, Client(front.url) as client:
        front.tell(1)
        client.user(1)
        answer = client.rank(1, [1])
        assert (answer.rung, answer.version_token) == ("inline", "8.0-11111111")
        assert front.states.drop_other_versions(frozenset({8})) == 1, "the state of version 7 can go"
        assert len(front.states) == 1


def test_a_pinned_request_is_refused_when_its_version_is_gone_and_told_the_current_token(front: Front, client: Client) -> None:
    front.tell(1)
    first = client.user(1)
    assert client.rank(1, [1], version_token=first.version_token, consistency="pinned").rung == "cached"
    front.engine.current = NEXT
    for user in (1, 2):  # with and without a state of call 1
        with pytest.raises(Incompatible, match=r"8\.0-11111111") as caught:
            client.rank(user, [1], version_token=first.version_token, consistency="pinned")
        assert caught.value.code == "version_gone"


class GoingEngine(LeavingEngine):
    """The version goes at call 1 too."""

    def submit_user(self, work: UserWork) -> "Future[UserResult]":
        self.current = NEXT
        return super().submit_user(work)


@pytest.mark.parametrize(("path", "candidates"), [("/v1/user", {}), ("/v1/rank", {"item_ids": [1]})])
def test_a_pinned_request_is_refused_when_its_version_goes_before_its_turn(path: str, candidates: dict[str, Any]) -> None:
    with open_front(GoingEngine()) as front:
        answer = plain_http.post(
            front.url + path, json={"user_id": 1, "version_token": "7.0-00000000", "consistency": "pinned", **candidates}
        )
    assert answer.json()["code"] == "version_gone"


def test_a_token_of_another_revision_of_the_same_version_is_the_same_version(client: Client) -> None:
    assert client.rank(1, [1], version_token="7.3-abcdef01", consistency="pinned").degraded == ["cold_user"]
    with pytest.raises(Incompatible, match="version_gone"):  # the same revision of another index
        client.rank(1, [1], version_token="7.0-abcdef01", consistency="pinned")
    assert client.rank(1, [1], version_token="7.0-abcdef01").degraded == ["cold_user", "version_changed"]


def test_a_state_is_made_once_and_again_after_a_new_behaviour(front: Front, client: Client) -> None:
    front.tell(1)
    rungs = [client.rank(1, [1]).rung, client.rank(1, [1]).rung]
    front.tell(1, 1)
    rungs += [client.rank(1, [1]).rung, client.rank(1, [1]).rung]
    assert rungs == ["inline", "cached", "inline", "cached"]
    assert [front.states.events[event] for event in ("hit", "miss", "stale", "kept")] == [2, 1, 1, 2]
    assert client.user(1).behaviours == 2 and front.engine.user_calls == 0, "call 1 takes it too"


def test_a_history_in_the_request_replaces_the_servers_view_and_is_kept_for_its_request_only(front: Front, client: Client) -> None:
    front.tell(1)
    mine = [InlineBehaviour(item_id=3), InlineBehaviour(item_id=4)]
    first = client.user(1, request_id="r-1", behaviours=mine, features={"country": "nl"})
    assert first.behaviours == 2
    answer = client.rank(1, [1], request_id="r-1")
    assert (answer.rung, answer.request_id) == ("cached", "r-1")
    assert client.user(1, request_id="r-1", behaviours=mine[:1]).behaviours == 1, "another history, whatever its id"
    assert client.rank(1, [1], request_id="r-2").rung == "inline"
    both = client.prerank(PrerankRequest(user_id=1, request_id="r-1", item_ids=[1], behaviours=[]))
    assert (both.rung, both.degraded) == ("inline", ["cold_user"])


def test_an_unknown_user_is_a_cold_user_and_the_answer_says_so(client: Client) -> None:
    assert client.user(99).cold_user
    answer = client.rank(99, [1, 2])
    assert answer.degraded == ["cold_user"] and len(answer.items) == 2


def test_unknown_candidates_are_left_out_counted_and_the_first_hundred_named(client: Client) -> None:
    answer = client.rank(1, [1, 2, 2, 1, *range(1000, 1200)], top_k=10)
    assert (answer.candidates, answer.unknown_count, len(answer.items)) == (202, 200, 2)
    assert answer.unknown_items == list(range(1000, 1100)) and "unknown_items" in answer.degraded


def test_items_come_by_score_and_then_by_id(front: Front, client: Client) -> None:
    items = client.rank(1, list(range(100)), top_k=7).items
    expected = sorted(range(100), key=lambda i: (-front.engine.score(i, 7), i))[:7]
    assert [item.item_id for item in items] == expected
    assert [item.score for item in items] == [front.engine.score(i, 7) for i in expected]


def test_ids_beyond_2_to_the_53_are_strings_in_and_out(client: Client) -> None:
    huge, limit = (1 << 53) + 1, 1 << 53
    answer = client.rank(1, [str(huge), -huge, limit])
    assert answer.unknown_items == [str(huge), str(-huge), limit]


def test_a_text_catalogue_takes_and_gives_text() -> None:
    with open_front(FakeEngine(text_ids=True), IdKind.TEXT) as front, Client(front.url) as client:
        front.tell("änne", item="7")
        assert client.user("änne").behaviours == 1
        assert [item.item_id for item in client.rank("änne", ["5", "3", "5"]).items] == ["5", "3"]
        assert client.rank("änne", ["5" * 4, "0005"]).candidates == 2, "text ids are not numbers"
        with pytest.raises(RejectedInput, match="ids are text"):
            client.rank("änne", [5])
        with pytest.raises(RejectedInput, match="at most 128"):
            client.rank("änne", ["x" * 129])
        with pytest.raises(RejectedInput, match="130 bytes"):
            client.rank("änne", ["ä" * 65])


def test_at_least_waits_for_the_watermark_and_then_answers(front: Front, client: Client) -> None:
    wish = AtLeast(topic="item-features", partition=0, offset=9)

    def arrive() -> None:
        front.engine.watermark = [{"item-features": 9, "new-items": 3, "index-deltas": 4}]

    arrival = threading.Timer(0.1, arrive)
    arrival.start()
    answer = client.rank(1, [1], consistency=wish)
    assert answer.freshness.watermark[0]["item-features"] == 9
    arrival.join()


def test_at_least_waits_for_the_version_of_the_token_and_ranks_only_then() -> None:
    class Behind(FakeEngine):
        """The former version lags."""

        def status(self) -> EngineStatus:
            now = super().status()
            current, former = now.residents
            return dataclasses.replace(now, residents=(current, dataclasses.replace(former, watermark=({"item-features": 4},))))

        def submit_rank(self, work: RankWork) -> "Future[RankResult]":
            raise AssertionError("ranked too early")

    with open_front(Behind(previous=VersionToken(6, 0, "0" * 8))) as front, Client(front.url) as client:
        wish = AtLeast(topic="item-features", partition=0, offset=5)
        with pytest.raises(Unavailable, match="at offset 4 after"):
            client.rank(1, [1], version_token="6.0-00000000", consistency=wish, deadline_ms=400)


def test_at_least_past_the_deadline_names_the_watermark_it_reached(client: Client) -> None:
    with pytest.raises(Unavailable, match="at offset 3 after 400 ms, asked for at least 4") as caught:
        client.rank(1, [1], consistency=AtLeast(topic="new-items", partition=0, offset=4), deadline_ms=400)
    assert caught.value.code == "watermark_not_reached"


def test_the_answer_holds_watermark_and_age(client: Client) -> None:
    freshness = client.rank(1, [1]).freshness
    assert freshness.watermark == [{"item-features": 5, "new-items": 3, "index-deltas": 2}]
    assert (freshness.age_s, freshness.lagging_shards) == (7.5, [0])


def test_the_profile_of_the_own_view_is_used_and_a_record_without_value_forgets_it(front: Front, client: Client) -> None:
    value = encode_record(UserFeaturesRecord(user_id=3, features={"country": "nl"}))
    record = SourceRecord(USER_FEATURES, partition_of(3, 4), 0, b"3", value)
    front.store.fold_record(record)
    assert not client.user(3).cold_user
    front.store.fold_record(dataclasses.replace(record, offset=1, value=None))
    assert client.user(3).cold_user


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(Unavailable, match="aif serve"):
            client.status()
        with pytest.raises(Unavailable, match="not ready after"):
            client.wait_ready(0.1)
