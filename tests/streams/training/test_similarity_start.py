"""A fresh network that starts from similarity: what the item half and the head's products say before any step."""

import dataclasses

import pytest
import torch

from schemas.features import Feature, FeatureSchema, Scope
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.inputs import FeatureTensors
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from streams.training.impressions import join_events
from streams.training.similarity_start import new_network, start_from_similarity
from streams.training.trainer import task_logits
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
    batch = data.batch(torch.arange(2).numpy())
    seen: list[torch.Tensor] = []
    network.user_half.register_forward_hook(lambda *call: seen.append(call[2][0]))
    task_logits(network, data, batch, vectors_RD)[..., 0]
    width = spec.width
    known_BL1 = batch.users.behaviours.mask_BL[..., None]
    history_BLD = vectors_RD[batch.rows_BL.clamp(min=0)] * (batch.rows_BL >= 0)[..., None]
    mean_BD = history_BLD.sum(1) / known_BL1.sum(1).clamp(min=1)
    assert torch.allclose(seen[0][:, width : 2 * width], mean_BD, atol=1e-5)
    assert (network.head.project_user.weight[:, width : 2 * width] == torch.eye(width)).all()


@pytest.mark.parametrize("item_hidden", [(24,), (24, 16)])
def test_an_item_starts_as_its_embedding_and_not_as_the_multimodal_one(item_hidden: tuple[int, ...]) -> None:
    features = (
        Feature("title", Scope.ITEM, EMBEDDING, width=16),
        Feature("category", Scope.ITEM, CATEGORICAL, buckets=4),
        Feature("together", Scope.ITEM, EMBEDDING, width=8),
    )
    spec = ModelSpec(FeatureSchema(features, multimodal="title"), width=8, item_hidden=item_hidden, rank_by="click")
    torch.manual_seed(0)
    network = AifNetwork(spec, torch.randn(spec.hash_bits, 16).numpy())
    start_from_similarity(network)
    rows = 5
    embeddings = torch.randn(rows, 24)
    items = FeatureTensors(torch.arange(rows)[:, None] % 4, torch.zeros(rows, 0), torch.zeros(rows, 0, 0, dtype=torch.int64), embeddings)
    together_RD = torch.nn.functional.layer_norm(embeddings[:, 16:], (8,))
    assert torch.allclose(network.item_rows(items)[0], together_RD, atol=1e-4)
    assert (network.head.project_din.weight == torch.eye(8)).all()


@pytest.mark.parametrize("change", [{"width": 4}, {"item_hidden": (6,)}, {"item_hidden": ()}])
def test_a_start_fits_any_size_of_the_item_half(change: dict[str, object]) -> None:
    feature = Feature("together", Scope.ITEM, EMBEDDING, width=8)
    spec = ModelSpec(FeatureSchema((feature,)), rank_by="click", **change)  # type: ignore[arg-type]
    start_from_similarity(AifNetwork(spec, None))


def test_at_random_the_key_of_an_item_starts_as_much_by_its_category_as_by_its_numbers() -> None:
    """Otherwise some seeds end before they find which category needs which bridge."""
    features = (Feature("kind", Scope.ITEM, CATEGORICAL, buckets=50), *(Feature(f"number_{i}", Scope.ITEM, NUMERIC) for i in range(8)))
    spec = ModelSpec(FeatureSchema(features), embedding_width=8, rank_by="click")
    torch.manual_seed(0)
    network = new_network(spec, 0, "random")
    kinds, numbers = torch.randint(50, (2_000, 1)), torch.randn(2_000, 8)

    def spread(kind: torch.Tensor, number: torch.Tensor) -> float:
        inputs = FeatureTensors(kind, number, torch.zeros(len(kind), 0, 1, dtype=torch.long), torch.zeros(len(kind), 0))
        with torch.no_grad():
            return float(network.item_half.key[0](network.item_half.features(inputs)).var(dim=0).mean())

    by_kind, by_number = spread(kinds, torch.zeros_like(numbers)), spread(torch.ones_like(kinds), numbers)
    assert 2 < by_kind / by_number < 8
