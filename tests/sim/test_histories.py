"""Histories of the whole nearline half in which every process may die anywhere keep every invariant; a share of the campaign of 20,000."""

import pytest

from tests.sim.campaign import find_violation, find_violation_on_all_cores
from tests.sim.history import run_history

SHARE, CAMPAIGN = 100, 20_000


@pytest.mark.parametrize("start", range(0, 4 * SHARE, SHARE))
def test_no_history_breaks_an_invariant(start: int) -> None:
    found = find_violation(range(start, start + SHARE))
    assert found is None, f"{found.violation}\nstep by step: {found.command}"


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_no_history_of_the_whole_campaign_breaks_an_invariant(request: pytest.FixtureRequest) -> None:
    if "campaign" not in request.config.option.markexpr:
        pytest.skip("a minute and more: run it with -m campaign")
    found = find_violation_on_all_cores(range(CAMPAIGN))
    assert found is None, f"{found.violation}\nstep by step: {found.command}"


def test_a_version_that_was_revived_while_it_was_served_is_loaded_again() -> None:
    """A pin, a freeze and a revival without any other live version in between: a simulated server kept the rows from before the freeze."""
    assert run_history(25_267).violation is None


def test_what_failed_in_the_first_calm_round_is_tried_again_before_all_is_judged() -> None:
    """A builder died with the last piece of work before the calm; nothing else moved, and the history ended with its error."""
    assert run_history(8_015_452).violation is None


def test_the_log_is_not_cut_at_a_snapshot_that_it_does_not_complete() -> None:
    """A former owner's snapshot, ahead in one topic and behind the log in the other: cut there too, the log completed no snapshot any more."""
    assert run_history(703_370).violation is None


def test_a_seed_is_one_history() -> None:
    first, second = (run_history(11, traced=True) for _ in range(2))
    assert first.lines == second.lines
    assert first.lines != run_history(12, traced=True).lines


def test_histories_hold_what_they_are_for() -> None:
    """Deaths, power cuts, snapshots, revisions, roll-backs, unknowing former owners, other encoders: a campaign that never meets them would prove little."""
    missing = {
        "KILLED",
        "loses power",
        "restored from snapshot",
        "does not know",
        "revision=1",
        "rollback",
        "revive",
        "now starts at",
        "a builder of",
        "('disk_full', True)",
        "('database_failed', False)",
        "withheld",
        "'behind': 1",
        "an answer of the index store is lost",
    }
    for seed in range(2_000):
        told = "\n".join(run_history(seed, traced=True).lines)
        missing = {what for what in missing if what not in told}
        if not missing:
            return
    raise AssertionError(f"2,000 histories never met {missing}")
