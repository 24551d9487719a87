"""`aif bench table4`: the paper's Table 4, row by row: response time, throughput at a fixed p99, and extra storage of each part of AIF.

    response time   from the candidates to the top 100, sequential requests; the rows take turns request by request
    processor time  of the same calls on all threads, which other processes on the machine distort least
    maxQPS          whole requests (call 1 and call 2) in an open loop on one engine: the highest rate whose p99 stays within the bound
    extra storage   bytes of the columns that the row adds to the items, and of the states of a pool of users

Figures in percent are relative to the sequential base of the same run. Rows alternate, because other processes may use the machine.
Source: AIF, Table 4.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import SupportsFloat

import numpy as np

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, REFUSED, Latencies, call_at_rate, run_to_the_microsecond, sleep_until
from lab.serving.peer_runs import PeerFailedError
from lab.serving.sub_sequences import SubSequences, cut_history, fetch_behaviours, open_redis
from lab.serving.table4_rows import ROWS, Row, RowScorer, RowState, draw_raw_features
from lab.serving.world import CONTEXT, PROFILE, VERSION, RankWorld, open_rank_world
from schemas.errors import Unavailable
from serving.engine.loop.engine import Engine
from serving.engine.work import RankWork, UserResult, UserState, UserWork
from serving.time_slices import share_the_interpreter

TABLE_4 = read_bench("bench table4")

TOP_K = 100
POOL_USERS = 1_000  # users whose states count as extra storage
RETRIEVAL_S = 0.05
BOUND = 5.0  # the p99 at which throughput is compared, as a multiple of the base's mean response time, unless one is given
RATE_MAX = 1.4  # the highest rate that is tried, as a multiple of the rate of sequential requests; above 1, because user halves run in parallel with rankings
_WAIT_S = 600.0
_WARM = 3
ROW_NAMES = tuple(row.name for row in ROWS)
MEASURES = ("avg_rt_pct", "p99_rt_pct", "max_qps_pct")


@dataclass(frozen=True, slots=True)
class Table4Plan:
    """The synthetic world, and how much is measured. `p99_ms` 0: `BOUND` times the base's mean response time; `rows`: without the base, () = all."""

    items: int = 200_000
    candidates: int = 10_000
    behaviours: int = 1_000
    users: int = 32
    calls: int = 300
    rounds: int = 2
    steps: int = 5
    seconds: float = 3.0
    p99_ms: float = 0.0
    rows: tuple[str, ...] = ()

    def quick(self) -> "Table4Plan":
        """A look, not a measurement."""
        return replace(self, calls=30, rounds=1, steps=3, seconds=1.0)


@dataclass(frozen=True, slots=True)
class Request:
    """`user`: profile and history; where it `fetches`, it waits for a remote store. `ahead`: call 1 computes the user half, and call 2 gets the state.
    Otherwise call 2 gets the user."""

    user: Callable[[], UserWork]
    rank: Callable[[UserState | None, UserWork | None], RankWork]
    ahead: bool
    fetches: bool = False


@dataclass
class _Measured:
    """A row's measurements: response times `taken_ms`, seconds of whole requests `work_s`, and the highest rate of each round. `call2_cpu_ms` and `cpu_ms`
    are processor time on all threads."""

    row: Row
    version: int
    state_bytes: int = 0
    taken_ms: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    call2_cpu_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


class _Traffic:
    """The users and candidates, the same for every row, and the users' sub-sequences in `store`."""

    def __init__(self, world: RankWorld, plan: Table4Plan, store: SubSequences | None) -> None:
        self._candidates = world.requests(plan.candidates)
        self._histories = [world.history(plan.behaviours) for _ in range(plan.users)]
        self._store, category = store, world.tables.columns["category"]
        # In a sequential system a candidate's category comes with its features; here the look-up is not timed.
        rows = [world.tables.find(np.asarray(ids)) for ids in self._candidates]
        self._categories = [np.unique(category[row_C]).tolist() for row_C in rows]
        for user, history in enumerate(self._histories if store else ()):
            assert store is not None
            store.put(user, cut_history(history, category[world.tables.find(np.asarray(history.item_ids))], world.spec.sim_behaviours))

    def request(self, one: _Measured, number: int) -> Request:
        """A request to a row: with a call 1 if the row computes its user half ahead, else with the user in call 2."""
        user, asked = number % len(self._histories), number % len(self._candidates)
        ids, history, row = self._candidates[asked], self._histories[user], one.row

        def work() -> UserWork:
            plain = UserWork(PROFILE, history, one.version)
            if not row.fetches:
                return plain
            assert self._store is not None
            fetched = fetch_behaviours(self._store, user, None if row.ahead else self._categories[asked])
            return replace(plain, base=RowState(one.version, plain, {"fetched": fetched}))

        return Request(work, lambda state, user: RankWork(ids, TOP_K, state, user, CONTEXT), row.ahead, row.fetches)


def measure_table4(plan: Table4Plan, store: SubSequences | None = None) -> Figures:
    """All figures of the command. `store`: of the sub-sequences; None: a Redis server, and without one, those rows are left out."""
    with contextlib.ExitStack() as stack:
        if store is None and any(row.fetches for row in _choose_rows(plan.rows)):
            try:
                store = stack.enter_context(open_redis())
            except (PeerFailedError, Unavailable) as error:
                say(f"no row that reads a remote store: {error}")
                plan = replace(plan, rows=tuple(row.name for row in _choose_rows(plan.rows) if not row.fetches))
        return _measure(plan, store)


def _measure(plan: Table4Plan, store: SubSequences | None) -> Figures:
    config = asdict(plan)
    say(f"filling an arena with {plan.items} items ...")
    share_the_interpreter()  # as in a server
    with open_rank_world(plan.items) as world:
        traffic, rows = _Traffic(world, plan, store), _admit_rows(world, plan)
        say(f"response times of {plan.calls} requests a row ...")
        for number in range(-_WARM, plan.calls):
            for one in rows:
                _time_call(world, traffic.request(one, number), one, counts=number >= 0)
        bound_ms = plan.p99_ms or BOUND * float(np.mean(rows[0].taken_ms))
        for number in range(plan.rounds):
            for one in rows:
                one.rates.append(_find_rate(world, traffic, one, plan, bound_ms))
                say(
                    f"round {number + 1} of {plan.rounds}: {one.row.name} carries {one.rates[-1]:.0f} requests a second at p99 {bound_ms:.0f} ms"
                )
        figures = Figures(TABLE_4, config | {"pool_users": POOL_USERS, "retrieval_ms": 1e3 * RETRIEVAL_S})
        figures.add("p99_bound_ms", bound_ms)
        _add_figures(figures, world, rows, plan.items)
    return figures


def _choose_rows(names: Sequence[str]) -> list[Row]:
    """The base and these rows, or all."""
    return [row for row in ROWS if row is ROWS[0] or not names or row.name in names]


def _admit_rows(world: RankWorld, plan: Table4Plan) -> list[_Measured]:
    """Adds every row of the plan to the engine as a version of its own; the row with all of AIF is the engine's own version."""
    raw, rows = draw_raw_features(world), list[_Measured]()
    for number, row in enumerate(_choose_rows(plan.rows)):
        version = VERSION if row.name == "aif" else VERSION + 1 + number
        if row.name != "aif":
            world.engine.admit(world.resident(RowScorer(row, world, raw, version), version)).result(_WAIT_S)
        rows.append(_Measured(row, version))
    return rows


def _time_call(world: RankWorld, request: Request, one: _Measured, counts: bool) -> None:
    """Measures one request: its call 1, if the row has one, then call 2, whose time is the response time."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    state = world.engine.submit_user(request.user()).result(_WAIT_S).state if request.ahead else None
    arrived_s, arrived_cpu_s = time.perf_counter(), time.process_time()
    result = world.engine.submit_rank(request.rank(state, None if request.ahead else request.user())).result(_WAIT_S)
    ended_s, ended_cpu_s = time.perf_counter(), time.process_time()
    one.state_bytes = result.state.size_bytes if one.row.ahead else 0
    if counts:
        one.taken_ms.append(1e3 * (ended_s - arrived_s))
        one.work_s.append(ended_s - began_s)
        one.call2_cpu_ms.append(1e3 * (ended_cpu_s - arrived_cpu_s))
        one.cpu_ms.append(1e3 * (ended_cpu_s - began_cpu_s))


def _find_rate(world: RankWorld, traffic: _Traffic, one: _Measured, plan: Table4Plan, bound_ms: float) -> float:
    """The highest rate per second of whole requests whose p99 stays within the bound."""

    def p99_ms_at(rate: float) -> float:
        seen = run_to_the_microsecond(
            send_requests(world.engine, lambda number: traffic.request(one, number), rate, plan.seconds, RETRIEVAL_S)
        )
        p99_ms = seen.quantile(OK, 0.99)
        return math.inf if p99_ms is None or seen.count(REFUSED) or seen.count(FAILED) else p99_ms

    capacity = 1 / float(np.median(one.work_s))
    return find_rate_max(p99_ms_at, bound_ms, 0.1 * capacity, RATE_MAX * capacity, plan.steps)


async def send_requests(
    engine: Engine, request_of: Callable[[int], Request], rate_per_s: float, seconds: float, retrieval_s: float
) -> Latencies:
    """Requests at a constant rate: call 1 when one arrives, call 2 when its candidates do, `retrieval_s` later, or when its state is there.

    A latency counts from the moment at which the candidates were meant to arrive.
    """
    latencies = Latencies()

    async def user(request: Request) -> UserWork:
        return await asyncio.to_thread(request.user) if request.fetches else request.user()

    async def call_one(request: Request) -> UserResult:
        return await asyncio.wrap_future(engine.submit_user(await user(request)))

    async def rank(request: Request, made: "asyncio.Task[UserResult] | None") -> None:
        work = request.rank(None, await user(request)) if made is None else request.rank((await made).state, None)
        await asyncio.wrap_future(engine.submit_rank(work))

    async def send(number: int, intended_s: float) -> None:
        request = request_of(number)
        made = asyncio.create_task(call_one(request)) if request.ahead else None
        await sleep_until(intended_s + retrieval_s)
        await latencies.time(rank(request, made), intended_s + retrieval_s)

    latencies.seconds = await call_at_rate(send, rate_per_s, seconds) - retrieval_s
    return latencies


def find_rate_max(p99_ms_at: Callable[[float], float], bound_ms: float, low: float, high: float, steps: int) -> float:
    """The highest rate per second at which p99 stays within the bound, between `low` and `high`; 0 if it does not at `low`.

    After `steps` bisections the rate is interpolated between the highest that holds and the lowest that does not, by the logarithms of their p99s. The
    last interval alone is as wide as the differences between rows. A rate that fails is measured twice and the better result counts, because
    other processes on the machine can only make it worse.
    """

    def seen_ms(rate: float) -> float:
        p99_ms = p99_ms_at(rate)
        return p99_ms if p99_ms <= bound_ms else min(p99_ms, p99_ms_at(rate))

    low_ms, high_ms = seen_ms(low), math.inf
    if low_ms > bound_ms:
        return 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        middle_ms = seen_ms(middle)
        if middle_ms <= bound_ms:
            low, low_ms = middle, middle_ms
        else:
            high, high_ms = middle, middle_ms
    return low + (high - low) * math.log(bound_ms / low_ms) / math.log(high_ms / low_ms)


def _add_figures(figures: Figures, world: RankWorld, rows: Sequence[_Measured], items: int) -> None:
    base = rows[0]
    for one in rows:
        name, columns = one.row.name, world.tables.columns
        item_bytes = sum(columns[column].nbytes // len(columns[column]) for column in one.row.columns)
        figures.add(f"{name}.avg_rt_ms", float(np.mean(one.taken_ms)))
        figures.add(f"{name}.p99_rt_ms", float(np.percentile(one.taken_ms, 99)))
        figures.add(f"{name}.max_qps", float(np.median(one.rates)))
        figures.add(f"{name}.avg_rt_pct", _more_pct(np.mean(one.taken_ms), np.mean(base.taken_ms)))
        figures.add(f"{name}.p99_rt_pct", _more_pct(np.percentile(one.taken_ms, 99), np.percentile(base.taken_ms, 99)))
        figures.add(f"{name}.call2_cpu_pct", _more_pct(np.median(one.call2_cpu_ms), np.median(base.call2_cpu_ms)))
        figures.add(f"{name}.cpu_pct", _more_pct(np.median(one.cpu_ms), np.median(base.cpu_ms)))
        ratios = [_more_pct(rate, whole) for rate, whole in zip(one.rates, base.rates, strict=True)]
        figures.add(f"{name}.max_qps_pct", float(np.median(ratios)))
        figures.add(f"{name}.extra_bytes", item_bytes * items + one.state_bytes * POOL_USERS)
        figures.add(f"{name}.item_bytes", item_bytes)
        figures.add(f"{name}.state_bytes", one.state_bytes)
        for measure, value in zip(MEASURES, one.row.paper, strict=True):
            figures.add(f"{name}.paper_{measure}", value)


def _more_pct(value: SupportsFloat, base: SupportsFloat) -> float:
    return 100.0 * (float(value) / float(base) - 1) if base else float("nan")


def table_rows(figures: Figures) -> list[dict[str, str]]:
    """The rows to print: each figure next to the paper's."""
    rows = []
    for row in _choose_rows(figures.config["rows"]):
        cells = {"method": row.name}
        for measure in MEASURES:
            value = figures.value(f"{row.name}.{measure}")
            cells[measure] = "-" if value is None else f"{value:+.1f}"
            cells[f"paper {measure}"] = f"{figures.value(f'{row.name}.paper_{measure}'):+.2f}"
        cells["extra MB"] = f"{(figures.value(f'{row.name}.extra_bytes') or 0) / 1e6:.1f}"
        rows.append(cells)
    return rows
