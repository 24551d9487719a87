"""The server process, wired: engine, versions, the view of users, HTTP and gRPC; and its life from start to the last answer.

    start    the ports open first: the process is alive, but not ready until a version is live and the users' logs are read (C4)
    index    once the control log has an identity, everything that needs the index's kind of id is created
    steady   the event loop answers, one engine thread computes, the version follower and the user follower are threads of their own
    SIGTERM  not ready any more; for `leave_s` requests are still accepted; running ones are answered; then all is closed, ports first, engine next

An error at the start is Misconfigured or Incompatible and ends the process.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog

from infra.files import write_file_durably
from infra.garbage import calm_collector, share_heaps
from infra.guarded_thread import count_faults, watch_threads
from infra.index.control_log import ControlLog
from infra.index.store import find_index_store
from infra.kafka.security import KafkaTopics
from infra.metrics import Metrics
from infra.processes import stop_signals
from schemas.errors import Corrupted, Incompatible, Misconfigured, Unavailable
from schemas.ids import IdKind
from schemas.index.control import Init
from serving.allocation.allocator import Allocator
from serving.allocation.outcomes import Outcomes
from serving.allocation.tables import Tables
from serving.audit.parity_sampler import ParitySampler
from serving.audit.recorded_answers import AnswerRecorder
from serving.calls.carried_state import CarriedStates
from serving.calls.final_call import FinalCall
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall
from serving.calls.state_pool import StatePool
from serving.calls.user_call import UserCall
from serving.calls.user_halves import Users
from serving.calls.user_moves import UserMoves
from serving.calls.version_choice import choose_version
from serving.engine.loop.engine import Engine
from serving.engine.work import RankResult, RankWork
from serving.engine_kernels import load_engine_kernels
from serving.health import Health
from serving.protocols.front import Front, check_exposure
from serving.protocols.grpc_api import GrpcApi
from serving.protocols.grpc_listener import GrpcListener
from serving.protocols.http_api import HttpApi, Views
from serving.protocols.listener import Listener, Tls, read_tls
from serving.relay.relay import Relay
from serving.reports import Reporter
from serving.settings import ServerSettings
from serving.status_view import STALE, EngineMetrics, find_stale, readiness, server_status
from serving.time_slices import share_the_interpreter
from serving.topic_watch import TopicWatch
from serving.users.user_follower import UserFollower
from serving.users.user_store import StoreBounds, ViewIdentity, open_user_store
from serving.versions.freshness import EndWatch, StatisticsWatch
from serving.versions.version_follower import VersionFollower

_HOUSEKEEPING_S = 0.2
_RETRY_S = 1.0
_NVIDIA = Path("/dev/nvidiactl")  # exists on every machine with a CUDA driver

T = TypeVar("T")
logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving")


class RankingServer:
    """One server process. Created inside a running event loop; `run` returns after `stop`."""

    def __init__(self, settings: ServerSettings) -> None:
        """Starts nothing yet. Raises Misconfigured if the settings cannot work."""
        check_exposure(settings.serve.host, settings.serve.token, settings.serve.allow_open)
        _check_device(settings.engine.device)
        self.settings = settings
        self.metrics = Metrics()
        count_faults(self.metrics)
        self.bootstrap = settings.connection()
        self.control_log = ControlLog(find_index_store(settings.index.store, look=False))
        self.engine = Engine(settings.engine.device, settings.serve.requests_max)
        kafka = KafkaTopics(self.bootstrap, settings.kafka.topic_prefix)
        self.versions = VersionFollower(self.engine, settings.index.store, kafka, settings.engine.poll_s, settings.engine.arena_bytes)
        self.ends, self.statistics = EndWatch(kafka), StatisticsWatch(kafka)
        self.engine_metrics = EngineMetrics(self.metrics, self.engine, self.versions, self.ends.ages)
        self.paced = PacedEngine(self.engine, self.metrics, settings.serve.flood_queue_max)
        self.paced.why_none = self.versions.why_none
        self.relay = Relay(settings.relay, self.metrics, self.engine.find_parameters, self.engine.device, lambda: self.engine.busy)
        tables = Tables(self.control_log.store, self._current_version, settings.allocation.tables_every_s)
        self.allocator = Allocator(settings.allocation, tables, self.metrics, self.paced)
        if settings.allocation.outcomes:
            self.allocator.outcomes = Outcomes(self.bootstrap, settings.kafka.topic_prefix, self.metrics)
        self.pool = StatePool(settings.users.states_max, settings.users.states_bytes_max, settings.users.states_ttl_s)
        self.users: Users | None = None
        name, kafka_prefix = f"{os.uname().nodename[:40]}:{os.getpid()}", settings.kafka.topic_prefix
        self.reports = Reporter(
            self.metrics, self.bootstrap, kafka_prefix, name, settings.serve.report_every_s, lambda: self.engine.status().current
        )
        parity_settings = settings.engine.parity_share, settings.engine.parity_every_s
        self.versions.now_s = self.reports.clock.now_s
        self.parity = ParitySampler(self.engine, self.metrics, *parity_settings, tell=self.reports.note_parity)
        self.user_follower: UserFollower | None = None
        self.topic_watch: TopicWatch | None = None
        self._calmed = False
        self._stale: dict[str, str] = {}  # the last logged reasons
        self._statistics_old = ""  # why the served version's statistics are not current; not asked at every answer
        self.front = Front(self._ready, settings.serve, self.metrics)
        self.health = Health(self.engine.status, lambda: (self.front.ranked, self.front.faults))
        self.front.intake.admit, self.front.intake.receipt = self.paced.check_queue, self.allocator.refusal
        recorder = AnswerRecorder(settings.serve.record_file, settings.serve.record_every_s, settings.serve.record_answers_max)
        self.api = HttpApi(self.front, Views(self._status, self._show_state, self.allocator), recorder.offer)
        tls = read_tls(settings.serve.tls_cert, settings.serve.tls_key)
        self.listener = Listener(self.api, settings.serve.host, settings.serve.port, tls, settings.serve.idle_s)
        self.grpc_listener = self._grpc_listener(tls) if settings.serve.grpc else None
        self._stopping = asyncio.Event()
        self._engine_start: asyncio.Task[None] | None = None

    async def run(self, opened: Callable[[str], None] = lambda url: None) -> None:
        """Serves until stopped. Calls `opened(url)` once the port accepts connections."""
        living: asyncio.Task[None] | None = None
        try:
            await self.listener.open()
            if self.grpc_listener is not None:
                await self.grpc_listener.open()
            self._announce(opened)
            living, stopping = asyncio.create_task(self._live()), asyncio.create_task(self._stopping.wait())
            await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not living.done():
                await asyncio.wait({living}, timeout=self.settings.serve.leave_s)
            if living.done():
                living.result()  # it ended by an error: raise it and end the process
        finally:
            if living is not None:
                living.cancel()
            await self._close()

    def stop(self) -> None:
        """Begins to drain; then `run` returns."""
        if not self._stopping.is_set():
            logger.info("stopping ...")
        self.front.draining = True
        self._stopping.set()

    @property
    def grpc_address(self) -> str | None:
        """host:port of the gRPC port, None if it is switched off."""
        return None if self.grpc_listener is None else self.grpc_listener.address

    def _grpc_listener(self, tls: Tls | None) -> GrpcListener:
        wanted = self.settings.serve.grpc_port
        port = (self.settings.serve.port and self.listener.port + 1) if wanted is None else wanted
        return GrpcListener(GrpcApi(self.front), self.front, self.settings.serve.host, port, tls, self.settings.serve.idle_s)

    def _announce(self, opened: Callable[[str], None]) -> None:
        if self.settings.serve.address_file is not None:
            address = {"url": self.listener.url, "grpc": self.grpc_address, "pid": os.getpid()}
            _write_address(self.settings.serve.address_file, address)
        logger.info("listening", url=self.listener.url, grpc=self.grpc_address)
        opened(self.listener.url)

    def _start_engine(self) -> None:
        load_engine_kernels()
        self.engine.start()

    async def _live(self) -> None:
        """Opens what depends on the index, then keeps metrics, pool and readiness up to date permanently."""
        self._engine_start = asyncio.create_task(asyncio.to_thread(self._start_engine))
        await asyncio.to_thread(self.versions.prepare)
        await self._open_index(await self._wait_for_identity())
        await asyncio.shield(self._engine_start)
        self.versions.start()
        self.allocator.tables.start()
        if self.allocator.outcomes is not None:
            self.allocator.outcomes.start()
        if self.settings.serve.report_every_s > 0:
            self.reports.start()
        was_ready = False
        while True:
            self._show_state()
            if self.health.is_hung:
                raise Unavailable("engine_hung", self.health.why_not())
            ready, reason = self._ready()
            if self.grpc_listener is not None:
                await self.grpc_listener.show_ready(ready)
            if ready and not self._calmed:
                self._calmed = True
                calm_collector()
            if ready != was_ready:
                logger.info("ready" if ready else "not_ready", reason=reason)
                was_ready = ready
            await asyncio.sleep(_HOUSEKEEPING_S)

    async def _until_done(self, event: str, call: Callable[[], T]) -> T:
        """The result of `call`, which is repeated until store and disk allow it. Shows meanwhile why this server is not ready."""
        while True:
            try:
                done = await asyncio.to_thread(call)
            except (Unavailable, Corrupted) as error:
                if str(error) != self.versions.last_error:  # the same error at every attempt is one line
                    logger.warning(event, error=str(error), retry_s=_RETRY_S)
                self.versions.last_error = str(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self.versions.last_error = ""
                return done

    async def _wait_for_identity(self) -> Init:
        """The index's init entry; waits until a worker has written it, and until the index store answers."""
        while True:
            state = await self._until_done("index_not_read", self.control_log.refresh)
            if state.init is not None:
                return state.init
            await asyncio.sleep(self.settings.engine.poll_s)

    async def _open_index(self, init: Init) -> None:
        _check_topics(init, self.settings.kafka.topic_prefix)
        self.ends.start(init.shards)
        self.statistics.start()
        id_kind, settings = IdKind(init.id_kind), self.settings.users
        # Named by the index and not by its address: a store that was moved is the same index.
        view = ViewIdentity(self.control_log.state.index_id, self.settings.kafka.topic_prefix, id_kind, init.user_partitions)
        bounds = StoreBounds(settings.users_max, settings.decoded_users_max, settings.decoded_behaviours_max)
        store = await self._until_done("user_store_not_opened", lambda: open_user_store(settings.data_dir, view, bounds))
        carried = CarriedStates(settings.carried_state_key, _name_index(init), settings.states_ttl_s)
        users = self.users = Users(store, self.pool, id_kind, self.metrics, carried)
        follower = self.user_follower = UserFollower(
            self.bootstrap, self.settings.kafka.topic_prefix, store, self.metrics, index_topic_ids=init.topic_ids
        )
        self.metrics.gauge("broker_silent_seconds").set_function(self.user_follower.silent_s)
        self.metrics.gauge("user_table_files").set_function(lambda: store.table_files)
        self.metrics.gauge("user_disk_fault").set_function(lambda: float(follower.waits_for_disk))
        self.user_follower.start()
        watch = self.topic_watch = TopicWatch(self.bootstrap, self.settings.kafka.topic_prefix, init, self.metrics)
        self.ends.is_lost = lambda: watch.has_lost_items
        watch.start()
        self.versions.before_flip = UserMoves(self.paced, users).move_from_thread
        rank_call = RankCall(
            self.paced,
            users,
            self.settings.serve.candidates_max,
            self.metrics,
            self.allocator,
            self._note,
            self._find_stale,
            self.ends.ages,
        )
        rank_call.final = FinalCall(self.relay, users, functools.partial(choose_version, self.paced), self.settings.relay.candidates)
        self.api.open_calls(UserCall(self.paced, users, self.allocator), rank_call)
        self.front.open_calls(self.engine, rank_call, id_kind)

    def _current_version(self) -> int | None:
        current = self.engine.current
        return None if current is None else current.version

    def _note(self, work: RankWork, result: RankResult) -> None:
        """Offers an answer to those who watch answers."""
        self.reports.note(result)
        self.parity.offer(work, result)

    def _show_state(self) -> None:
        status = self.engine.status()
        resident = frozenset(report.token.version for report in status.residents)
        read = [name for report in status.residents if report.token == status.current for name in report.statistics]
        self._statistics_old = self.statistics.why_old(read, self.settings.serve.statistics_age_s_max)
        self.metrics.gauge("statistics_age_seconds").set(self.statistics.oldest_s(read))
        self.pool.drop_other_versions(resident)
        self.relay.follow(resident)
        self.engine_metrics.show()
        self.health.look()
        self.allocator.tick()
        self.allocator.show()
        self._look_how_old()
        self.metrics.gauge("queue_seconds").set(self.paced.queue_ms() / 1000)
        if self.grpc_listener is not None:
            self.metrics.gauge("grpc_port_open").set(not self.grpc_listener.lost)
        if self.users is not None:
            self.users.show()

    def _find_stale(self) -> dict[str, str]:
        return find_stale(self.versions, self.user_follower, self.settings.serve.broker_silent_s_max, self._statistics_old)

    def _look_how_old(self) -> None:
        before, self._stale = self._stale, self._find_stale()
        reads_users = self.user_follower is not None and not self.user_follower.ready  # as every start does
        for reason in self._stale.keys() - before.keys():
            log = logger.info if reads_users and reason == "users_behind" else logger.warning
            log("degraded", reason=reason, why=self._stale[reason])
        for reason in before.keys() - self._stale.keys():
            logger.info("no_longer_degraded", reason=reason)
        for reason in STALE:
            self.metrics.gauge("degraded").labels(reason).set(reason in self._stale)

    def _ready(self) -> tuple[bool, str]:
        if self.grpc_listener is not None and self.grpc_listener.lost:
            return False, f"the gRPC port {self.grpc_address} no longer accepts connections; restart this server"
        version = self._current_version()
        opens_ranker = version is not None and self.relay.is_opening(version)
        return readiness(self.versions, self.user_follower, self.health, self.front.draining, opens_ranker)

    def _status(self) -> Mapping[str, Any]:
        topics_error = "" if self.topic_watch is None else self.topic_watch.last_error
        of_process = (
            self.health,
            self._find_stale(),
            len(self.pool),
            self._ready(),
            self.ends.ages,
            self.reports.clock,
            self.statistics.ages_s,
            self.allocator.status(),
        )
        return server_status(self.engine.status(), self.versions, self.user_follower, topics_error, *of_process)

    async def _close(self) -> None:
        """Closes the ports first, so that no new request comes, then the engine, then all that waits for it."""
        end = time.monotonic() + self.settings.serve.drain_s
        if self.grpc_listener is not None:
            await self.grpc_listener.close(self.settings.serve.drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, end - time.monotonic())):
                await self.listener.close()
        if self._engine_start is not None:
            await asyncio.wait({self._engine_start})
        for close in (
            self.engine.close,  # first: threads wait for it, and one that hangs would never answer them
            self.relay.close,
            self.ends.close,
            self.statistics.close,
            self.reports.close,
            self.versions.close,
            self.allocator.tables.close,
            *((self.allocator.outcomes.close,) if self.allocator.outcomes else ()),
            *((self.topic_watch.close,) if self.topic_watch else ()),
            *((self.user_follower.close,) if self.user_follower else ()),
            self.parity.close,
        ):
            await asyncio.to_thread(close)
        logger.info("stopped", in_work=self.front.intake.in_work)


async def serve(settings: ServerSettings, opened: Callable[[str], None] = lambda url: None) -> None:
    """The process's main function. SIGTERM and Ctrl-C stop the server. Raises Misconfigured, Incompatible."""
    share_heaps()
    share_the_interpreter()
    watch_threads()
    server = RankingServer(settings)
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, server.stop)
    await server.run(opened)


def _write_address(path: Path, address: Mapping[str, Any]) -> None:
    try:
        write_file_durably(path.resolve(), json.dumps(address).encode())
    except OSError as error:
        raise Misconfigured(
            "address_file_unusable",
            f"the ports' addresses cannot be written to {path}: {error}; give a file in a folder that can be written",
        ) from error


def _check_device(device: str) -> None:
    """Raises Misconfigured (`no_cuda`) where cuda is wanted and missing."""
    if device == "cuda" and not _has_cuda():
        raise Misconfigured(
            "no_cuda", "device cuda is wanted and torch finds no CUDA device here; install its driver, or give --device cpu"
        )


def _has_cuda() -> bool:
    if not _NVIDIA.exists():
        return False
    import torch  # a server on a CPU runs without it

    return torch.cuda.is_available()


def _name_index(init: Init) -> str:
    """A text that is the same on all servers of an index and differs for every other index."""
    return json.dumps(dataclasses.asdict(init), sort_keys=True, default=str)


def _check_topics(init: Init, prefix: str) -> None:
    """Raises Incompatible (`other_index`) unless the index was made from the topics that this process reads."""
    for name, found in init.topics.items():
        if found != prefix + name:
            raise Incompatible(
                "other_index",
                f"the index reads topic {found} for {name}, this server {prefix + name}; set AIF_KAFKA__TOPIC_PREFIX as the worker has it",
            )
