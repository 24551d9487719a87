"""The synthetic world of the benches in one process: an engine with a model and random item rows in memory, users' histories, and requests.

Rows are random numbers and not computed by the model, because times depend on the place of rows and not on their values. Ids are random, and candidates are
drawn from all of them.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.features import Feature, FeatureSchema, Scope
from schemas.index.layout import STAMP, row_layout
from schemas.kinds import CATEGORICAL, EMBEDDING, NUMERIC
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.parameters import parameters_of
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec
from schemas.token import VersionToken
from schemas.users import BehaviourEvent
from serving.engine.devices.cpu import CpuScorer
from serving.engine.devices.scorer import Scorer
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import Resident
from serving.engine.tables.arena import ArenaMemory, open_arrays, plan_arena, plan_arena_bytes, reset_arrays
from serving.engine.tables.changes import Changes, pack_stamps
from serving.engine.tables.tables import Tables
from serving.engine.work import RankWork, UserState, UserWork

VERSION = 1
TOP_K = 100
REST_S = 0.25  # between two cases, after which torch's worker threads have stopped spinning
PROFILE = {"age": 0.5, "city": "c7"}
CONTEXT = {"hour": 20}
_CATEGORIES = 1_000
_MANY = 10_000  # candidates
_INTERESTS = 30  # categories of one user's history
_APPLY_ROWS = 65_536
_WAIT_S = 600.0
_SEED = 0

Case = Callable[[], object]


def bench_spec(ranker: RankerSpec | None = None, simtier_behaviours: int = BEHAVIOURS_PER_USER_MAX) -> ModelSpec:
    """A model with all parts and the default sizes, except that it reads as many behaviours as a history can have, in SimTier too."""
    schema = FeatureSchema(
        (
            Feature("category", Scope.ITEM, CATEGORICAL, buckets=_CATEGORIES),
            Feature("price", Scope.ITEM, NUMERIC, realtime=True),
            Feature("bid", Scope.ITEM, NUMERIC, default=1.0),
            Feature("image", Scope.ITEM, EMBEDDING, width=64),
            Feature("age", Scope.USER, NUMERIC),
            Feature("city", Scope.USER, CATEGORICAL, buckets=100),
            Feature("hour", Scope.CONTEXT, CATEGORICAL, buckets=25),
        ),
        sim_category="category",
        bid="bid",
        multimodal="image",
    )
    return ModelSpec(schema, behaviours_max=BEHAVIOURS_PER_USER_MAX, simtier_behaviours=simtier_behaviours, ranker=ranker)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: numbers of candidates, turns of every case, calls in a turn."""

    candidates: tuple[int, ...]
    turns: int
    calls: int

    def calls_of(self, candidates: int) -> int:
        """Calls in a turn with so many candidates: of many, fewer."""
        return self.calls if candidates <= _MANY else max(3, self.calls // 5)


@dataclass
class RankWorld:
    """An engine with one resident version. `ids` are its items."""

    engine: Engine
    network: AifNetwork
    tables: Tables
    scorer: CpuScorer
    ids: np.ndarray
    memory: ArenaMemory
    rng: np.random.Generator

    @property
    def spec(self) -> ModelSpec:
        """The network's spec."""
        return self.network.spec

    def requests(self, candidates: int, count: int = 16) -> list[np.ndarray]:
        """`count` lists of candidate ids, int64 [candidates], each without repetition."""
        return [self.rng.choice(self.ids, candidates, replace=False) for _ in range(count)]

    def history(self, length: int) -> BehaviourColumns:
        """A history of random items of 30 categories, oldest first, in the form that a server keeps."""
        rows = np.flatnonzero(self.tables.columns["category"][: len(self.ids)] <= _INTERESTS)
        return EMPTY.append([(int(i), "click", at, {}) for at, i in enumerate(self.ids[self.rng.choice(rows, length)])], length)

    def user(self, history: Sequence[BehaviourEvent]) -> UserState:
        """The state of a user with this history, computed by the engine (call 1)."""
        return self.engine.submit_user(UserWork(PROFILE, history, VERSION)).result(_WAIT_S).state

    def resident(self, scorer: Scorer, version: int) -> Resident:
        """The world's rows under a scorer, as a version of the engine."""
        return Resident(VersionToken(version, 0, "0" * 8), self.tables, scorer, ({},), {0: 0})


def time_calls(case: Case, calls: int) -> list[float]:
    """Milliseconds of each call."""
    taken_ms = []
    for _ in range(calls):
        began = time.perf_counter()
        case()
        taken_ms.append(1e3 * (time.perf_counter() - began))
    return taken_ms


def time_in_turns(cases: Mapping[str, Case], turns: int, calls: int) -> dict[str, np.ndarray]:
    """Milliseconds of every call by case; the cases take turns, and before the calls of a turn there are two that are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            time.sleep(REST_S)
            taken[name] += time_calls(case, calls + 2)[2:]
    return {name: np.array(times) for name, times in taken.items()}


def engine_case(world: RankWorld, state: UserState, requests: Sequence[np.ndarray]) -> Case:
    """Ranks one request after the other, and waits for the answer."""
    turn = itertools.cycle(requests)
    return lambda: world.engine.submit_rank(RankWork(next(turn), TOP_K, state, context=CONTEXT)).result()


def compare_scores(ours_C: np.ndarray, theirs_C: np.ndarray) -> tuple[float, float]:
    """(the largest difference of a score, the share of the top 100 that both have)."""
    best = [set(np.argsort(-scores_C)[:TOP_K].tolist()) for scores_C in (ours_C, theirs_C)]
    return float(np.abs(ours_C - theirs_C).max()), len(best[0] & best[1]) / len(best[0])


@contextlib.contextmanager
def open_rank_world(items: int, ranker: RankerSpec | None = None, simtier_behaviours: int = BEHAVIOURS_PER_USER_MAX) -> Iterator[RankWorld]:
    """A world of `items` items, whose engine runs as long as the block; every call gives the same rows and ids."""
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)  # OpenMP's spinning workers would take cores from the engine's own threads
    rng, spec = np.random.default_rng(_SEED), bench_spec(ranker, simtier_behaviours)
    network = AifNetwork(spec, make_w_hash(_SEED, spec.hash_bits, spec.schema.mm_width)).eval()
    ids = rng.permutation(np.unique(rng.integers(0, 1 << 62, items + items // 100 + 16)))[:items]
    tables, memory = _fill_arena(spec, ids, rng)
    engine, scorer = Engine(), CpuScorer(parameters_of(network), VERSION, tables)
    world = RankWorld(engine, network, tables, scorer, ids, memory, rng)
    engine.start()
    try:
        engine.install(world.resident(scorer, VERSION)).result(_WAIT_S)
        yield world
    finally:
        engine.close()


def _fill_arena(spec: ModelSpec, ids: np.ndarray, rng: np.random.Generator) -> tuple[Tables, ArenaMemory]:
    layout = row_layout(spec)
    memory = ArenaMemory(plan_arena_bytes(layout, len(ids), 0))
    memory.populate()
    plan = plan_arena(layout, memory.size_bytes, len(ids), 0)
    arrays = open_arrays(plan, memory.buffer)
    reset_arrays(arrays)
    tables = Tables(layout, plan, arrays)
    for at in range(0, len(ids), _APPLY_ROWS):
        chunk = ids[at : at + _APPLY_ROWS]
        tables.apply(
            Changes(chunk, pack_stamps(np.ones(len(chunk), STAMP)), np.zeros(len(chunk), np.uint8), draw_rows(spec, len(chunk), rng))
        )
    return tables, memory


def draw_rows(spec: ModelSpec, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` random rows of the spec's row layout."""
    rows = np.zeros(count, row_layout(spec).dtype)
    weights = rng.random((count, spec.bridges))
    rows["vector"] = rng.standard_normal((count, spec.width), np.float32)
    rows["bridge"] = weights / weights.sum(axis=1, keepdims=True)
    rows["signature"] = rng.integers(0, 256, (count, spec.signature_bytes), np.uint8)
    rows["has_signature"] = rng.random(count) < 0.98
    rows["category"] = rng.integers(1, _CATEGORIES, count)
    rows["bid"] = rng.random(count) + 0.5
    rows["realtime"] = rng.standard_normal(count)
    return rows
