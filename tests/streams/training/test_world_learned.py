"""What the network learns in the synthetic world from the same events that a publisher sends: HR@K of users kept out of training."""

import numpy as np
import torch

from lab.catalogues.world import World, WorldSize
from lab.catalogues.world_catalogue import WorldCatalogue
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import Events, join_events
from streams.training.measures import hit_rates
from streams.training.model_file import default_spec
from streams.training.questions import ask, score_tasks
from streams.training.trainer import fit

TOP = 50


def test_a_short_training_finds_what_held_out_users_want_far_better_than_popularity() -> None:
    catalogue = WorldCatalogue(World(0, WorldSize(items=900, users=600, held_out=50, requests_per_user=3)))
    evaluation, spec = catalogue.evaluation(), default_spec(catalogue.schema)
    w_hash = make_w_hash(0, spec.hash_bits, catalogue.schema.mm_width)
    events = Events(
        *(list(e) for e in (catalogue.items(), catalogue.new_items(), catalogue.users(), catalogue.behaviours(), catalogue.impressions()))
    )
    data = join_events(spec, w_hash, events, every_item=True)
    torch.manual_seed(0)
    network = AifNetwork(spec, w_hash)
    fit(network, data, TrainChoices(steps=120))
    questions = ask(data, [u.user_id for u in evaluation.users], evaluation.now_ms, np.stack([u.candidates for u in evaluation.users]))
    relevant = np.array([[item in user.relevant for item in user.candidates.tolist()] for user in evaluation.users])
    assert relevant.sum(axis=1).tolist() == [10] * 50
    scores = questions.bid_QC / (1 + np.exp(-score_tasks(network, questions)[..., 0]))
    learned = hit_rates(scores, relevant, TOP).mean()
    popularity = hit_rates(np.stack([evaluation.popularity_of(user.candidates) for user in evaluation.users]), relevant, TOP).mean()
    assert learned > 1.3 * popularity > 1.3 * TOP / 900, (learned, popularity)
