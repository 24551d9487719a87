"""Both calls and the HTTP application over a bench's engine, wired as in `aif serve`, without an index or a broker."""

from infra.metrics import Metrics
from schemas.ids import IdKind
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall
from serving.calls.state_pool import StatePool
from serving.calls.user_call import UserCall
from serving.calls.user_halves import Users
from serving.engine.loop.engine import Engine
from serving.protocols.front import Front
from serving.protocols.http_api import HttpApi, Views
from serving.settings import ServeSection
from serving.users.user_store import UserStore


def open_bench_calls(engine: Engine, store: UserStore, pool: StatePool, settings: ServeSection) -> tuple[Front, HttpApi]:
    """(what both ports share, the HTTP application)."""
    metrics = Metrics()
    paced, users = PacedEngine(engine, metrics), Users(store, pool, IdKind.INT64, metrics)
    front = Front(lambda: (True, ""), settings, metrics)
    front.intake.admit = paced.check_queue
    api, rank_call = HttpApi(front, Views(dict, users.show)), RankCall(paced, users, settings.candidates_max, metrics)
    api.open_calls(UserCall(paced, users), rank_call)
    front.open_calls(engine, rank_call, IdKind.INT64)
    return front, api
