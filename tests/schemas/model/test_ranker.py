"""The ranker in pieces gives what its one-pass specification gives, wherever it is cut; and planted bugs of each rule are found."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from schemas.errors import Misconfigured
from schemas.features import Scope
from schemas.model import network as network_file
from schemas.model.inputs import FeatureTensors
from schemas.model.random_inputs import draw_block
from schemas.model.ranker import layers as layers_file
from schemas.model.ranker.layers import Kv
from schemas.model.ranker.ranker import Ranker
from schemas.model.ranker.spec import RankerSpec, encode_items, window_start
from tests.schemas.model.samples import SPECS, make_network

SPEC = SPECS["ranker"]
BOUND = 1e-5


@dataclasses.dataclass
class Request:
    """One user: tokens before the candidates [1, n, D], candidates [1, C, D], AIF's logits [1, C, T]."""

    before: Tensor
    candidates: Tensor
    logits: Tensor


def ranker() -> Ranker:
    found = make_network(SPEC).ranker
    assert found is not None
    return found.eval()


def draw_request(network: Ranker, history: int, candidates: int, seed: int = 0) -> Request:
    rng = torch.Generator().manual_seed(seed)
    draw = lambda below, *shape: torch.randint(below, shape, generator=rng)  # noqa: E731
    logits = torch.randn(1, candidates, 1, generator=rng)
    features = {scope: FeatureTensors.from_block(draw_block(SPEC.schema.of(scope), 1, None)) for scope in (Scope.USER, Scope.CONTEXT)}
    tokens = (
        network.profile_token(features[Scope.USER]),
        network.behaviour_tokens(draw(31, 1, history), draw(3, 1, history)),
        network.context_token(features[Scope.CONTEXT]),
    )
    return Request(torch.cat(tokens, 1), network.candidate_tokens(draw(31, 1, candidates), logits), logits)


def full(network: Ranker, request: Request) -> Tensor:
    n = request.before.shape[1]
    positions, seen = torch.arange(n)[None], torch.ones(1, n, dtype=torch.bool)
    return network.full(request.before, positions, seen, request.candidates, request.logits)


def join(older: Kv, newer: Kv) -> Kv:
    return Kv(torch.cat([older.keys, newer.keys], -2), torch.cat([older.values, newer.values], -2))


def in_pieces(network: Ranker, request: Request, cuts: Sequence[int], micro: int) -> Tensor:
    """The prefix in pieces that end at `cuts`, then `micro` candidates at a time."""
    n, past = request.before.shape[1], None
    for a, b in itertools.pairwise(sorted({0, n, *(cut % n for cut in cuts)})):
        newer = network.extend(request.before[:, a:b], past)
        past = newer if past is None else join(past, newer)
    assert past is not None and past.tokens == n
    parts = zip(request.candidates.split(micro, 1), request.logits.split(micro, 1), strict=True)
    return torch.cat([network.score(tokens, logits, past) for tokens, logits in parts], 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 80), st.integers(1, 40), st.lists(st.integers(0, 90), max_size=5), st.integers(1, 40), st.integers(0, 9))
@torch.inference_mode()
def test_any_cut_gives_the_logits_of_one_pass(history: int, candidates: int, cuts: list[int], micro: int, seed: int) -> None:
    network = ranker()
    request = draw_request(network, history, candidates, seed)
    assert (full(network, request) - in_pieces(network, request, cuts, micro)).abs().max() <= BOUND


@torch.inference_mode()
def test_padding_changes_nothing() -> None:
    network = ranker()
    request = draw_request(network, 20, 7)
    padded = torch.cat([torch.full_like(request.before[:, :5], 3.0), request.before], 1)
    n = request.before.shape[1]
    positions = torch.cat([torch.zeros(5, dtype=torch.int64), torch.arange(n)])[None]
    seen = (torch.arange(n + 5) >= 5)[None]
    got = network.full(padded, positions, seen, request.candidates, request.logits)
    assert (full(network, request) - got).abs().max() <= BOUND


@torch.inference_mode()
def test_fp16_keys_and_values_stay_within_the_bound_of_the_store() -> None:
    network = ranker()
    request = draw_request(network, 60, 30)
    past = network.extend(request.before[:, :50])
    kept = Kv(past.keys.half(), past.values.half())
    after = network.extend(request.before[:, 50:], kept)
    kept = join(kept, Kv(after.keys.half(), after.values.half()))
    assert (full(network, request) - network.score(request.candidates, request.logits, kept)).abs().max() <= 1e-2


def test_an_untrained_ranker_gives_the_order_of_aif() -> None:
    torch.manual_seed(1)
    network = Ranker(SPEC)
    request = draw_request(network, 20, 7)
    assert torch.equal(full(network, request), request.logits)


def sees_the_newer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return layers_file._weights(q, k) @ v


@pytest.mark.parametrize(
    "rule", ["divides by the length", "positions from the newest", "candidates see each other", "a token sees the next"]
)
@torch.inference_mode()
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = ranker()
    request = draw_request(network, 40, 9)
    right = in_pieces(network, request, [25], 4)
    if rule == "divides by the length":
        monkeypatch.setattr(network.layers, "spec", dataclasses.replace(SPEC.ranker, attention_norm=25))  # type: ignore[type-var]
        past = network.extend(request.before[:, :25])
        monkeypatch.setattr(network.layers, "spec", dataclasses.replace(SPEC.ranker, attention_norm=51))  # type: ignore[type-var]
        past = join(past, network.extend(request.before[:, 25:], past))
        wrong = network.score(request.candidates, request.logits, past)
    elif rule == "positions from the newest":
        past = network.extend(request.before[:, :25])
        newer = network.layers.keys_values(request.before[:, 25:], torch.arange(17) - 17, past, layers_file.causal)
        wrong = network.score(request.candidates, request.logits, join(past, newer))
    else:
        name = "alone" if rule == "candidates see each other" else "causal"
        monkeypatch.setattr("schemas.model.ranker.ranker." + name, sees_the_newer)
        wrong = in_pieces(network, request, [25], 4)
    assert (right - wrong).abs().max() > 100 * BOUND


class CuriousRanker(Ranker):
    """Its prefix reads the context of the last request."""

    last: Any = None

    def context_token(self, context: FeatureTensors) -> Tensor:
        self.last = super().context_token(context)
        return self.last

    def profile_token(self, profile: FeatureTensors) -> Tensor:
        token = super().profile_token(profile)
        return token if self.last is None else token + self.last


def test_a_prefix_that_reads_the_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_file, "Ranker", CuriousRanker)
    with pytest.raises(Misconfigured, match="belongs to the prefix part"):
        make_network(SPEC)


@given(st.integers(0, 5_000))
def test_the_window_moves_in_steps_and_never_exceeds_its_bound(length: int) -> None:
    spec = RankerSpec(history_max=300, history_step=100)
    start = window_start(spec, length)
    assert start % 100 == 0 and length - start <= 300
    assert start == 0 or length - start > 200


@pytest.mark.parametrize("wrong", [{"width": 18}, {"layers": 0}, {"heads": 2.0}, {"history_step": 4_096}, {"item_buckets": 1}])
def test_sizes_that_make_no_ranker_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=rf"ranker\.{next(iter(wrong))} = "):
        RankerSpec(**wrong)


def test_items_have_rows_that_do_not_depend_on_the_process() -> None:
    assert encode_items(RankerSpec(), [1, 2, 10**12]).tolist() == encode_items(RankerSpec(), ["1", "2", str(10**12)]).tolist()
