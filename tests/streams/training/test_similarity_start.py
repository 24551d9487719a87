"""A fresh network that starts from similarity: what the head's products say before any step."""

import dataclasses

import torch

from schemas.model.network import AifNetwork
from streams.training.impressions import join_events
from streams.training.similarity_start import start_from_similarity
from streams.training.trainer import request_logits
from tests.streams.training.shop import shop


def test_the_products_start_as_the_mean_similarity_of_a_candidate_to_the_history() -> None:
    spec, events = shop()
    spec = dataclasses.replace(spec, schema=dataclasses.replace(spec.schema, multimodal=None))
    torch.manual_seed(0)
    network = AifNetwork(spec, None)
    start_from_similarity(network)
    with torch.no_grad():
        for table in (network.behaviour.kinds, network.behaviour.categories, network.behaviour.items):
            if table is not None:
                table.weight.zero_()
    data = join_events(spec, None, events)
    vectors_RD = network.item_rows(data.items.inputs)[0].detach()
    batch = data.batch(torch.arange(2).numpy(), behaviours_max=8)
    seen: list[torch.Tensor] = []
    network.user_half.register_forward_hook(lambda *call: seen.append(call[2][0]))
    request_logits(network, data, batch, lambda rows_BL: vectors_RD[rows_BL.clamp(min=0)] * (rows_BL >= 0)[..., None])
    width = spec.width
    known_BL1 = batch.users.behaviours.mask_BL[..., None]
    history_BLD = vectors_RD[batch.rows_BL.clamp(min=0)] * (batch.rows_BL >= 0)[..., None]
    mean_BD = history_BLD.sum(1) / known_BL1.sum(1).clamp(min=1)
    assert torch.allclose(seen[0][:, width : 2 * width], mean_BD, atol=1e-5)
    assert (network.head.project_user.weight[:, width : 2 * width] == torch.eye(width)).all()
