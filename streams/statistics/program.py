"""`aif statistics`: one process that keeps the statistics of items and users current which the checkpoints name. Here is only the wiring.

The versions that receive increments say in their feature schemas which statistics they read; of two versions that name one differently the newer counts.
Where that changes, or one of its topics is made again, the process ends in order and begins again as itself: other counters are another directory, for which
the log is counted again.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import NoReturn

from infra.clock import SystemClock
from infra.guarded_thread import GuardedThread, watch_threads
from infra.heartbeat import HEARTBEAT_NAME, beat
from infra.index.control_log import ControlLog, check_identity
from infra.index.store import find_index_store
from infra.kafka.admin import describe_index, fetch_topics, find_coordinator, require_topics
from infra.kafka.admin_client import check_rights
from infra.kafka.group_member import end_former_member
from infra.processes import raise_file_limit, stop_signals
from infra.tools.unknown_features import read_schema
from schemas.errors import AifError, Corrupted, Unavailable
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.statistics import Statistic
from schemas.topics import ITEM_FEATURES, STATISTICS_REPORTS, USER_FEATURES
from streams.data_directory import hold_directory
from streams.faust_shell import SoleAssignor, add_agent, consume, end_threads, leave_process, make_app, operator_exit, stop_process
from streams.settings import StatisticsSettings
from streams.shard.outbox_sender import OutboxSender
from streams.shard.task import SerialTask
from streams.statistics.older_items import take_older_items
from streams.statistics.owner import TOPICS, TallyOwner
from streams.statistics.tally import Tally, directory_name

STARTS = "joining the group for the statistics"
_LOOK_EVERY_S, _TOPICS_EVERY_S, _CONTROL_EVERY_S = 0.5, 5.0, 1.0
_FAUST_END_S_MAX, _THREAD_END_S_MAX = 1.5, 0.5
_log = logging.getLogger("aif.streams.statistics")


class StatisticsProgram:
    """The parts of one process. `run` returns when it was asked to stop, or when the checkpoints name other statistics."""

    def __init__(self, settings: StatisticsSettings) -> None:
        self.settings, self._clock = settings, SystemClock()
        self._bootstrap, self._prefix = settings.connection(), settings.kafka.topic_prefix
        self._group = f"{self._prefix}statistics"
        self._store = find_index_store(settings.index.store, look=False)
        self._control = ControlLog(self._store)
        self._folder = settings.statistics.data_dir.resolve()
        self._schemas: dict[str, dict[str, Statistic]] = {}
        self._stopping, self._said, self._failed = threading.Event(), False, ""

    def _wanted(self) -> dict[str, Statistic]:
        """What the versions read that servers serve or soon will, without what is switched off."""
        state, found = self._control.refresh(), dict[str, Statistic]()
        versions = {s.version: s for s in (*state.receiving, *([state.current] if state.current else []))}
        for _, status in sorted(versions.items()):
            sha = status.checkpoint_sha256
            if sha not in self._schemas:
                self._schemas[sha] = dict(read_schema(self._store, sha).kept_statistics)
            found |= self._schemas[sha]
        return {name: statistic for name, statistic in found.items() if name not in self.settings.statistics.off}

    async def run(self) -> bool:
        """True: begin again, for other statistics or topics."""
        held = await asyncio.to_thread(hold_directory, self._folder, "AIF_STATISTICS__DATA_DIR")
        beating = asyncio.create_task(beat(self._folder / HEARTBEAT_NAME))
        stop = asyncio.Event()
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            wanted = await self._wait(stop)
            return bool(wanted) and await self._keep(wanted, stop)
        finally:
            beating.cancel()
            held.close()

    async def _wait(self, stop: asyncio.Event) -> dict[str, Statistic]:
        """The statistics, once there is an index and a checkpoint that names some."""
        while not stop.is_set():
            try:
                wanted = await asyncio.to_thread(self._wanted)
                if wanted:
                    return wanted
                if self._control.state.current is not None:
                    self._say_ready(wanted)
                self._failed = ""
            except (Unavailable, Corrupted) as error:
                self._note_failed_look(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _CONTROL_EVERY_S)
        return {}

    async def _keep(self, wanted: dict[str, Statistic], stop: asyncio.Event) -> bool:
        init, section = self._control.state.init, self.settings.statistics
        assert init is not None
        preparing, stopped = asyncio.create_task(asyncio.to_thread(self._prepare, init)), asyncio.create_task(stop.wait())
        await asyncio.wait({preparing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():  # nothing is open yet, and the broker may not answer
            leave_process(0)
        topic_ids = preparing.result()
        _log.info("%s: %s", STARTS, ", ".join(wanted))

        def open_tally(directory: Path) -> Tally:
            return Tally(directory, wanted, init, self._clock, section.interval_s, section.updates_max)

        def take_items(tally: Tally, shard: int, log_start: int) -> None:
            take_older_items(tally, self._store, init, shard, log_start, self._folder / "snapshot")

        directory = self._folder / directory_name(wanted, self._control.state.index_id, topic_ids)
        for other in self._folder.glob("*/CURRENT"):  # of other statistics or topics
            if other.parent != directory:
                shutil.rmtree(other.parent)
        owner = TallyOwner(self._bootstrap, self._prefix, directory, open_tally, take_items, self._make_task)
        app = make_app(
            self._group,
            self._bootstrap,
            self._prefix,
            self._folder / "faust",
            owner,
            section.session_timeout_s,
            self._check_topics,
            SoleAssignor,
        )
        owner.feed.seek = app.seek
        for topic in TOPICS:
            add_agent(app, topic, owner.feed.apply, records_max=section.batch_records_max, within_s=section.within_ms / 1000)
        changed, loop = threading.Event(), asyncio.get_running_loop()

        def watch() -> None:
            if self._watch(owner, wanted, topic_ids):
                changed.set()
                loop.call_soon_threadsafe(stop.set)

        def begin_close() -> None:
            owner.begin_close()
            self._stopping.set()

        watcher = GuardedThread(watch, "statistics-watch", self._stopping)
        watcher.start()
        ended = False
        try:
            ended = await consume(app, stop, _FAUST_END_S_MAX, begin_close)
        finally:
            self._stopping.set()
            await owner.close_partitions()
        if not (ended and await end_threads(_THREAD_END_S_MAX)):  # the event loop would wait for them
            begin_again() if changed.is_set() else leave_process(0)
        return changed.is_set()

    def _watch(self, owner: TallyOwner, wanted: dict[str, Statistic], topic_ids: dict[str, str]) -> bool:
        """Tells the owner where the log ends, until the process stops (False), or the live checkpoint names other statistics or a topic was made again
        (True)."""
        looked_s = self._clock.monotonic()
        while not self._stopping.wait(_LOOK_EVERY_S):
            try:
                owner.note_ends()
                if self._wanted() != wanted:
                    return True
                if self._clock.monotonic() >= looked_s + _TOPICS_EVERY_S:
                    looked_s = self._clock.monotonic()
                    if self._find_made_again(topic_ids):
                        return True
                self._failed = ""
            except AifError as error:
                self._note_failed_look(error)
            if owner.assigned:
                self._say_ready(wanted)
        return False

    def _find_made_again(self, topic_ids: dict[str, str]) -> list[str]:
        """The topics that have another id now. Asks for no other topic: each question leaves some memory in the client."""
        found = fetch_topics(self._bootstrap, self._prefix, of=topic_ids)
        return [topic for topic, topic_id in topic_ids.items() if topic in found and found[topic].topic_id != topic_id]

    def _prepare(self, init: Init) -> dict[str, str]:
        """Kafka's ids of the topics. Raises Incompatible and Unavailable where a topic or a right is missing. Makes no topic: that is the operator's right."""
        written = (ITEM_FEATURES, USER_FEATURES, STATISTICS_REPORTS)
        found = fetch_topics(self._bootstrap, self._prefix)
        require_topics(found, self._prefix, {*TOPICS, *written}, init.topic_ids)
        reads, writes = ([self._prefix + topic for topic in names] for names in (TOPICS, written))
        check_rights(self._bootstrap, reads, writes, self._group)
        find_coordinator(self._bootstrap, self._group)
        end_former_member(self._bootstrap, self._group, self._folder / "faust")
        self._check_topics()
        return {topic: found[topic].topic_id for topic in TOPICS}

    def _check_topics(self) -> None:
        """Raises Incompatible where the topics are not those of the index."""
        init = self._control.state.init
        assert init is not None
        check_identity(
            self._control.state, describe_index(self._bootstrap, self._prefix, init.shards, init.user_partitions, IdKind(init.id_kind))
        )

    def _make_task(self, tally: Tally) -> SerialTask[Tally]:
        def make_sender(task: SerialTask[Tally]) -> OutboxSender:
            return OutboxSender(
                self._bootstrap,
                self._prefix,
                on_confirmed=task.confirmed,
                on_failure=lambda error: stop_process(error, "the outbox of the statistics"),
                on_tick=task.tick,
                check_topics=self._check_topics,
            )

        return SerialTask(tally, self._clock, make_sender, on_fault=lambda error: stop_process(error, "a step of the statistics"))

    def _note_failed_look(self, error: AifError) -> None:
        """Logs it once, not at each look."""
        if error.code != self._failed:
            _log.warning("the broker or the index does not read, retrying: %s", error)
        self._failed = error.code

    def _say_ready(self, wanted: dict[str, Statistic]) -> None:
        if not self._said:
            self._said = True
            line = {"ready": True, "pid": os.getpid(), "statistics": sorted(wanted), "data_dir": str(self._folder)}
            print(json.dumps(line), flush=True)  # noqa: T201 - the one line that a supervisor waits for


def run_statistics(settings: StatisticsSettings) -> None:
    """Runs until asked to stop. Exits with EXIT_OPERATOR where it cannot start before an operator decides."""
    watch_threads()
    with operator_exit():
        raise_file_limit()
        again = asyncio.run(StatisticsProgram(settings).run())
    if again:
        begin_again()


def begin_again() -> NoReturn:
    """Becomes a new process: other statistics or topics have another directory, for which the log is counted again."""
    _log.info("the checkpoints name other statistics, or a topic was made again: beginning again")
    os.execv(sys.executable, [sys.executable, "-c", "from infra.cli import main; main()", *sys.argv[1:]])  # noqa: S606 - this very command
