"""The synthetic world: the same from the same seed, honest with its latents, and every signal of a click counts."""

import itertools
import json

import numpy as np
import pytest

from lab.catalogues import world as world_module
from lab.catalogues.world import KUAIRAND_1K, LIGHT, SIGNALS, HistoryShape, World, WorldSize
from lab.catalogues.world_catalogue import FIRST_ITEM_ID, FIRST_USER_ID, NOW_MS, WorldCatalogue
from lab.evaluation.world_truth import WorldTruth
from schemas.features import Scope
from streams.training.measures import expected_aucs

SMALL = WorldSize(items=600, users=60, held_out=20, requests_per_user=3, shown_per_request=8)


def small(seed: int = 0) -> WorldCatalogue:
    return WorldCatalogue(World(seed, SMALL))


def true_ecpm(catalogue: WorldCatalogue, user: int, items: np.ndarray) -> np.ndarray:
    """The teacher's eCPM of a user on some items, by their ids."""
    return catalogue.world.true_ecpm(np.array([user - FIRST_USER_ID]), items[None] - FIRST_ITEM_ID)[0]


def told(catalogue: WorldCatalogue) -> list[str]:
    """Every event of the catalogue as JSON, in publish order."""
    parts = (catalogue.items(), catalogue.new_items(), catalogue.users(), catalogue.behaviours(), catalogue.impressions())
    later = (catalogue.price_changes(5, 1), (event for pair in catalogue.arrivals(5, 1) for event in pair))
    return [event.model_dump_json() for event in itertools.chain(*parts, *later)]


def test_one_seed_tells_one_world_whatever_was_asked_first() -> None:
    backwards = small()
    list(backwards.impressions())
    list(backwards.behaviours())
    assert told(backwards) == told(small())


def test_another_seed_tells_another_world() -> None:
    assert not set(told(small(1))) & set(told(small(2)))


def test_the_first_items_of_a_larger_world_are_the_items_of_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "CHUNK_ITEMS", 512)  # the smaller world ends inside a chunk of the larger one
    fewer, more = (WorldCatalogue(World(0, WorldSize(items=items, users=5, held_out=5))) for items in (700, 1_500))
    assert fewer.world.size.categories == more.world.size.categories
    assert list(fewer.items()) == list(itertools.islice(more.items(), 700))
    assert list(fewer.new_items()) == list(itertools.islice(more.new_items(), 700))


@pytest.mark.parametrize(("first", "last"), [(0, 600), (255, 258), (256, 512), (599, 600), (10, 11)])
def test_an_embedding_does_not_depend_on_the_slice_it_is_asked_in(first: int, last: int) -> None:
    world = small().world
    np.testing.assert_array_equal(world.embeddings_of(first, last), world.embeddings_of(0, 600)[first:last])


def test_embeddings_are_noisy_views_and_latents_stay_inside() -> None:
    catalogue = small()
    latents, embeddings = catalogue.world.items.latent_IZ, catalogue.world.embeddings_of(0, 600)
    view, *_ = np.linalg.lstsq(latents, embeddings, rcond=None)
    noise = (embeddings - latents @ view).std()
    assert 0.05 < noise < embeddings.std()
    published = {f.name for f in catalogue.schema.features}
    for event in (next(catalogue.items()), next(catalogue.users()), next(catalogue.behaviours())):
        assert set(event.features) <= published
    assert not {"latent", "quality", "interest", "centre"} & {name.rsplit("_", 1)[0] for name in published}


def test_events_carry_exactly_the_features_of_the_schema() -> None:
    catalogue = small()
    names = {scope: {f.name for f in catalogue.schema.of(scope)} for scope in Scope}
    assert set(next(catalogue.items()).features) | {catalogue.schema.multimodal} == names[Scope.ITEM]
    assert len(next(catalogue.new_items()).embedding) == catalogue.schema.mm_width
    assert set(next(catalogue.users()).features) == names[Scope.USER]
    assert set(next(catalogue.behaviours()).features) == names[Scope.BEHAVIOUR]
    assert set(next(catalogue.impressions()).context) == names[Scope.CONTEXT]


def test_held_out_users_have_a_history_and_no_impression() -> None:
    catalogue = small()
    held_out = {user.user_id for user in catalogue.evaluation().users}
    assert len(held_out) == SMALL.held_out
    assert held_out <= {b.user_id for b in catalogue.behaviours()} and held_out <= {u.user_id for u in catalogue.users()}
    assert not held_out & {i.user_id for i in catalogue.impressions()}


def test_events_come_in_order_of_time_and_none_after_the_evaluation() -> None:
    catalogue = small()
    for events in (catalogue.behaviours(), catalogue.impressions()):
        times = [event.time_ms for event in events]
        assert times == sorted(times) and times[-1] <= NOW_MS


def test_the_relevant_items_are_the_ten_with_the_highest_true_ecpm() -> None:
    catalogue = small()
    for user in catalogue.evaluation().users[:5]:
        ecpm = true_ecpm(catalogue, user.user_id, user.candidates)
        assert user.relevant == set(user.candidates[np.argsort(-ecpm, kind="stable")[:10]].tolist())


def test_an_impression_tells_the_teachers_ecpm_and_shows_no_item_twice() -> None:
    catalogue = small()
    for impression in itertools.islice(catalogue.impressions(), 20):
        shown = [s.item_id for s in impression.items]
        assert len(set(shown)) == len(shown)
        ecpm = true_ecpm(catalogue, impression.user_id, np.array(shown))
        np.testing.assert_allclose([s.teacher_ecpm for s in impression.items], ecpm, atol=1e-3)


def test_clicks_follow_the_true_probability() -> None:
    shown = WorldCatalogue(World(0, WorldSize(items=600, users=300, held_out=5)))._shown
    for low, high in ((0.0, 0.05), (0.05, 0.3), (0.3, 1.0)):
        chosen = (shown["probability"] >= low) & (shown["probability"] < high)
        expected, n = shown["probability"][chosen].mean(), chosen.sum()
        assert abs(shown["clicked"][chosen].mean() - expected) < 5 * np.sqrt(expected / n)


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_signal_moves_who_is_shown_first(signal: str) -> None:
    world = small().world
    users, items = np.arange(40), np.tile(np.arange(600), (40, 1))
    whole = world.true_ecpm(users, items)
    without = World(world.seed, world.size, SIGNALS | {signal: 0.0}).true_ecpm(users, items)
    best, other = (np.argsort(-scores, axis=1)[:, :10] for scores in (whole, without))
    kept = np.mean([len(set(a) & set(b)) for a, b in zip(best.tolist(), other.tolist(), strict=True)]) / 10
    assert kept < 0.97


def test_popularity_knows_something_but_little() -> None:
    catalogue = WorldCatalogue(World(0, WorldSize(items=2_000, users=400, held_out=100)))
    evaluation = catalogue.evaluation()
    found = [
        len(user.relevant & set(user.candidates[np.argsort(-evaluation.popularity_of(user.candidates))[:100]].tolist())) / 10
        for user in evaluation.users
    ]
    assert 0.08 < np.mean(found) < 0.5  # chance is 0.05


def test_later_price_changes_have_higher_versions_and_other_bids() -> None:
    catalogue = small()
    known = {update.item_id: update for update in catalogue.items()}
    first, second = (list(catalogue.price_changes(30, seed)) for seed in (1, 2))
    assert max(u.version for u in first) < min(u.version for u in second)
    for update in first + second:
        before = known[update.item_id]
        assert update.version > before.version and update.features["price"] > 0 < update.features["bid"]
        assert update.features["bid"] != before.features["bid"]
        assert {k: v for k, v in update.features.items() if k not in ("price", "bid")} == {
            k: v for k, v in before.features.items() if k not in ("price", "bid")
        }


def test_arrivals_are_new_and_apart_for_each_seed() -> None:
    catalogue = small()
    ids = [update.item_id for seed in (0, 1) for update, _ in catalogue.arrivals(20, seed)]
    assert len(set(ids)) == 40 and not set(ids) & {update.item_id for update in catalogue.items()}
    for update, new_item in catalogue.arrivals(3, 0):
        assert new_item.item_id == update.item_id and len(new_item.embedding) == catalogue.schema.mm_width


@pytest.mark.parametrize("items", [1, 2, 9, 40])
def test_a_tiny_world_is_a_whole_world(items: int) -> None:
    catalogue = WorldCatalogue(World(3, WorldSize(items=items, users=4, held_out=2, requests_per_user=1, shown_per_request=4)))
    events = [json.loads(text) for text in told(catalogue)]
    assert len(events) > 4 * items and all(len(u.candidates) == items for u in catalogue.evaluation().users)


def test_lengths_have_the_quantiles_that_are_stated() -> None:
    z = np.random.default_rng(0).standard_normal(200_000)
    for shape, expected in ((KUAIRAND_1K, {10: 1_998, 50: 8_327, 90: 24_418, 99: 62_626}), (LIGHT, {50: 300}), (HistoryShape(), {50: 45})):
        lengths = shape.lengths_of(z)
        for percent, behaviours in expected.items():
            assert np.percentile(lengths, percent) == pytest.approx(behaviours, rel=0.03)
        assert lengths.max() == shape.longest and lengths.min() == shape.lengths[0][1]


@pytest.fixture(scope="module")
def long_lived() -> World:
    return World(0, WorldSize(items=2_000, users=40, held_out=60, history=LIGHT))


def test_waves_of_users_have_histories_of_their_own_lengths(long_lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "WAVE_PLACES", 7 * LIGHT.longest)
    waves = WorldCatalogue(World(0, long_lived.size))
    histories, columns = waves.world.histories, waves.behaviour_columns
    assert len(histories.waves) > 10 and (histories.length_U == long_lived.histories.length_U).all()
    assert (np.bincount(columns["user"]) == histories.length_U).all() and (np.diff(columns["time_ms"]) >= 0).all()
    for user in (0, 7, 99):
        assert columns["item"][columns["user"] == user].tolist() == histories.items_of(user).tolist()


def test_old_behaviours_tell_of_interests_that_recent_ones_do_not(long_lived: World) -> None:
    """Ranked by likeness to the history, the longer history knows more of the true clicks."""
    truth, latent = WorldTruth(WorldCatalogue(long_lived)), long_lived.items.latent_IZ
    probability = truth.probabilities(truth.near)

    def gauc(longest: int) -> float:
        of_users = zip(truth.near, truth.held_out.tolist(), strict=True)
        near = [np.exp(6 * latent[items] @ latent[long_lived.histories.items_of(user)[-longest:]].T).mean(1) for items, user in of_users]
        return expected_aucs(np.stack(near), probability).mean()

    assert gauc(LIGHT.longest) > gauc(64) + 0.02
