"""Groups of requests by length: every request once, none padded to twice its length, and the logits of the whole batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from streams.training import trainer
from streams.training.impressions import join_events
from streams.training.trainer import SHORT, group_by_length, task_logits
from tests.streams.training.shop import shop


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=40))
def test_every_request_is_in_one_group_and_none_is_padded_to_twice_its_length(lengths: list[int]) -> None:
    mask_BL = torch.arange(1_000) >= 1_000 - torch.tensor(lengths)[:, None]
    groups = group_by_length(mask_BL)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        padded = [max(SHORT, lengths[place]) for place in group.tolist()]
        assert max(padded) < 2 * min(padded)


def test_groups_change_no_logit_and_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, events = shop()
    data = join_events(spec, make_w_hash(1, spec.hash_bits, 16), events)
    torch.manual_seed(0)
    network = AifNetwork(spec, make_w_hash(1, spec.hash_bits, 16))
    batch = data.batch(np.array([1, 2, 0, 1]))  # histories of 4, none, 2 and 4
    monkeypatch.setattr(trainer, "SHORT", 1)
    assert len(group_by_length(batch.users.behaviours.mask_BL)) == 3
    found = []
    for groups in (group_by_length, lambda mask_BL: [torch.arange(len(mask_BL))]):
        monkeypatch.setattr(trainer, "group_by_length", groups)
        network.zero_grad()
        logits_BC = task_logits(network, data, batch, torch.full((len(data.items.version_R), spec.width), 0.1))[..., 0]
        logits_BC.square().sum().backward()
        found.append([logits_BC.detach(), *(p.grad for p in network.parameters() if p.grad is not None)])
    for grouped, whole in zip(*found, strict=True):
        torch.testing.assert_close(grouped, whole, rtol=1e-4, atol=1e-6)
