"""What the network learns in the synthetic world from the same events that a publisher sends: HR@K of users kept out of training."""

import dataclasses

import numpy as np
import torch

from infra.data.catalogue import Evaluation
from infra.data.world import World, WorldSize
from infra.data.world_catalogue import WorldCatalogue
from schemas.events import ImpressionRecord, ShownItem
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import Events, TrainingSet, join_events
from streams.training.metrics import hit_rates
from streams.training.model_file import default_spec
from streams.training.trainer import fit, task_logits

TOP = 50


def measured(evaluation: Evaluation) -> list[ImpressionRecord]:
    """Each held-out user as one request that shows every candidate."""
    return [
        ImpressionRecord(
            request_id=f"held-out-{number}",
            user_id=user.user_id,
            time_ms=evaluation.now_ms,
            items=[
                ShownItem(item_id=item, position=p, bid=1.0, clicked=item in user.relevant)
                for p, item in enumerate(user.candidates.tolist())
            ],
        )
        for number, user in enumerate(evaluation.users)
    ]


@torch.no_grad()
def scores_of(network: AifNetwork, data: TrainingSet) -> np.ndarray:
    """Scores of every shown item, [Q, C]."""
    vectors = network.item_rows(data.items.inputs)[0]
    batch = data.batch(np.arange(len(data)), 256)
    logits = task_logits(network, data, batch, lambda rows: vectors[rows.clamp(min=0)] * (rows >= 0)[..., None])[..., 0]
    return network.scores(logits[..., None], data.items.bid_R[batch.rows_BC])[0].numpy()


def test_a_short_training_finds_what_held_out_users_want_far_better_than_popularity() -> None:
    catalogue = WorldCatalogue(World(0, WorldSize(items=900, users=600, held_out=50, requests_per_user=3)))
    evaluation, spec = catalogue.evaluation(), default_spec(catalogue.schema)
    w_hash = make_w_hash(0, spec.hash_bits, catalogue.schema.mm_width)
    events = Events(
        *(list(e) for e in (catalogue.items(), catalogue.new_items(), catalogue.users(), catalogue.behaviours(), catalogue.impressions()))
    )
    data = join_events(spec, w_hash, events)
    held_out = join_events(spec, w_hash, dataclasses.replace(events, impressions=measured(evaluation)))
    torch.manual_seed(0)
    network = AifNetwork(spec, w_hash)
    fit(network, data, TrainChoices(steps=120))
    relevant = held_out.clicked_QC > 0
    assert len(held_out) == 50 and (relevant.sum(axis=1) == 10).all()
    learned = hit_rates(scores_of(network, held_out), relevant, TOP).mean()
    popularity = hit_rates(np.stack([evaluation.popularity_of(user.candidates) for user in evaluation.users]), relevant, TOP).mean()
    assert learned > 1.3 * popularity > 1.3 * TOP / 900, (learned, popularity)
