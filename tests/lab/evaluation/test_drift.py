"""What following is worth: the arithmetic of the share, and a whole run in small that can be repeated and gone on with."""

from pathlib import Path

import numpy as np
import pytest

from lab.catalogues.world import WorldSize
from lab.evaluation import drift
from lab.evaluation.drift import DriftCurves, DriftPlan

TINY = DriftPlan(
    size=WorldSize(items=300, users=24, held_out=6, requests_per_user=2, shown_per_request=6), periods=2, steps=4, candidates=200
)


def test_the_share_is_of_what_the_frozen_model_has_lost_in_the_second_half() -> None:
    users = np.array([-0.05, 0.05, 0.0])
    frozen, followed = (np.array(of)[:, None] + users for of in ([0.8, 0.6, 0.5, 0.3], [0.8, 0.7, 0.7, 0.7]))
    found = DriftCurves(frozen, followed).recovered_share()
    assert found.value == pytest.approx((0.7 - 0.4) / (0.8 - 0.4)) and found.low == pytest.approx(found.high)


def test_a_run_in_small_gives_figures_and_a_picture_and_a_seed_that_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "plan_drift", lambda quick: [TINY])
    figures = drift.run_online(tmp_path, quick=True)
    monkeypatch.setattr(drift, "run_drift", None)
    again = drift.run_online(tmp_path, quick=True)
    assert figures.as_dict()["figures"] == again.as_dict()["figures"]
    assert figures.value("online_frozen_hr_at_100_0") == figures.value("online_followed_hr_at_100_0")
    assert figures.value("online_followed_hr_at_100_2") is not None
    assert (tmp_path / "online.png").stat().st_size > 1_000
