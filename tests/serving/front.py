"""The HTTP front in this process over an engine that the test gives: the real listener, the real application, a loop in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.metrics import Metrics
from schemas.ids import IdKind
from serving.http_api import HttpApi, Views
from serving.listener import Listener
from serving.rank_call import RankCall
from serving.settings import ServeSection
from serving.status_view import model_metadata
from serving.user_call import UserCall, Users
from serving.user_states import UserStates
from serving.user_store import UserStore


@dataclass
class Front:
    url: str
    engine: Any
    store: UserStore
    states: UserStates
    metrics: Metrics
    ready: tuple[bool, str] = (True, "")


@contextlib.contextmanager
def open_front(
    engine: Any, id_kind: IdKind = IdKind.INT64, settings: ServeSection | None = None, states: UserStates | None = None, index: bool = True
) -> Iterator[Front]:
    settings = settings or ServeSection(port=0, deadline_ms=5_000)
    metrics, store, states = Metrics(), UserStore(id_kind, 4, 1_000), UserStates(100, 1 << 20) if states is None else states
    front = Front("", engine, store, states, metrics)
    users = Users(store, states, id_kind, metrics)
    views = Views(lambda: front.ready, lambda: {"rows": engine.rows}, lambda: model_metadata(engine.status()), lambda: None)
    opened, stop = threading.Event(), threading.Event()

    async def run() -> None:
        api = HttpApi(views, settings, metrics)
        if index:
            api.open_calls(UserCall(engine, users), RankCall(engine, users, settings.candidates_max, metrics))
        listener = Listener(api, settings.host, settings.port)
        await listener.open()
        front.url = listener.url
        opened.set()
        await asyncio.to_thread(stop.wait)
        await listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert opened.wait(10), "the listener did not open"
        yield front
    finally:
        stop.set()
        thread.join(10)
