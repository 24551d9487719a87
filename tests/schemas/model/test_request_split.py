"""A network whose parts of user and item do not stay apart is refused when it is made, wherever the leak is."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schemas.errors import Misconfigured
from schemas.model import network as network_file
from schemas.model.bea import BridgeEmbedding
from schemas.model.head import Head
from schemas.model.item_half import ItemHalf
from schemas.model.network import AifNetwork
from schemas.model.request_split import check_request_split
from schemas.model.spec import ModelSpec
from schemas.model.user_half import UserHalf
from tests.schemas.model.samples import SPECS, make_network

LEFT_BEHIND: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    LEFT_BEHIND.clear()
    yield
    LEFT_BEHIND.clear()


class CarelessHead(Head):
    """Leaves what it computes where others can find it."""

    def item_part(self, states: Any, rows: Any) -> Tensor:
        part = super().item_part(states, rows)
        LEFT_BEHIND.update(rows=rows, part=part, mean=part.mean(dim=1) * 2)
        return part


class CuriousUserHalf(UserHalf):
    """Looks at the candidates of the last request."""

    what = "rows"

    def forward(self, profile: Any, projected_BLD: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        user_BU, rows_BGD = super().forward(profile, projected_BLD, mask_BL)
        if self.what in LEFT_BEHIND:
            seen = LEFT_BEHIND[self.what]
            user_BU = user_BU + (seen.vectors_BCD.float() if self.what == "rows" else seen).sum()
        return user_BU, rows_BGD


def make(monkeypatch: pytest.MonkeyPatch, **classes: type) -> AifNetwork:
    for name, planted in classes.items():
        monkeypatch.setattr(network_file, name, planted)
    return AifNetwork(SPECS["full"], None)


@pytest.mark.parametrize("name", SPECS)
def test_every_shape_of_network_stays_apart(name: str) -> None:
    check_request_split(make_network(SPECS[name]))


@pytest.mark.parametrize("what", ["rows", "part", "mean"])
def test_a_user_part_that_reads_a_candidate_or_what_was_made_of_one_is_refused(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(CuriousUserHalf, "what", what)
    with pytest.raises(Misconfigured, match="user_half belongs to the user part and reads a candidate tensor"):
        make(monkeypatch, Head=CarelessHead, UserHalf=CuriousUserHalf)


def test_a_module_deep_in_the_user_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class CuriousNorm(nn.LayerNorm):
        def forward(self, given: Tensor) -> Tensor:
            return super().forward(given) + (LEFT_BEHIND["mean"].sum() if LEFT_BEHIND else 0)

    class CuriousBridges(BridgeEmbedding):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.user_norm = CuriousNorm(spec.width)

    with pytest.raises(Misconfigured, match=r"bea\.user_norm belongs to the user part"):
        make(monkeypatch, Head=CarelessHead, BridgeEmbedding=CuriousBridges)


def test_an_item_part_that_reads_a_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class TalkingUserHalf(UserHalf):
        def forward(self, profile: Any, projected_BLD: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
            LEFT_BEHIND["user"] = super().forward(profile, projected_BLD, mask_BL)
            return LEFT_BEHIND["user"]  # type: ignore[no-any-return]

    class CuriousItemHalf(ItemHalf):
        def forward(self, items: Any) -> tuple[Tensor, Tensor]:
            vectors_RD, keys_RD = super().forward(items)
            return vectors_RD + LEFT_BEHIND["user"][0].sum() if LEFT_BEHIND else vectors_RD, keys_RD

    with pytest.raises(Misconfigured, match="item_half belongs to the item part and reads a user tensor"):
        make(monkeypatch, UserHalf=TalkingUserHalf, ItemHalf=CuriousItemHalf)


def test_looking_draws_nothing_from_torchs_random_numbers() -> None:
    torch.manual_seed(3)
    network, state = make_network(SPECS["full"]), torch.get_rng_state()
    check_request_split(network)
    assert torch.equal(torch.get_rng_state(), state)
