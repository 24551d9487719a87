"""Every bug that is put into the shell on purpose is found by some history of a small budget, by an invariant that it breaks."""

import pytest

from tests.sim.campaign import find_violation
from tests.sim.plants import PLANTS

BUDGET = 4_000  # histories; the rarest is found by one in about 1,400, the next by one in 230
# Where the search for a rare one begins: at the first seed that finds it today. If it does so no more, the search goes on through the whole budget.
BEGIN = {
    "another_encoder_goes_on": 41,
    "deleted_items_come_back": 166,
    "delta_position_after_export": 446,
    "lost_answer_taken_for_success": 464,
    "no_row_stamp": 53,
    "own_clock_for_files": 9,
    "sealed_and_started_again": 151,
    "watermark_by_topic": 81,
}

# From the list of bugs that designs of this kind had.
WANTED = {
    "no_row_stamp",
    "markers_dropped",
    "seal_without_tombstones",
    "skipped_offsets_left_out",
    "delta_position_after_export",
    "two_writers",
    "offset_outside_the_batch",
    "zero_not_committed",
    "worker_side_cancel",
    "check_then_rename",
    "random_version_ids",
    "build_before_building",
    "seal_before_the_catalogue",
    "export_from_the_live_shard",
    "adopted_without_recompute",
    "entry_created_before_written",
}


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_bug_is_found(plant: str) -> None:
    begin = BEGIN.get(plant, 0)
    found = find_violation([*range(begin, BUDGET), *range(begin)], plant)
    assert found is not None, f"{plant} ({PLANTS[plant].why}) was not found in {BUDGET} histories"
    assert found.violation is not None and found.violation.invariant in PLANTS[plant].breaks, f"{found.violation}\n{found.command}"


def test_every_bug_of_the_list_is_planted() -> None:
    assert set(PLANTS) >= WANTED
