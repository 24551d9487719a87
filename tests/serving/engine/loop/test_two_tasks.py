"""Two tasks from impressions to an answer: trained on clicks and purchases, written, read, and ranked by the engine as the reference does."""

from pathlib import Path

import numpy as np

from schemas.events import ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem
from schemas.model.checkpoint import read_checkpoint, write_checkpoint
from schemas.train_choices import TrainChoices
from serving.engine.work import UserWork
from streams.training.impressions import Events, join_events
from streams.training.trainer import fit
from tests.schemas.model.samples import SPECS, make_items, make_network
from tests.serving.engine.samples import CONTEXT, PROFILE, item_id, make_behaviours, reference_answer, version_of

SPEC = SPECS["two_tasks_by_formula"]
ITEMS, USERS = 60, 60


def bought_by_quality(items: list[dict[str, object]]) -> Events:
    """Every user clicks half of the shown items, by chance, and buys those of quality, clicked or not: only the second task can learn quality."""
    chance = np.random.default_rng(0)
    ids = [item_id(SPEC.schema.id_kind, n) for n in range(len(items))]
    updates = [
        ItemFeaturesUpdate(item_id=i, version=0, features={k: v for k, v in item.items() if k != "image"})
        for i, item in zip(ids, items, strict=True)
    ]
    new = [NewItem(item_id=i, embedding=item["image"]) for i, item in zip(ids, items, strict=True) if item.get("image")]
    impressions = []
    for user in range(USERS):
        shown = [
            ShownItem(
                item_id=ids[n],
                position=p,
                bid=1.0,
                clicked=bool(chance.random() < 0.5),
                outcomes=["buy"] if items[n].get("quality", 0) > 0 else ["rated"],
            )
            for p, n in enumerate(chance.choice(len(items), 8, replace=False).tolist())
        ]
        impressions.append(ImpressionRecord(request_id=str(user), user_id=user, time_ms=20, items=shown))
    return Events(updates, new, [], [], impressions)


def test_a_model_of_two_tasks_is_trained_written_and_ranks_in_the_engine_as_in_the_reference(tmp_path: Path) -> None:
    items, trained = make_items(ITEMS), make_network(SPEC)
    fit(trained, join_events(SPEC, trained.w_hash_KM, bought_by_quality(items)), TrainChoices(steps=60, batch_requests=16))
    write_checkpoint(tmp_path / "two.safetensors", trained, "two", {})
    version = version_of(read_checkpoint(tmp_path / "two.safetensors").network, items)
    assert version.spec == SPEC
    scorer, behaviours = version.scorer(), make_behaviours(version, 20)
    rows = version.row_numbers
    scores, probabilities = scorer.score(scorer.user_state(UserWork(PROFILE, behaviours)), rows, CONTEXT)
    reference = {i: (score, both) for i, score, both in reference_answer(version, PROFILE, behaviours, range(ITEMS), ITEMS)}
    np.testing.assert_allclose(scores, [reference[i][0] for i in version.ids], rtol=2e-4)
    np.testing.assert_allclose(probabilities, [reference[i][1] for i in version.ids], rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(scores, probabilities[:, 0] * probabilities[:, 1] ** 0.5 * version.rows["bid"], rtol=1e-5)
    good = np.array([item.get("quality", 0) > 0 for item in items])
    assert probabilities[good, 1].mean() > probabilities[~good, 1].mean() + 0.3
