"""A server over a bench's engine: the real ports and calls, wired as in `aif serve`, without an index or a broker; also as a process of its own.

    python -m lab.serving.server ITEMS USERS BEHAVIOURS CANDIDATES CANDIDATES_FILE CORES [RELAY]

The process has users with long histories in its own view, writes one line of JSON when its port is open, and ends when its standard input does. CORES: the
cores of the ports; the engine has as many threads as the process had cores when it started, and stays on those. BEHAVIOURS: the length of every history, or
lengths with commas, each of USERS users. RELAY: settings of the relay as JSON; the model has a ranker then.
"""

import asyncio
import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np

from infra.garbage import calm_collector
from infra.kafka.reader import SourceRecord
from infra.logs import open_logs
from infra.metrics import Metrics
from lab.serving.world import VERSION, RankWorld, open_rank_world
from schemas.events import Behaviour, BehavioursRecord, encode_record
from schemas.ids import IdKind
from schemas.limits import MIB, UPDATES_PER_RECORD_MAX
from schemas.model.ranker.spec import RankerSpec
from schemas.topics import USER_BEHAVIOURS
from serving.allocation.allocator import TICK_S, Allocator
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables
from serving.calls.final_call import FinalCall
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall
from serving.calls.state_pool import StatePool
from serving.calls.user_call import UserCall
from serving.calls.user_halves import Users
from serving.calls.version_choice import choose_version
from serving.engine.loop.engine import Engine
from serving.protocols.front import Front
from serving.protocols.http_api import HttpApi, Views
from serving.protocols.listener import Listener
from serving.relay.relay import Relay
from serving.relay.settings import RelaySection
from serving.settings import ServeSection
from serving.time_slices import share_the_interpreter
from serving.users.user_store import StoreBounds, UserStore, ViewIdentity, open_user_store

REQUESTS = 32  # how many lists of candidates
STATES_BYTES_MAX = 512 * MIB
RANKER = RankerSpec(history_max=8_192, history_step=512)
_HOUSEKEEPING_S = 0.2


@contextlib.asynccontextmanager
async def open_bench_server(
    engine: Engine, store: UserStore, pool: StatePool, settings: ServeSection, relay: Relay | None = None
) -> AsyncIterator[tuple[Listener, Front]]:
    """The open HTTP port of a server over `engine`, and what a second port would share with it."""
    metrics = Metrics()
    paced, users = PacedEngine(engine, metrics), Users(store, pool, IdKind.INT64, metrics)
    front = Front(lambda: (True, ""), settings, metrics)
    allocator = Allocator(AllocationSection(), Tables(None, lambda: None), metrics, paced)
    front.intake.admit, front.intake.receipt = paced.check_queue, allocator.refusal
    api = HttpApi(front, Views(dict, users.show, allocator))
    rank_call = RankCall(paced, users, settings.candidates_max, metrics, allocator)
    if relay is not None:
        rank_call.final = FinalCall(relay, users, functools.partial(choose_version, paced), relay.settings.candidates)
    api.open_calls(UserCall(paced, users, allocator), rank_call)
    front.open_calls(engine, rank_call, IdKind.INT64)
    listener = Listener(api, settings.host, settings.port, idle_s=settings.idle_s)
    share_the_interpreter()
    calm_collector()
    await listener.open()
    ticking = asyncio.create_task(_tick(allocator))
    yield listener, front
    ticking.cancel()
    await listener.close()


async def _tick(allocator: Allocator) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        allocator.tick()


async def _serve(world: RankWorld, store: UserStore, relay: Relay | None) -> None:
    settings = ServeSection(port=0, deadline_ms=2_000)
    async with open_bench_server(world.engine, store, StatePool(10_000, STATES_BYTES_MAX), settings, relay) as (listener, _):
        keeping = asyncio.create_task(_keep_house(relay)) if relay is not None else None
        sys.stdout.write(json.dumps({"url": listener.url, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        if keeping is not None:
            keeping.cancel()


async def _keep_house(relay: Relay) -> None:
    while True:
        relay.follow([VERSION])
        await asyncio.sleep(_HOUSEKEEPING_S)


def _open_relay(world: RankWorld, settings: str) -> Relay:
    relay = Relay(RelaySection(**json.loads(settings)), Metrics(), world.engine.find_parameters, engine_busy=lambda: world.engine.busy)
    relay.follow([VERSION])
    while relay.spec(VERSION) is None:
        time.sleep(_HOUSEKEEPING_S)
    return relay


def _fold_histories(world: RankWorld, store: UserStore, lengths: Sequence[int]) -> None:
    offset = 0
    for user, length in enumerate(lengths):
        events = [Behaviour(user_id=user, item_id=int(e.item_id), time_ms=e.time_ms) for e in world.history(length)]
        for at in range(0, len(events), UPDATES_PER_RECORD_MAX):
            value = encode_record(BehavioursRecord(updates=events[at : at + UPDATES_PER_RECORD_MAX]))
            store.fold_record(SourceRecord(USER_BEHAVIOURS, 0, offset, None, value))
            offset += 1


def main() -> None:
    """See the module."""
    open_logs("overload", "warning", "text")  # only the address may go into the pipe: its reader stops after it
    items, users, candidates = map(int, (sys.argv[1], sys.argv[2], sys.argv[4]))
    lengths = [int(length) for length in sys.argv[3].split(",") for _ in range(users)]
    ranker = sys.argv[7] if len(sys.argv) > 7 else ""
    with open_rank_world(items, RANKER if ranker else None) as world, tempfile.TemporaryDirectory() as folder:
        relay = _open_relay(world, ranker) if ranker else None  # its threads may use all cores, as the engine's
        # Of this thread and those it starts from here on; the engine's runs already.
        os.sched_setaffinity(0, map(int, sys.argv[6].split(",")))
        np.save(sys.argv[5], np.stack(world.requests(candidates, REQUESTS)))
        bounds = StoreBounds(decoded_users_max=len(lengths), decoded_behaviours_max=sum(lengths))
        store = open_user_store(Path(folder), ViewIdentity("bench", "", IdKind.INT64, 1), bounds)
        _fold_histories(world, store, lengths)
        asyncio.run(_serve(world, store, relay))
        if relay is not None:
            relay.close()
        store.close()


if __name__ == "__main__":
    main()
