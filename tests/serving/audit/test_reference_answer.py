"""The plain form of the head that answers are sampled against is the network's own, in fp64, for every shape of schema."""

import numpy as np
import pytest
import torch

from schemas.model.inputs import candidate_rows
from schemas.model.network import InFloat64
from serving.audit.reference_answer import score_plainly
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, make_behaviours, make_version, named_states, reference_inputs


@pytest.mark.parametrize("name", SPECS)
def test_the_plain_form_is_the_networks_joint_part_in_fp64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = make_version(SPECS[name], 90)
    monkeypatch.setattr("serving.audit.reference_answer._PAIRS_MAX", 200)  # several blocks
    for length in (0, 30):
        with torch.inference_mode():
            states = version.network.user_states(reference_inputs(version, PROFILE, make_behaviours(version, length)))
        scores_C, probabilities_CT = score_plainly(version.parameters, named_states(states), version.rows, CONTEXT)
        rows = candidate_rows(version.spec, version.rows, CONTEXT)
        with torch.inference_mode(), InFloat64():
            wanted, expected = version.network.scores(version.network.joint_logits(states, rows), rows.bid_BC)
        assert np.allclose(probabilities_CT, expected[0].numpy(), rtol=0, atol=1e-12)
        assert np.allclose(scores_C, wanted[0].numpy(), rtol=1e-12, atol=1e-12)
