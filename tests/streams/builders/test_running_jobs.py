"""Whose result a job's result is: the shard's task that began it, and no other of the same shard (I1)."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import Unavailable
from streams.builders.jobs import BuildJob, Job
from streams.builders.pool import Ticket
from streams.builders.running_jobs import RunningJobs, on_shard
from tests.streams.shard_world import ManualClock

KEY = (3, 7)


class Builders:
    """Takes jobs; the test ends them."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def submit(self, job: Job, /) -> Ticket:
        self.tickets.append(Ticket(job))
        return self.tickets[-1]


class Task:
    """One opening of a shard."""

    number = KEY[0]


@pytest.fixture
def builders() -> Builders:
    return Builders()


@pytest.fixture
def jobs(builders: Builders, tmp_path: Path) -> RunningJobs:
    return RunningJobs(builders, ManualClock(), tmp_path / "scratch")


def begin(jobs: RunningJobs, task: Any) -> Path:
    """Begins a job of KEY; its directory."""
    made: list[Path] = []

    def prepare(directory: Path) -> Job:
        directory.mkdir(parents=True)
        made.append(directory)
        return BuildJob(KEY[1], KEY[0], "00", "f", str(directory))

    jobs.begin(KEY, task, prepare)
    return made[0]


def test_a_result_is_taken_once_and_its_directory_is_removed(jobs: RunningJobs, builders: Builders) -> None:
    task: Any = Task()
    directory = begin(jobs, task)
    assert jobs.take_finished(task) == [] and directory.exists()
    builders.tickets[0].future.set_result(None)
    assert [job.task for job in jobs.take_finished(task)] == [task]
    assert jobs.take_finished(task) == [] and not directory.exists() and not jobs.has(KEY)


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_of_a_shard_that_was_opened_again_meanwhile_is_given_up_even_if_it_has_ended(
    jobs: RunningJobs, builders: Builders, ended: bool
) -> None:
    former: Any = Task()
    now: Any = Task()
    directory = begin(jobs, former)
    if ended:
        builders.tickets[0].future.set_result(None)
    assert jobs.take_finished(now) == []
    assert builders.tickets[0].abandoned and not directory.exists() and not jobs.has(KEY)
    begin(jobs, now)
    builders.tickets[1].future.set_result(None)
    assert [job.task for job in jobs.take_finished(now)] == [now]


def test_jobs_of_shards_that_were_given_away_are_given_up(jobs: RunningJobs, builders: Builders) -> None:
    directory = begin(jobs, Task())
    jobs.drop_lost({KEY[0]})
    assert jobs.has(KEY)
    jobs.drop_lost({KEY[0] + 1})
    assert not jobs.has(KEY) and builders.tickets[0].abandoned and not directory.exists()


def test_a_job_that_cannot_be_prepared_leaves_no_directory_and_does_not_run(jobs: RunningJobs, builders: Builders, tmp_path: Path) -> None:
    def prepare(directory: Path) -> Job:
        directory.mkdir(parents=True)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        jobs.begin(KEY, Task(), prepare)  # type: ignore[arg-type]
    assert not jobs.has(KEY) and builders.tickets == [] and list((tmp_path / "scratch").iterdir()) == []


def test_a_job_without_progress_is_named_with_a_way_out_that_works(jobs: RunningJobs, builders: Builders) -> None:
    """`abort` is refused for every version but the new one that is built."""
    task: Any = Task()
    begin(jobs, task)
    builders.tickets[0].progress_at = -100.0
    assert jobs.stalled(task, 1e6, KEY[1]) == []
    (alarm,) = jobs.stalled(task, 60.0, KEY[1])
    assert f"aif index abort {KEY[1]}" in alarm
    for building in (None, KEY[1] + 1):
        (alarm,) = jobs.stalled(task, 60.0, building)
        assert "abort" not in alarm and "restart this worker" in alarm


def test_a_step_that_was_given_up_does_not_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that no job waits for would keep its files until the process ends."""
    monkeypatch.setattr("streams.builders.running_jobs._SHARD_STEP_S_MAX", 0.01)
    waiting = Future[None]()

    class Busy(Task):
        def submit(self, _: object) -> Future[None]:
            return waiting

    with pytest.raises(Unavailable, match="shard_busy"):
        on_shard(Busy(), lambda _: None)  # type: ignore[arg-type]
    assert waiting.cancelled()
