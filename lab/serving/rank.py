"""`aif bench rank`: the time of one request in the engine, from ids to the top 100, compared with torch's time for the same rows and products.

    engine      `Engine.submit_rank` with a state of call 1: look-up, gather, joint part, top-k, answer
    floor       torch with as many threads: gather of the same columns at known places, and the same products on ready inputs; no look-up, join or top-k
    simtier     the compiled counts of SimTier alone, with their tables; added to the floor for long histories
    parity      scores and top 100, compared with the reference network in fp64 on the same rows

The cases take turns. Between them is a pause, because torch's worker threads spin for a while after their work. Figures are medians over all turns.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.serving.peer_runs import measure_peers
from lab.serving.protocols import measure_protocols
from lab.serving.world import CONTEXT, PROFILE, TOP_K, Case, Plan, RankWorld, compare_scores, engine_case, open_rank_world, time_in_turns
from schemas.kernels.bit_planes import EDGES_TOGETHER, LANES, SCRATCH_ROWS, TABLE_ROWS
from schemas.kernels.products import padded
from schemas.kernels.vector_blocks import aligned
from schemas.model.inputs import behaviour_row, build_user_inputs, candidate_rows
from schemas.model.lsh import equal_bits_min
from schemas.model.network import InFloat64
from schemas.users import BehaviourEvent
from serving.engine.call_one.history import find_rows
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.call_two.tier_counts import arrange_behaviours, build_word_table, pack_words, plan_limits, take_beyond
from serving.engine.devices.workers import WORKERS
from serving.engine.loop.engine import Engine
from serving.engine.work import UserState

RANK = read_bench("bench rank")

LENGTH = 1_000  # behaviours, where nothing else is said
LONG_TURNS = 6  # turns with a long history: few calls in each, and one ratio per turn
EQUAL_TIERS = tuple(i / 8 for i in range(1, 9))
EDGES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
NO_SIGNATURES = np.zeros((0, 1), np.uint8)


def measure_rank(items: int, candidates: tuple[int, ...], quick: bool) -> Figures:
    """All figures of the command."""
    plan = Plan(candidates, 3 if quick else 12, 12 if quick else 50)
    config = {"items": items, "candidates": list(candidates), "threads": WORKERS.threads, "calls": plan.turns * plan.calls, "top_k": TOP_K}
    say(f"filling an arena with {items} items ...")
    with open_rank_world(items) as world:
        figures = Figures(RANK, config | {"model": world.spec.to_dict() | {"schema": "as in lab/serving/world.py"}})
        for measure in (measure_engine, measure_protocols, measure_peers, measure_lengths, measure_pairs, measure_parity):
            say(f"{measure.__name__} ...")
            measure(world, plan, figures)
    return figures


# --- time -------------------------------------------------------------------------------------------------------------------


def floor_case(world: RankWorld, candidates: int) -> Case:
    """The least that torch has to do for a request: gathers the same columns at known places, and multiplies ready inputs of the same sizes."""
    head, weights = world.network.head, world.scorer.weights
    columns = [torch.from_numpy(column) for column in world.tables.columns.values()]
    places = [torch.from_numpy(world.rng.choice(len(world.ids), candidates, replace=False)) for _ in range(16)]
    inputs, matrix = torch.randn(candidates, weights.inputs), torch.randn(weights.inputs, head.first.out_features)
    base, turn = torch.randn(candidates, head.first.out_features), iter(range(1 << 60))

    @torch.inference_mode()
    def call() -> None:
        torch.set_num_threads(WORKERS.threads)
        rows = places[next(turn) % len(places)]
        for column in columns:
            column.index_select(0, rows)
        head.rest(torch.addmm(base, inputs, matrix))
        torch.set_num_threads(1)

    return call


def without_simtier(state: UserState) -> UserState:
    """The same user, without behaviours for SimTier."""
    assert isinstance(state, EngineUserState) and state.tables is not None
    return dataclasses.replace(state, tables=state.tables._replace(behaviours=arrange_behaviours(NO_SIGNATURES)))


def pairs_case(engine: Engine, items_CW: np.ndarray, behaviours_SW: np.ndarray, edges: tuple[float, ...]) -> Case:
    """SimTier's counts alone, tables included, on the engine's own threads, which are bound to their cores."""
    bits, words_CQ = 8 * items_CW.shape[1], pack_words(items_CW)
    limits, arranged = plan_limits(equal_bits_min(edges, bits), bits), arrange_behaviours(behaviours_SW)
    near_CE = np.zeros((len(words_CQ), padded(len(edges), EDGES_TOGETHER)), np.int32)
    scratch = [
        (aligned((words_CQ.shape[1], TABLE_ROWS, LANES), np.uint64), aligned((SCRATCH_ROWS, LANES), np.uint64))
        for _ in range(WORKERS.threads)
    ]

    def count(first: int, end: int, thread: int) -> None:
        tables, counters = scratch[thread]
        for planes_QBL, valid_L, shift_L in zip(arranged.planes_ZQBL, arranged.valid_ZL, arranged.shift_ZL, strict=True):
            for q, planes_BL in enumerate(planes_QBL):
                build_word_table(planes_BL, valid_L, tables[q])
            take_beyond(words_CQ[first:end], tables, limits.masks_EP, shift_L, counters, near_CE[first:end])

    return lambda: engine.run(lambda: WORKERS.run(count, len(words_CQ))).result()


# --- parts ------------------------------------------------------------------------------------------------------------------


def measure_engine(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds the figures of engine and floor for every number of candidates."""
    state = world.user(world.history(LENGTH))
    for candidates in plan.candidates:
        cases = {"engine": engine_case(world, state, world.requests(candidates)), "floor": floor_case(world, candidates)}
        taken = time_in_turns(cases, plan.turns, plan.calls_of(candidates))
        figures.add(f"engine_p50_ms_{candidates}", np.median(taken["engine"]))
        figures.add(f"engine_p99_ms_{candidates}", np.percentile(taken["engine"], 99))
        figures.add(f"floor_p50_ms_{candidates}", np.median(taken["floor"]))
        figures.add(f"engine_over_floor_{candidates}", np.median(taken["engine"]) / np.median(taken["floor"]))


def measure_lengths(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds the figures of 10^4 candidates (or as many as there are) for histories of several lengths, with SimTier and without."""
    candidates = min(10_000, len(world.ids))
    states = {length: world.user(world.history(length)) for length in (LENGTH, 10_000, 100_000)}
    plain = {"floor": floor_case(world, candidates)}
    plain |= {f"din_{length}": engine_case(world, without_simtier(state), world.requests(candidates)) for length, state in states.items()}
    taken = time_in_turns(plain, plan.turns, plan.calls)
    figures.add("engine_no_simtier_p50_ms_10000", np.median(taken[f"din_{LENGTH}"]))
    figures.add("din_call2_ratio_100000_to_1000", np.median(taken["din_100000"]) / np.median(taken[f"din_{LENGTH}"]))
    for length in (10_000, 100_000):
        _measure_long(world, plan, figures, length, states[length])


def _measure_long(world: RankWorld, plan: Plan, figures: Figures, length: int, state: UserState) -> None:
    """Adds the figures of a long history. The engine is compared with the sum of floor and counts of the same turn, under the same load of the machine."""
    assert isinstance(state, EngineUserState)
    seen_SW, candidates = state.arrays.simtier_SW[state.arrays.simtier_mask_S], min(10_000, len(world.ids))
    items_CW = world.tables.columns["signature"][world.rng.choice(len(world.ids), candidates, replace=False)]
    cases = {
        "engine": engine_case(world, state, world.requests(candidates)),
        "simtier": pairs_case(world.engine, items_CW, seen_SW, world.spec.tier_edges),
        "floor": floor_case(world, candidates),
    }
    calls = max(4, plan.calls // 5)
    turns = {name: np.median(taken.reshape(-1, calls), axis=1) for name, taken in time_in_turns(cases, LONG_TURNS, calls).items()}
    floors = turns["floor"] + turns["simtier"]
    figures.add(f"engine_simtier_p50_ms_{length}", np.median(turns["engine"]))
    figures.add(f"floor_simtier_p50_ms_{length}", np.median(floors))
    figures.add(f"engine_over_floor_simtier_{length}", np.median(turns["engine"] / floors))


def measure_pairs(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds the nanoseconds per pair of different random signatures, for 10^4 candidates and 10^4 behaviours."""
    drawn_CW = world.rng.integers(0, 256, (20_000, world.spec.signature_bytes), np.uint8)

    def case(edges: tuple[float, ...], width: int) -> Case:
        return pairs_case(world.engine, drawn_CW[:10_000, :width], drawn_CW[10_000:, :width], edges)

    width = world.spec.signature_bytes
    cases = {"simtier": case(EQUAL_TIERS, width), "simtier_edges": case(EDGES, width), "simtier_64_bits": case(EQUAL_TIERS, 8)}
    for name, taken in time_in_turns(cases, plan.turns, max(4, plan.calls // 5)).items():
        figures.add(f"{name}_ns_per_pair", 1e6 * np.median(taken) / 1e8)


@torch.inference_mode()
def measure_parity(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds the comparison with the reference network in fp64: the largest difference of a score, its bound by rounding, and the common share of the
    top 100."""
    candidates, compared, bids = min(10_000, len(world.ids)), [], []
    for user in range(max(1, plan.turns // 3)):
        history = world.history(LENGTH)
        rows = world.rng.choice(len(world.ids), candidates, replace=False)
        compared.append(compare_scores(_engine_scores(world, history, rows), _reference_scores(world, history, rows)))
        bids.append(float(world.tables.columns["bid"][rows].max()))
        say(f"  user {user}: {compared[-1][0]:.2e}")
    differences, overlaps = zip(*compared, strict=True)
    widest = max(parameter.shape[-1] for parameter in world.network.head.parameters() if parameter.ndim == 2)
    figures.add("parity_max_diff", max(differences))
    figures.add("parity_bound", float(np.finfo(np.float32).eps) * widest * max(bids))
    figures.add("parity_overlap", float(np.mean(overlaps)))


def _engine_scores(world: RankWorld, history: Sequence[BehaviourEvent], rows: np.ndarray) -> np.ndarray:
    state = world.user(history)
    return world.engine.run(lambda: world.scorer.score(state, rows, CONTEXT)).result()[0]


def _reference_scores(world: RankWorld, history: Sequence[BehaviourEvent], rows: np.ndarray) -> np.ndarray:
    joint = candidate_rows(world.spec, world.tables.rows_at(rows), CONTEXT)
    seen = zip(history, world.tables.rows_at(find_rows(world.tables, history)), strict=True)
    behaviours = [behaviour_row(world.spec, event.item_id, event.kind, event.features, row) for event, row in seen]
    with InFloat64():
        states = world.network.user_states(build_user_inputs(world.spec, PROFILE, behaviours))
        scores, _ = world.network.scores(world.network.joint_logits(states, joint), joint.bid_BC)
    return np.asarray(scores[0].numpy())
