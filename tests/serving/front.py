"""Both ports in this process over an engine that the test gives: the real listeners, the real applications, a loop in a thread."""

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from schemas.events import Behaviour, BehavioursRecord, encode_record
from schemas.ids import Id, IdKind, encode_kafka_key, partition_of
from schemas.topics import USER_BEHAVIOURS
from serving.allocation.allocator import Allocator
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables
from serving.calls.carried_state import CarriedStates
from serving.calls.final_call import FinalCall
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall
from serving.calls.state_pool import StatePool
from serving.calls.user_call import UserCall
from serving.calls.user_halves import Users
from serving.calls.version_choice import choose_version
from serving.core.row_ages import RowAges
from serving.protocols.front import Front as SharedFront
from serving.protocols.front import Intake
from serving.protocols.grpc_api import GrpcApi
from serving.protocols.grpc_listener import GrpcListener
from serving.protocols.http_api import HttpApi, Views
from serving.protocols.listener import Listener, Tls
from serving.relay.relay import Relay
from serving.relay.settings import RelaySection
from serving.settings import ServeSection
from serving.users.user_store import StoreBounds, UserStore, ViewIdentity, open_user_store
from tests.memory import MEMORY

USER_PARTITIONS = 4
AGES = RowAges([7.5], [0])


@dataclass
class Front:
    url: str
    engine: Any
    store: UserStore
    states: StatePool
    users: Users
    paced: PacedEngine
    metrics: Metrics
    relay: Relay
    allocator: Allocator = None  # type: ignore[assignment] # there once the port is open
    ready: tuple[bool, str] = (True, "")
    grpc: str = ""  # host:port
    in_work: Callable[[], int] = lambda: 0
    seen: Callable[[], int] = lambda: 0  # requests that ever came in
    leave: Callable[[], None] = lambda: None  # as at SIGTERM
    show_ready: Callable[[bool], Any] = lambda ready: None  # to the health service of gRPC

    @property
    def http(self) -> str:
        """host:port, as a stock client wants it."""
        return self.url.partition("//")[2]

    def tell(self, user: Id, offset: int = 0, item: Id = 1) -> None:
        """One more behaviour of a user reaches the server's own view."""
        value = encode_record(BehavioursRecord(updates=[Behaviour(user_id=user, item_id=item, time_ms=1)]))
        record = SourceRecord(USER_BEHAVIOURS, partition_of(user, USER_PARTITIONS), offset, encode_kafka_key(user), value)
        self.store.fold_record(record)


def connect(address: str) -> socket.socket:
    """A bare connection to one of the ports, host:port."""
    host, _, port = address.rpartition(":")
    opened = socket.create_connection((host, int(port)), timeout=60)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def open_view(folder: Path, id_kind: IdKind, partitions: int, bounds: StoreBounds | None = None) -> UserStore:
    """A view of users in a folder of a test; the same folder again goes on where it was."""
    return open_user_store(folder, ViewIdentity("index", "", id_kind, partitions), bounds or StoreBounds())


@contextlib.contextmanager
def open_front(
    engine: Any,
    id_kind: IdKind = IdKind.INT64,
    settings: ServeSection | None = None,
    states: StatePool | None = None,
    index: bool = True,
    tls: Tls | None = None,
    carried: CarriedStates | None = None,
    allocation: AllocationSection | None = None,
) -> Iterator[Front]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, contextlib.closing(open_view(Path(folder), id_kind, USER_PARTITIONS)) as store:
        yield from _open_front(engine, id_kind, settings, states, index, tls, store, carried, allocation)


def _open_front(
    engine: Any,
    id_kind: IdKind,
    settings: ServeSection | None,
    states: StatePool | None,
    index: bool,
    tls: Tls | None,
    store: UserStore,
    carried: CarriedStates | None,
    allocation: AllocationSection | None,
) -> Iterator[Front]:
    settings = settings or ServeSection(port=0, deadline_ms=5_000)
    metrics, states = Metrics(), StatePool(100, 1 << 20) if states is None else states
    users = Users(store, states, id_kind, metrics, carried)
    paced = PacedEngine(engine, metrics)
    relay = Relay(RelaySection(budget_ms=1, margin_ms=1, load_share=1.0, kv_mib=4), metrics, engine.find_parameters)
    front = Front("", engine, store, states, users, paced, metrics, relay)
    opened, stop = threading.Event(), threading.Event()

    async def run() -> None:
        shared = SharedFront(lambda: front.ready, settings, metrics)
        shared.intake.admit = paced.check_queue
        front.leave = lambda: setattr(shared, "draining", True)
        allocator = Allocator(allocation or AllocationSection(), Tables(None, lambda: None), metrics, paced)
        shared.intake.receipt = allocator.refusal
        front.allocator = allocator
        api = HttpApi(shared, Views(lambda: {"answered": engine.status().answered}, lambda: None, allocator))
        if index:
            rank_call = RankCall(paced, users, settings.candidates_max, metrics, allocator, ages=lambda watermark: AGES)
            rank_call.final = FinalCall(relay, users, partial(choose_version, paced), candidates=300)
            api.open_calls(UserCall(paced, users, allocator), rank_call)
            shared.open_calls(engine, rank_call, id_kind)
        seen = _count_entries(shared.intake)
        listener = Listener(api, settings.host, settings.port, tls, settings.idle_s)
        grpc_listener = GrpcListener(GrpcApi(shared), shared, settings.host, 0, tls, settings.idle_s)
        await listener.open()
        await grpc_listener.open()
        await grpc_listener.show_ready(front.ready[0])
        front.url, front.grpc = listener.url, grpc_listener.address
        front.in_work = lambda: shared.intake.in_work
        front.seen = seen
        loop = asyncio.get_running_loop()
        front.show_ready = lambda ready: asyncio.run_coroutine_threadsafe(grpc_listener.show_ready(ready), loop)
        opened.set()
        await asyncio.to_thread(stop.wait)
        await grpc_listener.close(1.0)
        await listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert opened.wait(60), "the listener did not open"
        yield front
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive(), "the listeners did not close"
        relay.close()


def _count_entries(intake: Intake) -> Callable[[], int]:
    """How many requests entered from now on."""
    enter, count = intake.enter, 0

    def enter_counted() -> Intake:
        nonlocal count
        count += 1
        return enter()

    intake.enter = enter_counted  # type: ignore[method-assign]
    return lambda: count
