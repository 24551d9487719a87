"""`aif worker`: one process that owns shards. Here is only the wiring; every part has its own file.

    an event     Kafka -> an agent of Faust (faust_shell.py) -> owned_shards.py -> shard/task.py -> shard/shard.py
    a checkpoint Kafka -> an agent of Faust -> versions/version_side.py -> versions/checkpoints.py -> control log
    a version    control log -> versions/reconcile.py, in a thread of its own -> shard tasks, builder processes
    besides      metrics page, ready line, clean stop at SIGTERM, Ctrl-C or the end of the terminal

Everything heavy is imported before anything is opened, and builders are forked from the process as it was then (builders/template.py). With `build.warm`
off, the first version that needs an encoder loads the kernels. Torch is not loaded here.
Invariants: an error of the reconciler or of a version never stops the consumption of events. A failed assertion of this process ends it:
a process that continues after one may write wrong data. One in a builder fails its job.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

from infra.clock import SystemClock
from infra.fork_server import Template
from infra.garbage import settle_garbage_collection, share_heaps
from infra.guarded_thread import GuardedThread, count_faults, watch_threads
from infra.heartbeat import HEARTBEAT_NAME, beat
from infra.index.control_log import ControlLog, check_identity, check_index_settings, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import (
    apply_topics,
    describe_index,
    end_offsets,
    fetch_topics,
    find_coordinator,
    plan_topics,
    require_topics,
    topic_gone,
)
from infra.kafka.admin_client import check_rights
from infra.kafka.dead_letters import dead_letter_topic
from infra.kafka.group_member import end_former_member
from infra.metrics import Metrics, open_metrics_page
from infra.processes import raise_file_limit, stop_signals
from infra.rocks import DiskFacts
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.events import DISK_FAULT, DISK_FAULT_OVER, NO_VERSION, SHARD_OPENED, IndexEvent
from schemas.ids import IdKind
from schemas.index.control import ControlState, Init
from schemas.topics import INDEX_DELTAS, INDEX_EVENTS, ITEM_FEATURES, MODEL_CHECKPOINTS, NEW_ITEMS, SERVER_REPORTS, SHARD_TOPICS
from streams.builders.template import open_builder_template
from streams.data_directory import check_holds_no_shard, hold_directory
from streams.faust_shell import ShellApp, add_agent, consume, end_threads, leave_process, make_app, operator_exit, stop_process
from streams.owned_shards import OwnedShards
from streams.settings import WorkerSettings
from streams.shard.log_ends import LogRange, fetch_log_ranges
from streams.shard.outbox_sender import OutboxSender
from streams.shard.shard import Shard
from streams.shard.start import check_log
from streams.shard.task import SerialTask, ShardTask
from streams.versions.version_side import VersionSide
from streams.worker_metrics import WorkerMetrics

_LAG_EVERY_S = 2.0
_TOPICS_EVERY_S = 5.0
_START_S_MAX = 30.0  # for the broker's answers
_CHECK_S_MIN, _CHECK_S_MAX = 1.0, 10.0  # the same where something waits for them: an assignment, records, or the end of the worker
_SESSION_ENDS_S_MAX, _SESSION_POLL_S = 5.0, 0.5  # after its timeout the broker notices the end of a session
_END_S_MAX = 25.0  # what watches over processes often kills after 30
_FAUST_END_S_MAX = 1.5  # without a broker its client waits permanently for the answer to a last commit, which nothing here needs
_THREAD_END_S_MAX = 0.5  # they were asked before Faust was; one that waits for a broker ends with the process
_Held = dict[int, tuple[Mapping[str, int], DiskFacts]]  # by shard: next offsets, size of its directory
_log = logging.getLogger("aif.streams.worker")


_CONSUMED = (ITEM_FEATURES, NEW_ITEMS, MODEL_CHECKPOINTS)
_READ = (*_CONSUMED, INDEX_DELTAS, SERVER_REPORTS, dead_letter_topic(MODEL_CHECKPOINTS))
_WRITTEN = (INDEX_DELTAS, INDEX_EVENTS, *map(dead_letter_topic, _CONSUMED))


class Worker:
    """The parts of one worker process. `run` returns when the process was asked to stop."""

    def __init__(self, settings: WorkerSettings, template: Template | None = None) -> None:
        self.settings, self._template = settings, template
        self.clock = SystemClock()
        self._registry = Metrics()
        count_faults(self._registry)
        self.metrics = WorkerMetrics(self._registry)
        self.bootstrap, self.prefix = settings.connection(), settings.kafka.topic_prefix
        self.group = f"{self.prefix}shards"
        self.folder: Path = settings.worker.data_dir.resolve()
        self.store = open_index_store(settings.index.store)
        self.control_log = ControlLog(self.store)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ready = False
        self._gone: set[str] = set()  # topics of the index that the broker does not have
        self._check_s = _CHECK_S_MIN
        self._faust_hangs = False
        # A step that hangs in a store or a broker cannot be cancelled, and Faust does not hear a cancellation while it waits for an agent.
        self._last_resort = threading.Timer(
            _END_S_MAX, stop_process, (TimeoutError(f"it did not end within {_END_S_MAX:g} s"), "asked to stop")
        )
        self._last_resort.daemon = True

    def prepare(self) -> ControlState:
        """Makes topics and the identity of the index, or checks them, before anything is read. Raises Incompatible if they do not fit, Unavailable
        (`index_store_gone`) where only the index store is empty. An index that was begun is compared before a topic is changed."""
        index = self.settings.index
        state = self.control_log.refresh()
        check_index_settings(state, self.prefix, index.shards, index.user_partitions, index.id_kind)
        if self.settings.worker.apply_topics:
            apply_topics(self.bootstrap, self.prefix, index.shards, index.user_partitions)
        else:
            found = fetch_topics(self.bootstrap, self.prefix, settings=True)
            for change in plan_topics(found, index.shards, index.user_partitions):
                _log.warning("topic differs from the table: %s", change)
            known = set() if state.init is None else set(state.init.topic_ids)  # a worker names those that are gone, and serves the others
            require_topics(found, self.prefix, {*_READ, *_WRITTEN} - known)
        reads, writes = ([self.prefix + topic for topic in names] for names in (_READ, _WRITTEN))
        check_rights(self.bootstrap, reads, writes, self.group)
        find_coordinator(self.bootstrap, self.group)  # Faust would log an error for each time that it is not there yet
        end_former_member(self.bootstrap, self.group, self.folder / "faust")
        if self.control_log.refresh().init is None:
            check_holds_no_shard(self.folder, self.store.url)
            self._check_alone()
        self.store.scratch.remove_dead()
        return ensure_init(self.control_log, self._describe_index(), self.clock.now_ms(), f"worker-{os.getpid()}")

    def _check_alone(self) -> None:
        """Raises Incompatible (`other_workers`) where the index store is empty, and other workers own the shards. It waits for members that were killed."""
        end_s = self.clock.monotonic() + self.settings.worker.session_timeout_s + _SESSION_ENDS_S_MAX
        while (members := find_coordinator(self.bootstrap, self.group)) and self.control_log.refresh().init is None:
            if self.clock.monotonic() > end_s:
                raise Incompatible(
                    "other_workers",
                    f"the index store {self.store.url} is empty, and group {self.group} has {members} workers of another index store: this one would take "
                    "shards from them; name their store with AIF_INDEX__STORE, or end them to begin a new index",
                )
            time.sleep(_SESSION_POLL_S)

    def _describe_index(self, deadline_s: float = _START_S_MAX) -> Init:
        index, kind = self.settings.index, IdKind(self.settings.index.id_kind)
        return describe_index(self.bootstrap, self.prefix, index.shards, index.user_partitions, kind, deadline_s=deadline_s)

    def _check_topics_soon(self) -> None:
        """`_check_topics` where something waits for it. The limit is twice the time of the last check: a slow broker delays, and answers a later check in
        time."""
        began_s, took_s = self.clock.monotonic(), self._check_s
        try:
            self._check_topics(took_s)
            took_s = self.clock.monotonic() - began_s
        finally:
            self._check_s = min(max(2 * took_s, _CHECK_S_MIN), _CHECK_S_MAX)

    def _check_topics(self, deadline_s: float) -> None:
        """Raises Incompatible where the topics are not those of the index, Unavailable where the broker does not answer in time."""
        found = self._describe_index(deadline_s)
        self.metrics.note_answer()
        check_identity(self.control_log.state, found)
        self._note_gone(found)

    def _note_gone(self, found: Init) -> None:
        """Says which topics of the index are not there. Records of the others are still applied: servers may need them long before an operator begins a
        new index."""
        init, told = self.control_log.state.init, self._gone
        assert init is not None
        self._gone = gone = init.topic_ids.keys() - found.topic_ids.keys()
        self.metrics.show_topics_gone(len(gone))
        if gone - told:
            _log.error("%s. Records of the other topics are still applied", topic_gone(self.prefix, gone))

    async def run(self) -> None:
        """Consumes until SIGTERM or SIGINT, then closes everything."""
        held = await asyncio.to_thread(hold_directory, self.folder, "AIF_WORKER__DATA_DIR")
        beating = asyncio.create_task(beat(self.folder / HEARTBEAT_NAME))
        index = await asyncio.to_thread(self.prepare)
        page = open_metrics_page(self._registry, port) if (port := self.settings.worker.metrics_port) else None
        self.owned = OwnedShards(
            self.bootstrap,
            self.prefix,
            self.folder / "shards",
            index,
            self.clock,
            self._make_task,
            lambda: self.control_log.refresh().newest_decided + 1,
            self._wake.set,
            self.store,
        )
        app = self._make_app()
        self.owned.feed.seek = app.seek
        works = {"reconcile": self._reconcile, "lag": self._show_lag, "topics": self._watch_topics}
        threads = [GuardedThread(work, name, self._stopping) for name, work in works.items()]
        stop = asyncio.Event()
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._ask_to_stop, stop)
        for thread in threads:
            thread.start()
        try:
            self._faust_hangs = not await consume(app, stop, _FAUST_END_S_MAX, self._begin_close)
        finally:
            self._begin_close()
            await self.owned.close_partitions()
            await asyncio.gather(*(asyncio.to_thread(thread.join, _THREAD_END_S_MAX) for thread in threads))
            if page is not None:
                await asyncio.to_thread(page[1])
            beating.cancel()
            held.close()
        _log.info("worker stopped")
        if self._faust_hangs or not await end_threads(_THREAD_END_S_MAX):  # the event loop would wait for them
            leave_process(0)

    def _make_app(self) -> ShellApp:
        worker, faust_folder = self.settings.worker, self.folder / "faust"
        app = make_app(self.group, self.bootstrap, self.prefix, faust_folder, self.owned, worker.session_timeout_s, self._check_topics_soon)
        self.versions = VersionSide(
            self.settings,
            self.control_log,
            self.clock,
            owned=lambda: self.owned.tasks,
            folder=self.folder,
            stopping=self.owned.closing,
            by=f"worker-{os.getpid()}",
            template=self._template,
        )
        add = functools.partial(add_agent, app, records_max=worker.batch_records_max, within_s=worker.within_ms / 1000)
        add(ITEM_FEATURES, self.owned.feed.apply)
        add(NEW_ITEMS, self.owned.feed.apply)
        add_agent(app, MODEL_CHECKPOINTS, self.versions.handle_checkpoints, records_max=1, within_s=worker.within_ms / 1000)
        return app

    def _begin_close(self) -> None:
        self.owned.begin_close()
        self._stopping.set()
        self._wake.set()

    def _make_task(self, shard: Shard) -> ShardTask:
        def make_sender(task: SerialTask[Shard]) -> OutboxSender:
            return OutboxSender(
                self.bootstrap,
                self.prefix,
                on_confirmed=task.confirmed,
                on_failure=lambda error: stop_process(error, f"the outbox of shard {task.number}"),
                on_tick=task.tick,
                check_topics=self._check_topics_soon,
            )

        def on_fault(error: BaseException) -> None:
            stop_process(error, f"a step of shard {shard.number}")

        self._announce(SHARD_OPENED, shard.number, f"worker {os.getpid()}")
        return ShardTask(shard, self.clock, make_sender, self.metrics.count, on_fault, self._announce_disk)

    def _announce_disk(self, shard: int, error: AifError | None) -> None:
        """Lets `aif status` and `aif doctor` say on any machine that a shard stands still, and why."""
        self._announce(DISK_FAULT_OVER if error is None else DISK_FAULT, shard, "" if error is None else str(error))

    def _announce(self, kind: str, shard: int, reason: str) -> None:
        self.versions.messages.announce(IndexEvent(kind=kind, version=NO_VERSION, shard=shard, reason=reason))

    def _ask_to_stop(self, stop: asyncio.Event) -> None:
        if not stop.is_set():
            _log.info("stopping ...")
            stop.set()
            self._last_resort.start()

    def end(self) -> None:
        """After `run`: nothing hangs any more."""
        self._last_resort.cancel()

    # --- versions ------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """A step every 0.2 s, and at once after an assignment. Errors are logged, and the step is tried again."""
        last_error = ""
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                report = self.versions.step()
                self._show_progress(report.build_seconds)
                last_error = ""
            except AssertionError as error:
                stop_process(error, "reconciling")
            except Exception as error:
                if str(error) != last_error:  # the same error every 0.2 s is one line
                    _log.error("reconciling failed, retrying: %s", error, exc_info=None if isinstance(error, AifError) else error)
                last_error = str(error)
            self._wake.wait(self.settings.worker.reconcile_every_ms / 1000)
        self.versions.close()

    def _show_progress(self, build_seconds: Sequence[float]) -> None:
        """Shows the versions as metrics, and prints the ready line once every assigned shard takes batches (A7)."""
        state = self.control_log.state
        wanted = None if state.building is None else state.building.version
        self.metrics.show_versions(wanted, [s.state for s in state.versions.values()], build_seconds, self.versions.gate.rejected)
        if self.owned.assigned and not self._ready and all(task.admitted for task in self.owned.tasks):
            self._ready = True
            settle_garbage_collection()
            self._say_ready(state)

    def _say_ready(self, state: ControlState) -> None:
        current = state.current
        line = {
            "ready": True,
            "pid": os.getpid(),
            "shards": [task.number for task in self.owned.tasks],
            "version": None if current is None else str(current.token),
            "data_dir": str(self.folder),
            "index_store": self.settings.index.store,
        }
        if not line["shards"]:
            line["no_shards_because"] = "the other workers own all shards; this one takes over when one of them ends"
        print(json.dumps(line), flush=True)  # noqa: T201 - the one line that a supervisor waits for
        _log.info("worker ready: shards %s", line["shards"] or f"none: {line['no_shards_because']}")

    # --- topics --------------------------------------------------------------------------------------------------------

    def _watch_topics(self) -> None:
        """A topic that was deleted and made again, or another cluster at this address, begins at offset 0. A log that lost its end continues below the applied
        offsets. Their records would be taken for applied ones. A log has to be too short twice, because a new leader may not know its end at once."""
        before = ""
        while not self._stopping.wait(_TOPICS_EVERY_S):
            try:
                self._check_topics(_START_S_MAX)
                before = "" if self._gone & set(SHARD_TOPICS) else self._find_short_log(before)
            except Incompatible as error:
                stop_process(error, "comparing the topics with those of the index")
            except (AifError, CancelledError):  # a broker that is away, a shard that is given away or whose disk fails
                continue

    def _find_short_log(self, before: str) -> str:
        """A partition that ends before its shard's next offset, or "". Raises Incompatible (`log_shorter`) where that was so `before`."""
        held = {task.number: task.submit(lambda shard: shard.next_offsets).result() for task in self.owned.tasks}
        ranges = fetch_log_ranges(self.bootstrap, self.prefix) if held else {}
        for number, next_offsets in held.items():
            for topic, offset in next_offsets.items():
                try:
                    check_log(number, topic, offset, LogRange(0, ranges[topic][number].end))
                except Incompatible:
                    if before == (place := f"{topic}/{number}"):
                        raise
                    return place
        return ""

    # --- numbers -------------------------------------------------------------------------------------------------------

    def _show_lag(self) -> None:
        ends, held = functools.partial(end_offsets, self.bootstrap, open_too=True), _Held()
        while not self._stopping.wait(_LAG_EVERY_S):
            with contextlib.suppress(AifError, CancelledError):  # a shard that is given away, a broker that is away
                held = read_shards(tasks := self.owned.tasks, held)
                self.metrics.show_disk({number: facts for number, (_, facts) in held.items()})
                self.metrics.show_disk_faults({task.number: task.waits_for_disk for task in tasks})
                offsets = [(number, next_offsets) for number, (next_offsets, _) in held.items()]
                self.metrics.show_offsets(self.prefix, offsets, ends, self.clock.monotonic())


def read_shards(tasks: Sequence[ShardTask], before: _Held) -> _Held:
    """Next offsets and size of each shard. One whose disk takes no writes keeps its last values: it waits, and its lag has to show."""
    held = _Held()
    for task in tasks:
        try:
            held[task.number] = task.submit(lambda shard: (shard.next_offsets, shard.database.facts())).result()
        except Unavailable:
            if task.number in before:
                held[task.number] = before[task.number]
    return held


def run_worker(settings: WorkerSettings) -> None:
    """Runs a worker in this process until it is asked to stop. Exits with EXIT_OPERATOR where it cannot start before an operator decides."""
    share_heaps()
    with operator_exit():
        raise_file_limit()
    template = open_builder_template() if settings.build.warm else None
    watch_threads()
    with contextlib.ExitStack() as ends, operator_exit():
        if template is not None:
            ends.callback(template.close)
        worker = Worker(settings, template)
        ends.callback(worker.end)
        asyncio.run(worker.run())
