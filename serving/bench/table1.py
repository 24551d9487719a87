"""`aif bench table1`: the paper's Table 1, the four ways of computing what does not depend on the pair, each measured on the same traffic.

    offline     the item half of the whole catalogue once a day; an answer reads what is stored
    nearline    the item half of what changed, when it changed, and of everything at a new checkpoint; two versions are kept
    online      the user half once per request, while retrieval runs; the state is kept until the candidates are there
    real_time   both halves after the candidates are known: the item half of every candidate, the user half for every mini-batch

Measured: processor time of each half, of look-up and gather, bytes. Computed from these: what the traffic of `Traffic` costs. Timeliness is how old
what an answer sees is: half a period offline; one update's way from its features to the row that is served, with the
wait for its batch; the time of retrieval; nothing.
Not here: the log's part of that way (`aif bench freshness` measures it through a broker), and pairs (DIN, SimTier), which nothing can compute ahead.
Source: AIF, Table 1.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from infra.bench.report import Figures
from infra.command import say
from schemas.features import FeatureBlock, encode_features
from schemas.index.layout import ORDER, row_layout
from schemas.model.inputs import FeatureTensors
from schemas.model.item_network import ItemNetwork
from schemas.model.parameters import parameters_of
from serving.bench.world import PROFILE, VERSION, RankWorld, draw_rows, open_rank_world
from serving.engine.changes import Changes, pack_orders
from serving.engine.work import UserWork

MEASURES = ("compute", "storage", "latency", "timeliness")
PAPER = {"offline": (1, 3, 0, 1), "nearline": (2, 4, 0, 3), "online": (3, 2, 1, 4), "real_time": (4, 1, 4, 4)}  # ticks of four
DAY_S, POOL = 86_400.0, 3.0  # the paper's pool: two to three times the requests in flight
_BLOCK = 256  # rows that are encoded at once


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one deployment has to do."""

    items: int = 1_000_000
    updates_per_s: float = 1_000.0
    batch_ms: float = 20.0  # updates that come within it are encoded together
    checkpoints_per_day: float = 24.0
    requests_per_s: float = 100.0
    candidates: int = 10_000
    mini_batch: int = 1_000
    behaviours: int = 1_000
    retrieval_ms: float = 50.0

    @property
    def rows_together(self) -> int:
        """Updates that come within `batch_ms`, which are encoded together: at least one, at most a block."""
        return min(_BLOCK, max(1, math.ceil(self.updates_per_s * self.batch_ms / 1000)))


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured. ms of processor time: a row in bulk, a block of rows that came together, an item half in fp32 at ranking time, a user half, look-up and
    gather of a request's vectors; bytes of a row's vector and weights, of its order, of a user's state."""

    row_ms: float
    block_ms: float
    item_half_ms: float
    user_half_ms: float
    gather_ms: float
    row_bytes: int
    order_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Way:
    """One row of the table: cores, bytes, ms that an answer waits, age in s of what it sees."""

    compute_cores: float
    storage_bytes: float
    latency_ms: float
    age_s: float


def measure_table1(traffic: Traffic, world_items: int = 50_000, calls: int = 30) -> Figures:
    """All figures of the command."""
    figures = Figures("bench table1", {name: getattr(traffic, name) for name in Traffic.__slots__} | {"world_items": world_items})
    say(f"filling a slot with {world_items} items ...")
    world = open_rank_world(world_items)
    try:
        costs = measure_costs(world, replace(traffic, candidates=min(traffic.candidates, world_items)), calls)
    finally:
        world.close()
    for name in Costs.__slots__:
        figures.add(name, getattr(costs, name), "bytes" if name.endswith("bytes") else "ms")
    for name, way in weigh(traffic, costs).items():
        figures.add(f"{name}.compute_cores", way.compute_cores, "cores")
        figures.add(f"{name}.storage_bytes", way.storage_bytes, "bytes")
        figures.add(f"{name}.latency_ms", way.latency_ms, "ms")
        figures.add(f"{name}.age_s", way.age_s, "s")
        for measure, ticks in zip(MEASURES, PAPER[name], strict=True):
            figures.add(f"{name}.paper_{measure}", ticks, "ticks of 4")
    return figures


def weigh(traffic: Traffic, costs: Costs) -> dict[str, Way]:
    """What the traffic costs in each of the four ways."""
    catalogue_ms, batches = traffic.items * costs.row_ms, math.ceil(traffic.candidates / traffic.mini_batch)
    real_time_ms = costs.item_half_ms + batches * costs.user_half_ms
    in_flight = POOL * traffic.requests_per_s * traffic.retrieval_ms / 1000
    batches_per_s = min(traffic.updates_per_s, 1000 / traffic.batch_ms)
    blocks_per_s = batches_per_s * math.ceil(traffic.updates_per_s / batches_per_s / _BLOCK)
    nearline_ms = blocks_per_s * costs.block_ms + traffic.checkpoints_per_day / DAY_S * catalogue_ms
    gather_ms, waits_ms = costs.gather_ms, max(0.0, costs.user_half_ms - traffic.retrieval_ms)
    return {
        "offline": Way(catalogue_ms / DAY_S / 1000, traffic.items * costs.row_bytes, gather_ms, DAY_S / 2),
        "nearline": Way(
            nearline_ms / 1000,
            2 * traffic.items * (costs.row_bytes + costs.order_bytes),
            gather_ms,
            (traffic.batch_ms + costs.block_ms) / 1000,
        ),
        "online": Way(
            traffic.requests_per_s * costs.user_half_ms / 1000, in_flight * costs.state_bytes, waits_ms, traffic.retrieval_ms / 1000
        ),
        "real_time": Way(traffic.requests_per_s * real_time_ms / 1000, 0.0, real_time_ms, 0.0),
    }


# --- measuring ----------------------------------------------------------------------------------------------------------------


def measure_costs(world: RankWorld, traffic: Traffic, calls: int) -> Costs:
    """Medians of processor time, each on the engine's own code, on the thread of the engine."""
    say("item half, user half, look-up ...")
    network, spec, items = world.network, world.spec, ItemNetwork(parameters_of(world.network))
    block, history = _draw_features(world, _BLOCK), world.history(traffic.behaviours)
    candidates = FeatureTensors.from_block(_draw_features(world, traffic.candidates))
    ids = world.requests(traffic.candidates, 1)[0]
    count = min(traffic.rows_together, len(world.ids))
    updated, rows = _draw_features(world, count), draw_rows(spec, count, world.rng)
    orders = pack_orders(np.full(count, np.array((2, 0, 0, 0, 0, 0, 0), ORDER)))

    def apply_block() -> None:
        encoded = items.encode(updated)
        rows["vector"], rows["bridge"] = encoded.vectors_RD, encoded.bridge_RN
        orders[:, 0] += 1
        world.tables.apply(Changes(world.ids[:count].copy(), orders, np.zeros(count, np.uint8), rows))

    def gather() -> None:
        slots_C = world.tables.find(ids)
        world.tables.columns["vector"][slots_C], world.tables.columns["bridge"][slots_C]

    @torch.inference_mode()
    def compute_items() -> None:
        network.item_rows(candidates)

    state = world.scorer.user_state(UserWork(PROFILE, history, VERSION))
    layout = row_layout(spec).dtype
    return Costs(
        row_ms=_median_ms(world, lambda: items.encode(block), calls) / _BLOCK,
        block_ms=_median_ms(world, apply_block, calls),
        item_half_ms=_median_ms(world, compute_items, calls),
        user_half_ms=_median_ms(world, lambda: world.scorer.user_state(UserWork(PROFILE, history, VERSION)), calls),
        gather_ms=_median_ms(world, gather, calls),
        row_bytes=layout["vector"].itemsize + layout["bridge"].itemsize,
        order_bytes=ORDER.itemsize,
        state_bytes=state.size_bytes,
    )


def _median_ms(world: RankWorld, call: Callable[[], object], calls: int) -> float:
    """Processor time of one call, the first two left out."""

    def time_calls() -> list[float]:
        taken = []
        for _ in range(calls + 2):
            began_s = time.thread_time()
            call()
            taken.append(1e3 * (time.thread_time() - began_s))
        return taken[2:]

    return float(np.median(world.engine.run(time_calls).result()))


def _draw_features(world: RankWorld, rows: int) -> FeatureBlock:
    rng = world.rng
    categories, prices = rng.integers(0, 1_000, rows).tolist(), rng.random(rows).tolist()
    images = rng.standard_normal((rows, world.spec.schema.mm_width)).tolist()
    records = [{"category": f"c{c}", "price": p, "image": i} for c, p, i in zip(categories, prices, images, strict=True)]
    return encode_features(world.spec.schema.item_half_inputs, records)


def table_rows(figures: Figures) -> list[dict[str, str]]:
    """The table for people: what was measured, beside the paper's ticks."""
    rows = []
    for name, ticks in PAPER.items():
        value = {
            measure: figures.value(f"{name}.{measure}") or 0.0 for measure in ("compute_cores", "storage_bytes", "latency_ms", "age_s")
        }
        cells = {
            "compute": f"{value['compute_cores']:.3g} cores",
            "storage": f"{value['storage_bytes'] / 1e6:.3g} MB",
            "latency": f"{value['latency_ms']:.3g} ms",
            "timeliness": f"{value['age_s']:.3g} s old",
        }
        row = {"way": name}
        for measure, tick in zip(MEASURES, ticks, strict=True):
            row |= {measure: cells[measure], f"paper {measure}": f"{tick} of 4"}
        rows.append(row)
    return rows
