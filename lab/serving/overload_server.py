"""The server process of `aif bench overload` and `aif bench affinity`: the real ports and calls over an engine with a synthetic version.

    python -m lab.serving.overload_server ITEMS USERS BEHAVIOURS CANDIDATES CANDIDATES_FILE CORES

Here: the wiring, users with long histories in the server's own view, and one line of JSON on standard output when the port is open. Not here: the load
(overload.py, affinity.py). The process ends when its standard input does. CORES are the numbers of the cores for the ports; the engine has as many
threads as the process had cores when it started, and stays on those.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from infra.kafka.reader import SourceRecord
from infra.logs import open_logs
from lab.serving.calls import open_bench_calls
from lab.serving.world import RankWorld, open_rank_world
from schemas.events import Behaviour, BehavioursRecord, encode_record
from schemas.ids import IdKind
from schemas.limits import MIB, UPDATES_PER_RECORD_MAX
from schemas.topics import USER_BEHAVIOURS
from serving.calls.state_pool import StatePool
from serving.garbage import calm_collector
from serving.protocols.listener import Listener
from serving.settings import ServeSection
from serving.short_turns import share_the_interpreter
from serving.users.user_store import StoreBounds, UserStore
from serving.users.user_store_start import ViewIdentity, open_user_store

REQUESTS = 32  # how many lists of candidates
STATES_BYTES_MAX = 512 * MIB


async def _serve(world: RankWorld, store: UserStore) -> None:
    settings = ServeSection(port=0, deadline_ms=2_000)
    _, api = open_bench_calls(world.engine, store, StatePool(10_000, STATES_BYTES_MAX), settings)
    listener = Listener(api, settings.host, settings.port)
    share_the_interpreter()
    calm_collector()
    await listener.open()
    sys.stdout.write(json.dumps({"url": listener.url, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await listener.close()


def _fold_histories(world: RankWorld, store: UserStore, users: int, behaviours: int) -> None:
    offset = 0
    for user in range(users):
        events = [Behaviour(user_id=user, item_id=int(e.item_id), time_ms=e.time_ms) for e in world.history(behaviours)]
        for at in range(0, len(events), UPDATES_PER_RECORD_MAX):
            value = encode_record(BehavioursRecord(updates=events[at : at + UPDATES_PER_RECORD_MAX]))
            store.fold_record(SourceRecord(USER_BEHAVIOURS, 0, offset, None, value))
            offset += 1


def main() -> None:
    """See the module."""
    open_logs("overload", "warning", "text")  # nothing but the address may go into the pipe: nobody reads on
    items, users, behaviours, candidates = map(int, sys.argv[1:5])
    with open_rank_world(items) as world, tempfile.TemporaryDirectory() as folder:
        # Of this thread and those it starts from here on; the engine's runs already.
        os.sched_setaffinity(0, map(int, sys.argv[6].split(",")))
        np.save(sys.argv[5], np.stack(world.requests(candidates, REQUESTS)))
        bounds = StoreBounds(decoded_users_max=users, decoded_behaviours_max=users * behaviours)
        store = open_user_store(Path(folder), ViewIdentity("bench", "", IdKind.INT64, 1), bounds)
        _fold_histories(world, store, users, behaviours)
        asyncio.run(_serve(world, store))
        store.close()


if __name__ == "__main__":
    main()
