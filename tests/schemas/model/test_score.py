"""The formula a model ranks by: what reads, what does not, and that a score grows with every factor."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Misconfigured
from schemas.model.score import bid_exponent, decode_rank_by, rank_scores
from schemas.model.spec import decode_model_spec
from tests.schemas.model.samples import SPECS

TWO = SPECS["two_tasks_by_formula"]
TERMS = TWO.rank_terms


def test_named_formulas_and_products_read() -> None:
    assert decode_rank_by("ecpm") == (("click", 1.0), ("bid", 1.0)) and decode_rank_by("click") == (("click", 1.0),)
    assert decode_rank_by(" click*buy^0.5 * bid^2") == (("click", 1.0), ("buy", 0.5), ("bid", 2.0))
    assert (bid_exponent("ecpm"), bid_exponent("click"), bid_exponent("buy * bid^0.5")) == (1.0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("rank_by", "told"),
    [
        ("luck", "no tasks of the model"),
        ("click * love", "no tasks"),
        ("click + buy", "no factor"),
        ("click^0", "above 0"),
        ("click^9", "at most 8"),
        ("click * click", "twice"),
        ("bid", "without the model"),
        ("click **", "no factor"),
        ("__import__('os')", "no factor"),
        ("", "no factor"),
    ],
)
def test_what_is_no_formula_of_the_models_tasks_is_refused_with_its_reason(rank_by: str, told: str) -> None:
    with pytest.raises(Misconfigured, match="bad_model_spec") as refused:
        dataclasses.replace(TWO, rank_by=rank_by)
    assert told in str(refused.value)


def test_a_bid_in_a_formula_needs_a_bid_in_the_schema_and_tasks_need_names_of_their_own() -> None:
    for wrong in ({"rank_by": "click * bid"}, {"tasks": ("click", "click")}, {"tasks": ("click", "bid")}):
        with pytest.raises(Misconfigured):
            dataclasses.replace(SPECS["no_bid_text_ids"], **wrong)  # type: ignore[arg-type]


def test_a_formula_travels_with_the_spec_and_changes_its_fingerprint() -> None:
    assert decode_model_spec(TWO.to_dict()) == TWO
    assert dataclasses.replace(TWO, rank_by="click * buy * bid").fingerprint != TWO.fingerprint


def test_ecpm_is_the_product_to_the_bit() -> None:
    chance = torch.Generator().manual_seed(0)
    probabilities, bids = torch.rand(1, 50, 2, generator=chance), torch.rand(1, 50, generator=chance)
    assert torch.equal(rank_scores(decode_rank_by("ecpm"), ("click", "buy"), probabilities, bids), probabilities[..., 0] * bids)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 2), st.floats(0, 1))
def test_a_score_grows_with_each_of_its_factors(values: list[float], raised: int, by: float) -> None:
    def score(click: float, buy: float, bid: float) -> float:
        return float(rank_scores(TERMS, TWO.tasks, np.array([[click, buy]]), np.array([bid]))[0])

    more = [value + by * (n == raised) for n, value in enumerate(values)]
    assert score(*more) >= score(*values)
