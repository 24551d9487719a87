"""The shards that this worker owns now: opened when they are assigned, closed when an assignment comes without them.

Kafka takes all partitions back whenever a worker joins or leaves, and most come back at once. Such a shard is only suspended meanwhile. It stays open if the
group's generation of the assignment follows directly on the one in which it was owned. Then no other worker has had it in between, and its directory is its
newest copy. Otherwise it is closed, and opened with all the checks of a start.
Invariant: both partitions of a shard have the same owner, because Faust's assignor gives topics of equal partition counts together. Anything else is refused,
because a shard has one serial task.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.clock import Clock
from infra.index.store import IndexStore
from infra.kafka.security import Bootstrap
from schemas.errors import Incompatible
from schemas.index.control import ControlState
from schemas.topics import MODEL_CHECKPOINTS, SHARD_TOPICS
from streams.core.batching import Partition
from streams.record_feed import RecordFeed
from streams.shard.log_ends import LogRange, fetch_log_ranges
from streams.shard.start import start_shard
from streams.shard.task import ShardTask

_log = logging.getLogger("aif.streams.owned")


class OwnedShards:
    """Belongs to the worker's event loop; any thread may read `tasks`. The `index` is the state of the control log at the start, with the identity of the
    index. The `store` has the snapshots that a shard may start from."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        prefix: str,
        folder: Path,
        index: ControlState,
        clock: Clock,
        make_task: Callable[..., ShardTask],
        next_checkpoint_offset: Callable[[], int],
        on_opened: Callable[[], None],
        store: IndexStore,
    ) -> None:
        self._bootstrap, self._prefix, self._folder = bootstrap, prefix, folder
        self._index, self._clock, self._store = index, clock, store
        self._make_task, self._next_checkpoint_offset, self._on_opened = make_task, next_checkpoint_offset, on_opened
        self._tasks: dict[int, ShardTask] = {}
        self.feed = RecordFeed(bootstrap, prefix, lambda partition: self._tasks.get(partition[1]))
        self._generation: int | None = None  # of the group, at the last assignment
        self.closing = threading.Event()  # set from `suspend` until partitions are open again: nothing waits meanwhile
        self.assigned = False  # whether an assignment, maybe an empty one, has been handled

    @property
    def tasks(self) -> Sequence[ShardTask]:
        """The shards owned now, by number."""
        return [task for _, task in sorted(dict(self._tasks).items())]

    async def open_partitions(self, partitions: frozenset[Partition], generation: int) -> Mapping[Partition, int]:
        """Opens the shards of an assignment that do not stay, and closes the others; the next offset of every partition in it. `generation` is the group's.
        Raises Incompatible (`split_shard`)."""
        numbers = _shard_numbers(partitions)
        follows = self._generation is not None and generation == self._generation + 1
        staying = {number: task for number, task in self._tasks.items() if follows and number in numbers and task.suspended}
        leaving, self._tasks = [task for number, task in self._tasks.items() if number not in staying], dict(staying)
        await asyncio.gather(*(asyncio.to_thread(task.close) for task in leaving))
        if opened := sorted(numbers - staying.keys()):
            ranges = await asyncio.to_thread(fetch_log_ranges, self._bootstrap, self._prefix)
            opening = (asyncio.to_thread(self._open, n, {t: ranges[t][n] for t in SHARD_TOPICS}) for n in opened)
            # All have ended before one is raised, so the next attempt can close those that opened.
            for failed in await asyncio.gather(*opening, return_exceptions=True):
                if failed is not None:
                    raise failed
        offsets: dict[Partition, int] = {}
        for task in self.tasks:
            held = await asyncio.wrap_future(task.submit(lambda shard: shard.next_offsets))
            offsets |= {(topic, task.number): offset for topic, offset in held.items()}
        if (MODEL_CHECKPOINTS, 0) in partitions:
            offsets[MODEL_CHECKPOINTS, 0] = await asyncio.to_thread(self._next_checkpoint_offset)
        for task in staying.values():
            task.resume()
        self.assigned, self._generation = True, generation
        self.closing.clear()
        places = {f"{t}/{p}": o for (t, p), o in sorted(offsets.items())}
        _log.info("shards owned: %s, stayed open: %s, next offsets %s", sorted(numbers), sorted(staying), places)
        self._on_opened()
        return offsets

    def _open(self, number: int, log: Mapping[str, LogRange]) -> None:
        assert self._index.init is not None
        directory = self._folder / f"{number:05d}"
        shard = start_shard(directory, number, self._index.init, self._index.index_id, self._clock, log, self._store)
        self._tasks[number] = self._make_task(shard)

    def takes(self, partition: Partition) -> bool:
        """Whether records of a partition can be applied now: not before its shard is open and admitted. While it is opened Faust does not know yet whom its
        records are for, and ends at them."""
        topic, number = partition
        return topic not in SHARD_TOPICS or ((task := self._tasks.get(number)) is not None and task.admitted)

    def suspend(self) -> None:
        """Turns batches away until the next assignment, so that Faust does not wait for one that can no longer be applied."""
        self.closing.set()
        for task in self.tasks:
            task.suspend()

    def begin_close(self) -> None:
        """Turns batches away for good."""
        self.closing.set()
        for task in self.tasks:
            task.begin_close()

    async def close_partitions(self) -> None:
        """Closes every shard."""
        tasks, self._tasks = self.tasks, {}
        await asyncio.gather(*(asyncio.to_thread(task.close) for task in tasks))


def _shard_numbers(partitions: frozenset[Partition]) -> set[int]:
    by_topic = [{p for topic, p in partitions if topic == wanted} for wanted in SHARD_TOPICS]
    if any(numbers != by_topic[0] for numbers in by_topic):
        raise Incompatible(
            "split_shard",
            f"assigned {dict(zip(SHARD_TOPICS, map(sorted, by_topic), strict=True))}, but both topics of a shard must have one owner; run this code in all "
            "workers of the group, and give both topics the same number of partitions: `aif topics plan`. A topic without any assigned partition may have been "
            "deleted: see `aif doctor`",
        )
    return by_topic[0]
