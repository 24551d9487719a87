"""A log that goes on while it is served, with real processes: the statistics of the agents give the scores of a new import."""

from pathlib import Path

import numpy as np
import pytest

from lab.evaluation.live_data import FRESH, KEPT, STALE, serve_live
from streams.training.model_file import apply_choices, default_spec
from streams.training.similarity_start import new_network
from tests.infra.data.test_shown_statistics import open_log

FEATURES = 'clicking = { rate = "click" }\nliking = { rate = "liked", by = "maker" }\nseen = { count = "shown" }'


@pytest.mark.timeout(600)
@pytest.mark.campaign
def test_kept_statistics_score_as_a_fresh_import_and_stale_ones_do_not(tmp_path: Path) -> None:
    catalogue = open_log(tmp_path, FEATURES, items="popularity = false")
    network = new_network(apply_choices(default_spec(catalogue.schema), catalogue.model), 0, "random")
    questions, answers = serve_live(catalogue.mapping, tmp_path, network, hours=12.0)
    assert questions.shown and answers[KEPT].candidates_UC.size > 50 and answers[KEPT].candidates_UC.min() > 0
    for kept, stale, fresh in zip(*(vars(answers[arm]).values() for arm in (KEPT, STALE, FRESH)), strict=True):
        assert np.array_equal(kept, fresh) and not np.array_equal(kept, stale)
