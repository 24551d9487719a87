"""Plain scores of candidates on a log of a few clicks, and of shown items."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lab.catalogues.measured_catalogue import MeasuredCatalogue
from lab.evaluation.candidates import candidate_scores, collect_candidates
from tests.infra.data.shops import PLAIN_MAPPING, START_MS, open_shop

MAPPING = PLAIN_MAPPING + '[evaluation]\nfrom = "2024-03-21"\n'
HOUR_MS = 3_600_000
# user 1 takes 0, 1, 2; user 2 takes 0, 1; user 3 takes 2, 3; each later one thing
BEFORE = [(1, 0, 0), (2, 0, 100), (1, 1, 200), (2, 1, 210), (3, 2, 220), (3, 3, 230), (1, 2, 470)]
AFTER = [(1, 3, 490), (2, 2, 500), (3, 0, 510)]


def _open(folder: Path) -> MeasuredCatalogue:
    log = "user,item,at\n" + "".join(f"{u},{i},{START_MS + h * HOUR_MS}\n" for u, i, h in BEFORE + AFTER)
    return open_shop(folder, MAPPING, items="item\n0\n1\n2\n3\n", log=log)


def test_scores_read_the_log_before_the_evaluation_alone(tmp_path: Path) -> None:
    catalogue = _open(tmp_path)
    evaluation = catalogue.evaluation()
    candidates = collect_candidates(evaluation)
    assert [user.user_id for user in evaluation.users] == [1, 2, 3] and candidates.ids_UC[0].tolist() == [0, 1, 2, 3]
    found = candidate_scores(catalogue.log, evaluation, candidates)
    share = found["repeats"] - candidates.met_UC
    assert "item_rate" not in found, "no log of shown items"
    # Item 2 has users 1 and 3, items 0 and 1 users 1 and 2: cosines of 2 with 0, 1 and 3.
    cosine = {(0, 1): 1.0, (0, 2): 0.5, (1, 2): 0.5, (2, 3): 1 / 2**0.5}
    pairs = cosine | {(b, a): value for (a, b), value in cosine.items()}
    for user, history in enumerate(([0, 1, 2], [0, 1], [2, 3])):
        expected = [sum(pairs.get((item, met), 0.0) for met in history if met != item) for item in range(4)]
        assert found["item_knn"][user].tolist() == pytest.approx(expected)
    # Of each item, the ridge regression of who took it on who took the others: users 1, 2 and 3.
    taken = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]], float)
    for item in range(4):
        others = np.delete(taken, item, axis=1)
        weights = np.linalg.solve(others.T @ others + 100 * np.eye(3), others.T @ taken[:, item])
        assert found["ease"][:, item].tolist() == pytest.approx((others @ weights + 1e-6 * share[:, item]).tolist())
    assert (found["last_item"] - share)[:2].tolist() == [pytest.approx([0, 0, 0, 1]), pytest.approx([0, 0, 1, 0])]
    assert np.argsort(-found["popularity_decayed"][0], kind="stable")[0] == 2, "taken last"


def test_scores_of_a_later_part_have_the_same_names(tmp_path: Path) -> None:
    """Other windows would fit the longer log, and values of parts could not be joined."""
    catalogue = _open(tmp_path)
    first = catalogue.evaluation()
    later = dataclasses.replace(first, now_ms=first.now_ms + 60 * 24 * HOUR_MS)
    candidates = collect_candidates(first)
    of_first, of_later = (candidate_scores(catalogue.log, part, candidates) for part in (first, later))
    assert of_first.keys() == of_later.keys() and "popularity_6h" in of_first
