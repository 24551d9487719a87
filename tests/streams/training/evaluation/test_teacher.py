"""A teacher for data without one: its eCPM stands where the log's would, and its choice where no truth is known."""

import numpy as np
import torch

from streams.training.evaluation.teacher import teacher_ecpm, teachers_choice
from streams.training.trainer import task_logits
from tests.streams.training.test_trainer import network_of, taste_world


@torch.no_grad()
def test_the_teachers_ecpm_is_its_click_probability_times_the_bid_of_each_impression() -> None:
    data = taste_world(users=4)
    network = network_of(data).eval()
    ecpm = teacher_ecpm(network, data, 8)
    vectors = network.item_rows(data.items.inputs)[0]
    batch = data.batch(np.arange(len(data)), 8)
    logits = task_logits(network, data, batch, lambda rows: vectors[rows.clamp(min=0)] * (rows >= 0)[..., None])[..., 0]
    expected = (torch.sigmoid(logits) * batch.bid_BC * batch.mask_BC).numpy()
    np.testing.assert_allclose(ecpm, expected, rtol=1e-5)


def test_the_teachers_choice_is_its_best() -> None:
    chosen = teachers_choice(np.array([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), 2)
    assert chosen.tolist() == [[False, True, True], [True, True, False]]
