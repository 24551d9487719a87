"""Who is measured: candidates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.catalogues.measured_catalogue import draw_candidates


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(1, 20), st.data())
def test_candidates_hold_the_relevant_and_no_more_than_asked(pool: set[int], most: int, data: st.DataObject) -> None:
    relevant = data.draw(st.sets(st.sampled_from(sorted(pool)), min_size=1, max_size=most))
    drawn = draw_candidates(np.random.default_rng(0), np.array(sorted(pool)), np.array(sorted(relevant)), most).tolist()
    assert relevant <= set(drawn) <= pool
    assert drawn == sorted(set(drawn)) and len(drawn) == min(len(pool), most)
