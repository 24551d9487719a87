"""Two processes that share a batch have the gradients of one process over all of it."""

import dataclasses

import pytest
import torch

from schemas.train_choices import TrainChoices
from streams.training.team import fit_in_processes
from streams.training.trainer import fit
from tests.streams.training.test_trainer import network_of, taste_world


@pytest.mark.campaign  # each process imports torch
def test_two_processes_have_the_gradients_of_one_over_the_union_of_their_requests() -> None:
    data = taste_world(20, 12)
    mask = torch.rand(data.row_QC.shape, generator=torch.Generator().manual_seed(1)).numpy() < 0.3
    data = dataclasses.replace(data, row_QC=data.row_QC.copy())
    data.row_QC[mask] = -1  # requests of different lengths: a mean of means would be another loss
    options = TrainChoices(steps=1, batch_requests=7, softmax=0.5)
    alone, together = network_of(data), network_of(data)
    expected, found = fit(alone, data, options), fit_in_processes(together, data, options, 2)
    assert abs(found.copr - expected.copr) < 1e-5 and abs(found.click - expected.click) < 1e-5
    for (name, ours), theirs in zip(alone.named_parameters(), together.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-4, atol=1e-6, msg=name)
