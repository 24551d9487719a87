"""Thinned histories: which behaviours stay, how a batch holds them, and that a fit of them goes on exactly."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from streams.training.impressions import TrainingSet, join_events
from streams.training.thinned_histories import thin_histories
from streams.training.trainer import VECTORS_EVERY, fit
from streams.training.trainer_state import StateFile
from tests.streams.training.shop import shop
from tests.streams.training.test_trainer import network_of, taste_world
from tests.streams.training.test_trainer_state import OPTIONS, Killed

MASK_BL = np.arange(100) >= np.repeat([0, 60, 99, 100], 500)[:, None]  # histories of 100, 40, 1 and 0 behaviours


def test_a_thinned_history_is_any_part_of_itself_and_keeps_its_newest() -> None:
    kept_BL = thin_histories(np.random.default_rng(0), MASK_BL, 1.0)
    assert not (kept_BL & ~MASK_BL).any()
    assert (kept_BL[:, -1] == MASK_BL[:, -1]).all()
    parts = kept_BL[:500].mean(axis=1)
    assert abs(parts.mean() - 0.5) < 0.05 and parts.min() < 0.1 and parts.max() > 0.9
    assert abs(np.ptp(kept_BL[:500, :-1].mean(axis=0).reshape(-1, 11).mean(axis=1))) < 0.05  # old behaviours stay as often as new ones


def test_the_share_says_how_many_are_thinned() -> None:
    kept_BL = thin_histories(np.random.default_rng(0), MASK_BL, 0.25)
    whole = (kept_BL[:500] == MASK_BL[:500]).all(axis=1).mean()
    assert abs(whole - 0.75) < 0.06


def test_a_batch_holds_what_stays_right_aligned() -> None:
    spec, events = shop()
    data: TrainingSet = join_events(spec, None, events)

    def without_the_second_newest(mask_BL: np.ndarray) -> np.ndarray:
        kept_BL = mask_BL.copy()
        kept_BL[:, -2] = False
        return kept_BL

    whole, thinned = (data.batch(np.array([0, 1, 2]), 8, keep) for keep in (None, without_the_second_newest))
    assert whole.users.behaviours.mask_BL.sum(dim=1).tolist() == [2, 4, 0]
    assert thinned.users.behaviours.mask_BL.tolist() == [[False, False, False, True], [False, True, True, True], [False] * 4]
    assert torch.equal(thinned.rows_BL[1], torch.cat([torch.tensor([-1]), whole.rows_BL[1, [0, 1, 3]]]))
    assert torch.equal(thinned.users.behaviours.category_BL[1, 1:], whole.users.behaviours.category_BL[1, [0, 1, 3]])
    assert torch.equal(thinned.rows_BC, whole.rows_BC)


def test_a_killed_fit_of_thinned_histories_goes_on_exactly(tmp_path: Path) -> None:
    data, options = taste_world(), dataclasses.replace(OPTIONS, thinned=0.5)
    undisturbed, again, other = (network_of(data, seed=9) for _ in range(3))
    fit(undisturbed, data, options)
    states = StateFile(tmp_path / "state", every_steps=VECTORS_EVERY)

    def kill(share: float) -> None:
        if share > 0.5:
            raise Killed

    try:
        fit(again, data, options, kill, states)
    except Killed:
        fit(again, data, options, states=states)
    assert all(torch.equal(a, b) for a, b in zip(undisturbed.state_dict().values(), again.state_dict().values(), strict=True))
    fit(other, data, OPTIONS)
    assert any(not torch.equal(a, b) for a, b in zip(undisturbed.state_dict().values(), other.state_dict().values(), strict=True))
