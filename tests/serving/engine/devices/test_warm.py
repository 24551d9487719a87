"""Nothing is compiled once the engine is warm: neither for a flip to a model of another shape nor for a request of another form."""

import numpy as np
import pytest

import serving.engine.call_one.attention
import serving.engine.call_one.history
import serving.engine.call_two.joint_pass
import serving.engine.call_two.tier_counts
import serving.engine.tables.lookup
import serving.engine.tables.tables
from schemas.ids import IdKind
from serving.engine.call_one.user_state import decode_state, encode_state
from serving.engine.devices.scorer import compile_kernels
from serving.engine.tables.candidates import find_candidates
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, make_behaviours, make_version

MODULES = (
    serving.engine.call_one.attention,
    serving.engine.call_two.tier_counts,
    serving.engine.call_one.history,
    serving.engine.call_two.joint_pass,
    serving.engine.tables.lookup,
    serving.engine.tables.tables,
    serving.engine.call_two.tier_counts,
)


def compiled_forms() -> dict[str, int]:
    """How many forms every compiled function has."""
    functions = {f"{m.__name__}.{name}": f for m in MODULES for name, f in vars(m).items() if hasattr(f, "signatures")}
    assert len(functions) > 20
    return {name: len(function.signatures) for name, function in functions.items()}


@pytest.mark.parametrize("name", SPECS)
def test_no_model_and_no_request_compiles_anything_after_the_start(name: str) -> None:
    compile_kernels()
    before = compiled_forms()
    version = make_version(SPECS[name], 60)
    scorer, ids = version.scorer(), version.ids
    if version.spec.schema.id_kind is IdKind.INT64:
        read_only = np.frombuffer(np.array(ids, np.int64).tobytes(), np.int64)  # as a binary request gives them
        find_candidates(version.tables, read_only)
    rows = find_candidates(version.tables, ids).row_K
    for work in (UserWork(), UserWork(PROFILE, make_behaviours(version, 30))):
        state = scorer.user_state(work)
        scorer.score(state, rows, CONTEXT)
        scorer.score(decode_state(encode_state(state)), rows, CONTEXT)
    after = compiled_forms()
    assert {n: (before[n], after[n]) for n in after if after[n] > before[n]} == {}
