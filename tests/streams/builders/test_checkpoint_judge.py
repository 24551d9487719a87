"""What becomes of a checkpoint whose dry run ends the process that does it."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.errors import AifError, RejectedInput, Unavailable
from streams.builders.checkpoint_judge import judge_checkpoint
from streams.builders.jobs import DryRunJob, Job, machine_error
from streams.builders.pool import Ticket

DIED = Unavailable("builder_died", "a builder ended during a dry run; its log: Killed")
FAILED = Unavailable("builder_failed", "dry run of checkpoint: MemoryError()")


class Judge:
    """Processes that end as told; None: the dry run is done."""

    def __init__(self, outcomes: Sequence[AifError | None]) -> None:
        self._outcomes = list(outcomes)
        self.seen: list[bytes] = []

    def submit(self, job: Job, /) -> Ticket:
        assert isinstance(job, DryRunJob)
        self.seen.append(Path(job.path).read_bytes())
        ticket, outcome = Ticket(job), self._outcomes.pop(0)
        if outcome is None:
            ticket.future.set_result(None)
        else:
            ticket.future.set_exception(outcome)
        return ticket


def test_a_process_that_was_killed_is_no_fault_of_the_file(tmp_path: Path) -> None:
    judge = Judge([DIED, DIED, None])
    judge_checkpoint(judge, tmp_path, b"a checkpoint")
    assert judge.seen == [b"a checkpoint"] * 3 and list(tmp_path.rglob("*.safetensors")) == []


def test_a_file_that_ends_every_process_is_refused_and_holds_nothing_up(tmp_path: Path) -> None:
    with pytest.raises(RejectedInput, match=r"each of 3 runs of its network ended.*Killed") as refused:
        judge_checkpoint(Judge([DIED] * 3), tmp_path, b"a checkpoint")
    assert refused.value.code == "checkpoint_dry_run"


def test_a_file_whose_run_fails_in_a_way_that_no_check_expects_is_refused_too(tmp_path: Path) -> None:
    judge_checkpoint(Judge([FAILED, None]), tmp_path, b"a checkpoint")
    with pytest.raises(RejectedInput, match=r"each of 3 runs of its network ended.*MemoryError"):
        judge_checkpoint(Judge([DIED, FAILED, FAILED]), tmp_path, b"a checkpoint")


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("builders_closed", "the worker is stopping"),
        RejectedInput("checkpoint_sha256", "other bytes"),
        machine_error(DryRunJob("", ""), OSError(errno.EIO, "a disk that fails for some minutes")),
    ],
)
def test_anything_else_is_told_as_it_is_and_at_once(error: AifError, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as told:
        judge_checkpoint(Judge([error]), tmp_path, b"a checkpoint")
    assert told.value is error
