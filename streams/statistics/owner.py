"""Which process counts: the one that the group gave all partitions, because the rate of an item has the share of all items in it.

Here: opening and closing the tally for Faust's shell. Not here: assignment (faust_shell.py), counting (tally.py).
A directory that does not read, or that needs records that the log no longer has, is removed, and the log is counted again from its beginning.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.security import Bootstrap
from schemas.errors import Corrupted, Unavailable
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, USER_BEHAVIOURS, USER_FEATURES
from streams.core.batching import Partition
from streams.record_feed import RecordFeed
from streams.shard.start import check_not_marked
from streams.shard.task import SerialTask
from streams.statistics.tally import Tally

TOPICS = (USER_BEHAVIOURS, IMPRESSIONS, ITEM_FEATURES, USER_FEATURES)
KEPT_HERE, KEPT_BY_OTHER = "this process keeps the statistics", "another process of the group keeps the statistics"
_log = logging.getLogger("aif.streams.statistics")


class TallyOwner:
    """Belongs to the process's event loop. `task` is None while another process of the group counts."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        directory: Path,
        open_tally: Callable[[Path], Tally],
        take_older_items: Callable[[Tally, int, int], None],
        make_task: Callable[[Tally], SerialTask[Tally]],
    ) -> None:
        self._bootstrap, self._prefix, self._directory = bootstrap, prefix, directory
        self._open_tally, self._take_older_items, self._make_task = open_tally, take_older_items, make_task
        self.task: SerialTask[Tally] | None = None
        self.assigned = False
        self.feed = RecordFeed(bootstrap, prefix, lambda _: self.task)

    async def open_partitions(self, partitions: frozenset[Partition], generation: int) -> Mapping[Partition, int]:
        """Opens the tally where all partitions were given to this process, and returns the offsets from which it reads."""
        await self.close_partitions()
        self.assigned = not partitions
        if not partitions:
            _log.info("%s; this one waits for its end", KEPT_BY_OTHER)
            return {}
        opened = await asyncio.to_thread(self._open, partitions)
        if opened is None:
            return {}
        tally, offsets = opened
        _log.info("%s from now on", KEPT_HERE)
        self.task = self._make_task(tally)
        self.task.admit()
        self.assigned = True
        return {(topic, p): offsets[f"{topic}/{p}"] for topic, p in partitions}

    def _open(self, partitions: frozenset[Partition]) -> tuple[Tally, Mapping[str, int]] | None:
        """The tally, and the offsets from which it reads; None where other partitions were given than the topics have. Some were added since, and
        another assignment follows, or a process of the group runs other code. Half of the events would be wrong numbers."""
        starts, ends = (
            {f"{topic}/{p}": offset for topic in TOPICS for p, offset in read(self._bootstrap, self._prefix + topic).items()}
            for read in (start_offsets, end_offsets)
        )
        if differing := sorted(starts.keys() ^ {f"{topic}/{p}" for topic, p in partitions}):
            _log.warning("nothing is counted until the next assignment, which has to be of all partitions and no others: %s", differing)
            return None
        tally = self._open_fitting(starts, ends)
        try:
            for partition in (p for topic, p in partitions if topic == ITEM_FEATURES):
                name = f"{ITEM_FEATURES}/{partition}"
                if starts[name] > 0 and name not in tally.next_offsets:
                    self._take_older_items(tally, partition, starts[name])
            return tally, tally.open_log(starts, ends)
        except BaseException:
            tally.close()
            raise

    def _open_fitting(self, starts: Mapping[str, int], ends: Mapping[str, int]) -> Tally:
        """The tally of the directory; a new one where that does not read, or needs records that the log does not have."""
        try:
            check_not_marked(self._directory)
            tally = self._open_tally(self._directory)
            held = tally.next_offsets
            if all(starts[name] <= held.get(name, starts[name]) <= ends[name] for name in starts):
                return tally
            tally.close()
            _log.error("counting the log again: it holds %s to %s, the directory needs %s", starts, ends, held)
        except Corrupted as error:
            _log.error("counting the log again: %s", error)
        shutil.rmtree(self._directory, ignore_errors=True)
        return self._open_tally(self._directory)

    def takes(self, partition: Partition) -> bool:
        """Whether records can be counted now."""
        return self.task is not None

    def suspend(self) -> None:
        """Turns batches away until the next assignment."""
        if self.task is not None:
            self.task.suspend()

    def begin_close(self) -> None:
        """Turns batches away for good."""
        if self.task is not None:
            self.task.begin_close()

    async def close_partitions(self) -> None:
        """Closes the tally."""
        task, self.task = self.task, None
        if task is not None:
            await asyncio.to_thread(task.close)

    def note_ends(self) -> None:
        """Tells the tally where the log ends now, so that it can say whether it has everything."""
        ends = {f"{topic}/{p}": offset for topic in TOPICS for p, offset in end_offsets(self._bootstrap, self._prefix + topic).items()}
        if (task := self.task) is not None:
            with contextlib.suppress(Unavailable, CancelledError):  # it is being closed, or waits for its disk
                task.submit(lambda tally: setattr(tally, "ends", ends)).result()
