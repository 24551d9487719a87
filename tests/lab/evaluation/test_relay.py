"""`aif eval relay` in small: every declared figure is measured, and 8 bits round more than 16."""

import torch

from lab.catalogues.world import HistoryShape, WorldSize
from lab.evaluation.relay import RelayPlan, in_fp16, in_int8, run_relay
from schemas.model.ranker.layers import Kv


def test_a_small_run_measures_every_figure() -> None:
    size = WorldSize(400, 30, 10, 2, 8, HistoryShape(((-2.0, 20), (2.0, 40)), 4, 0.3, 5))
    figures = run_relay(RelayPlan(size, aif_steps=3, ranker_steps=3, aif_reads=8, ranker_reads=(64, 128)))
    for name in (
        "gauc_aif",
        "gauc_ranker_64",
        "hr_at_10_ranker_128",
        "gauc_gain",
        "hr_at_10_gain_by_length",
        "gauc_lost_int8",
        "top10_kept_fp16",
    ):
        assert figures.value(name) is not None, name
    assert figures.value("users") == 6


def test_eight_bits_are_relative_to_the_largest_of_head_and_token() -> None:
    kept = torch.randn(2, 1, 2, 5, 8) * torch.tensor([1.0, 1e3])[None, None, :, None, None]
    exact = Kv(kept, kept)
    for form, bound in ((in_fp16, 2**-11), (in_int8, 0.5 / 127)):
        error = (form(exact).keys - kept).abs() / kept.abs().amax(-1, keepdim=True)
        assert 0 < error.max() <= bound * 1.001
