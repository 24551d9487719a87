"""`aif bench device` without one: its figures on torch's device "cpu", and its error where a device is wanted."""

import os

import pytest
import torch

from lab.serving.device import DEVICE, measure_device
from lab.serving.world import Plan
from schemas.errors import Misconfigured


def test_every_figure_is_measured_and_the_device_answers_like_the_cpu() -> None:
    cores = os.sched_getaffinity(0)
    run = measure_device(12_000, Plan((100, 1_000), 1, 2), "cpu").as_dict()
    assert os.sched_getaffinity(0) == cores, "only the engine's own threads are bound"
    assert run["config"]["device"] == "cpu" and run["config"]["tiers_by"] == "torch, because the device is cpu"
    figures = {name: one["value"] for name, one in run["figures"].items()}
    assert {f.name.replace("{candidates}", size) for f in DEVICE.figures for size in ("100", "1000")} == set(figures)
    assert all(figures[name] > 0 for name in figures if name.endswith(("_100", "_1000")))
    assert figures["cuda_difference_max"] < 1e-3 and figures["cuda_overlap"] >= 0.99


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(Misconfigured, match="no CUDA device here"):
        measure_device(12_000, Plan((100,), 1, 2))
