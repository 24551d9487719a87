"""The moving world: what stays and what moves, that ranking stays as hard, and that a period's events are of that period."""

import itertools

import numpy as np

from lab.catalogues.world import WorldSize
from lab.catalogues.world_catalogue import DAY_MS
from lab.catalogues.world_drift import BEHAVIOURS_PER_PERIOD, DriftingCatalogue

SIZE = WorldSize(items=400, users=60, held_out=20, requests_per_user=2, shown_per_request=6)


def drifting(seed: int = 0) -> DriftingCatalogue:
    return DriftingCatalogue(seed, SIZE, periods=4, past_requests_per_user=3)


def test_items_and_profiles_stay_and_popularity_and_tastes_move() -> None:
    catalogue = drifting()
    before, after = catalogue.world(0), catalogue.world(4)
    for name in ("category_I", "latent_IZ", "style_IA", "attributes_IA", "facet_IF", "occasion_I", "log_price_I", "bid_I"):
        assert np.array_equal(getattr(before.items, name), getattr(after.items, name)), name
    assert np.array_equal(before.embeddings_of(0, 9), after.embeddings_of(0, 9))
    assert np.array_equal(before.users.facets_UGF, after.users.facets_UGF)
    assert abs(np.corrcoef(before.items.quality_I, after.items.quality_I)[0, 1]) < 0.4
    assert (before.users.interests_UQ != after.users.interests_UQ).mean() > 0.9


def test_it_moves_little_by_little_and_ranking_stays_as_hard() -> None:
    catalogue = drifting()
    quality = [catalogue.world(t).items.quality_I for t in range(5)]
    near = [float(np.corrcoef(a, b)[0, 1]) for a, b in itertools.pairwise(quality)]
    assert min(near) > 0.8
    users, rows = np.arange(60), np.tile(np.arange(400), (60, 1))
    rates = [float(catalogue.world(t).click_probability(users, rows).mean()) for t in range(5)]
    assert max(rates) < 1.5 * min(rates)


def test_a_seed_is_one_world_and_periods_are_drawn_apart() -> None:
    one, again, other = (list(drifting(seed).impressions(2)) for seed in (0, 0, 1))
    assert one == again != other
    assert [i.items for i in one] != [i.items for i in drifting().impressions(3)]


def test_events_of_a_period_are_of_its_day() -> None:
    catalogue = drifting()
    for period in (1, 3):
        begin = catalogue.begin_ms(period)
        shown, met = list(catalogue.impressions(period)), list(catalogue.behaviours(period))
        assert len(shown) == 60 * 2 and len(met) == 80 * BEHAVIOURS_PER_PERIOD
        assert all(begin <= e.time_ms < begin + DAY_MS for e in (*shown, *met))
    assert all(e.time_ms < catalogue.begin_ms(1) for e in (*catalogue.impressions(0), *catalogue.behaviours(0)))
    assert {i.user_id for i in catalogue.impressions(1)}.isdisjoint(catalogue.held_out_ids)
