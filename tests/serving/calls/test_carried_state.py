"""The state that a client carries itself: the same answer as the pool's, bit for bit; and a state of others is refused."""

import base64
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from pydantic import SecretStr

from schemas.errors import RejectedInput
from schemas.ids import IdKind
from schemas.limits import CARRIED_STATE_BYTES_MAX
from schemas.requests import InlineBehaviour
from schemas.token import VersionToken
from schemas.users import BehaviourEvent
from serving.calls.carried_state import CarriedStates
from serving.client import Client
from serving.engine.loop.engine import Engine
from serving.engine.work import UserState, UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import PROFILE, Version, make_version, running_engine, token_of
from tests.serving.front import Front, open_front

KEY = SecretStr("the key of a fleet")
TOKEN = token_of(1)


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def version() -> Version:
    return make_version(SPECS["full"], 60)


@pytest.fixture(scope="module")
def engine(version: Version) -> Iterator[Engine]:
    with running_engine(version) as engine:
        yield engine


@pytest.fixture(scope="module")
def state(version: Version, engine: Engine) -> UserState:
    behaviours = [BehaviourEvent(one, "click", 0) for one in version.ids[:20]]
    return engine.submit_user(UserWork(PROFILE, behaviours)).result(60).state


def open_server(engine: Engine, key: SecretStr | None = KEY, index: str = "index") -> AbstractContextManager[Front]:
    return open_front(engine, carried=CarriedStates(key, index, 600))


def test_another_server_answers_with_a_carried_state_what_the_pool_of_the_first_one_gives(version: Version, engine: Engine) -> None:
    behaviours = [InlineBehaviour(item_id=str(one)) for one in version.ids[:20]]
    asked = {"item_ids": version.ids, "top_k": 50, "request_id": "r", "context": {"hour": 3}}
    with open_server(engine) as first, open_server(engine) as second, Client(first.url) as here, Client(second.url) as there:
        call_1 = here.user(7, request_id="r", features=PROFILE, behaviours=behaviours, carry_state=True)
        assert call_1.user_state is not None
        pooled = here.rank(7, **asked)
        carried = there.rank(7, user_state=call_1.user_state, **asked)
        without = there.rank(7, **asked)
        assert (pooled.rung, carried.rung) == ("cached", "carried") and carried.version_token == call_1.version_token
        assert carried.items == pooled.items, "every score and probability, to the last bit"
        assert without.items != pooled.items, "without it the second server knows nothing of the user"
        assert len(second.states) == 1, "only the cold user's state of `without` is kept: a carried one takes no memory"
        assert (
            there.rank(7, user_state=call_1.user_state, version_token=call_1.version_token, consistency="pinned", **asked).rung == "carried"
        )


def test_off_by_default_and_then_said_so(engine: Engine) -> None:
    with open_front(engine) as front, Client(front.url) as client:
        assert client.user(7).user_state is None
        for ask in (lambda: client.user(7, carry_state=True), lambda: client.rank(7, [1], user_state="AAAA")):
            with pytest.raises(RejectedInput, match="CARRIED_STATE_KEY"):
                ask()


@pytest.mark.parametrize(
    "token",
    [VersionToken(99, 0, "0" * 8), VersionToken(1, 0, "2" * 8)],
    ids=["a version that is gone", "a version of the same number of an index that was made again"],
)
def test_a_state_of_another_version_is_a_lost_state(version: Version, engine: Engine, state: UserState, token: VersionToken) -> None:
    text = CarriedStates(KEY, "index", 600).seal(7, token, dataclasses.replace(state, version=token.version))  # type: ignore[type-var]
    with open_server(engine) as front, Client(front.url) as client:
        answer = client.rank(7, version.ids[:5], user_state=text)
        assert answer.rung == "inline" and "version_changed" in answer.degraded


@pytest.mark.parametrize(
    ("other", "user", "reason"),
    [
        (CarriedStates(SecretStr("the key of another"), "index", 600), 7, "not signed"),
        (CarriedStates(KEY, "another index", 600), 7, "not signed"),
        (CarriedStates(KEY, "index", 600), 8, "another user"),
    ],
)
def test_another_key_index_or_user_is_refused(state: UserState, other: CarriedStates, user: int, reason: str) -> None:
    text = CarriedStates(KEY, "index", 600).seal(7, TOKEN, state)
    assert text is not None
    with pytest.raises(RejectedInput, match=reason):
        other.open(text, user)
    assert other.events["refused"] == 1


def test_every_flipped_bit_is_found_before_anything_is_decoded(state: UserState) -> None:
    carried = CarriedStates(KEY, "index", 600)
    raw = bytearray(base64.b64decode(carried.seal(7, TOKEN, state) or ""))
    for place in (0, 31, 32, 36, 40, len(raw) // 2, len(raw) - 1):
        raw[place] ^= 1
        with pytest.raises(RejectedInput, match="not signed"):
            carried.open(base64.b64encode(raw).decode(), 7)
        raw[place] ^= 1
    assert carried.open(base64.b64encode(raw).decode(), 7) is not None


def test_an_old_state_is_lost_and_one_that_is_too_large_is_not_handed_out(state: UserState, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    carried = CarriedStates(KEY, "index", 600, clock=clock)
    text = carried.seal("seven", TOKEN, state)
    assert text is not None and len(text) < CARRIED_STATE_BYTES_MAX
    for step_s in (601, -3600):  # the other: an operator sets the clock back by an hour
        clock.now_s += step_s
        assert carried.open(text, "seven") is None
    assert carried.events["expired"] == 2
    monkeypatch.setattr("serving.calls.carried_state.CARRIED_STATE_BYTES_MAX", 100)
    assert carried.seal("seven", TOKEN, state) is None and carried.events["too_large"] == 1


@pytest.mark.parametrize("kind", IdKind)
def test_a_state_comes_back_as_it_was_for_both_kinds_of_ids(kind: IdKind, state: UserState) -> None:
    carried = CarriedStates(KEY, "index", 600)
    user = 7 if kind is IdKind.INT64 else "seven"
    opened = carried.open(carried.seal(user, TOKEN, state) or "", user)
    assert opened is not None and opened.token == TOKEN
    about = ("version", "behaviours", "behaviours_without_row", "cold")
    assert all(getattr(opened.state, name) == getattr(state, name) for name in about)
