"""The jobs that builders are doing for the shards of this process, from the checkpoint of a shard to the result.

Invariants: a key has one job at a time. A job is given up if its shard was given away, or was opened again by another task. No directory outlives its job,
nor this process (the next process empties `scratch` at its start).
"""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from infra.clock import Clock
from infra.index.parts import new_unique
from schemas.errors import Unavailable
from streams.builders.jobs import BuildJob, Job, SealJob, describe_job
from streams.builders.pool import Ticket
from streams.shard.shard import Shard

T = TypeVar("T")
JobKey = tuple[int, int]  # shard, version

_SHARD_STEP_S_MAX = 60.0
_FLUSH_POLL_S, _FLUSH_POLLS_MAX = 0.02, 250  # after these the checkpoint itself writes the rest


class OwnedShard(Protocol):
    """The needed part of a shard's serial task (streams/shard/task.py)."""

    @property
    def number(self) -> int: ...
    @property
    def admitted(self) -> bool: ...
    def admit(self) -> None: ...
    def submit(self, step: Callable[[Shard], T], /) -> "Future[T]": ...


class Builders(Protocol):
    """The needed part of the builder processes (streams/builders/pool.py)."""

    def submit(self, job: Job, /) -> Ticket: ...


def on_shard(task: OwnedShard, step: Callable[[Shard], T]) -> T:
    """Runs a step between two micro-batches of a shard and waits for it."""
    future = task.submit(step)
    try:
        return future.result(_SHARD_STEP_S_MAX)
    except TimeoutError as error:
        future.cancel()  # or a checkpoint that no job waits for would keep its files until the process ends
        raise Unavailable(
            "shard_busy", f"shard {task.number} did not get to a step in {_SHARD_STEP_S_MAX:g} s; look at its batches"
        ) from error


def create_checkpoint(task: OwnedShard, into: Path) -> None:
    """Takes a checkpoint of the shard between two micro-batches. Memory is flushed before, in the background, so that it takes little of their time."""
    on_shard(task, lambda shard: shard.database.flush(wait=False))
    for _ in range(_FLUSH_POLLS_MAX):
        if not on_shard(task, lambda shard: shard.database.is_flushing()):
            break
        time.sleep(_FLUSH_POLL_S)
    on_shard(task, lambda shard: shard.create_checkpoint(into))


@dataclass
class RunningJob:
    """A job that a builder is doing. `task` owned the shard when the job began."""

    ticket: Ticket
    task: OwnedShard
    directory: Path
    began: float


class RunningJobs:
    """See the module. `scratch` is a folder of this process alone, on the disk of its shards; it is emptied here."""

    def __init__(self, builders: Builders, clock: Clock, scratch: Path) -> None:
        self._builders, self._clock, self._scratch = builders, clock, scratch
        self._running: dict[JobKey, RunningJob] = {}
        shutil.rmtree(scratch, ignore_errors=True)

    def has(self, key: JobKey) -> bool:
        """Whether a job of this key runs."""
        return key in self._running

    def begin(self, key: JobKey, task: OwnedShard, prepare: Callable[[Path], Job]) -> None:
        """Hands a builder the job that `prepare` makes. `prepare` is given a folder for it, which does not exist yet."""
        directory = self._scratch / f"{key[0]:05d}-{key[1]}-{new_unique()}"
        try:
            ticket = self._builders.submit(prepare(directory))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._running[key] = RunningJob(ticket, task, directory, self._clock.monotonic())

    def take_finished(self, task: OwnedShard) -> list[RunningJob]:
        """The jobs of this shard that have ended, each of them once. Jobs of an earlier task of the shard are given up."""
        finished = []
        for key, running in list(self._running.items()):
            if key[0] == task.number and running.task is not task:
                self.abandon(key)
            elif key[0] == task.number and running.ticket.future.done():
                del self._running[key]
                shutil.rmtree(running.directory, ignore_errors=True)
                finished.append(running)
        return finished

    def stalled(self, task: OwnedShard, stall_s_max: float, building: int | None) -> list[str]:
        """An alarm for each job of this shard that has made no progress for `stall_s_max` (B4). `building`: the new version that is built, which alone can be
        aborted."""
        alarms = []
        for (shard, _), running in self._running.items():
            ticket, job = running.ticket, running.ticket.job
            still_s = 0.0 if ticket.progress_at is None else self._clock.monotonic() - ticket.progress_at
            if shard == task.number and still_s > stall_s_max:
                is_new = isinstance(job, BuildJob | SealJob) and job.version == building
                way_out = f"to give it up: aif index abort {building}" if is_new else "if its builder hangs, restart this worker"
                alarms.append(f"no progress for {stall_s_max:g} s: {describe_job(job)}, {ticket.rows} rows done; {way_out}")
        return alarms

    def abandon(self, key: JobKey) -> None:
        """Gives up a job, if it runs."""
        running = self._running.pop(key, None)
        if running is not None:
            running.ticket.abandon()
            shutil.rmtree(running.directory, ignore_errors=True)

    def drop_lost(self, owned: set[int]) -> None:
        """Gives up jobs of shards that this process does not own any more."""
        for key in list(self._running):
            if key[0] not in owned:
                self.abandon(key)

    def close(self) -> None:
        """Gives up everything; the next owner of the shards does it again."""
        for key in list(self._running):
            self.abandon(key)
        shutil.rmtree(self._scratch, ignore_errors=True)
