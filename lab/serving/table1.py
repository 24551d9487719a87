"""`aif bench table1`: the paper's Table 1, with numbers: four ways of scheduling the computations that do not depend on the (user, item) pair.

    offline     the item half of the whole catalogue once a day
    nearline    the item half of an item when it changes, and of all items for a new checkpoint; two versions are stored
    online      the user half once per request during retrieval; its state is stored until the candidates are there
    real_time   both halves after the candidates are known: the item half of every candidate, the user half for every mini-batch

Timeliness is the age of an answer's inputs. It is half a day offline, nearline the wait for a batch and its way into the table, online the time of
retrieval, and nothing in real time. Left out: the log's part of the nearline way (`aif bench freshness` measures it), and DIN and SimTier, which depend on the
pair and cannot be computed ahead.
Source: AIF, Table 1.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.serving.world import PROFILE, VERSION, RankWorld, draw_rows, open_rank_world
from schemas.features import FeatureBlock, encode_features
from schemas.index.layout import STAMP, row_layout
from schemas.model.inputs import FeatureTensors
from schemas.model.item_network import ItemNetwork
from schemas.model.parameters import parameters_of
from serving.engine.tables.changes import Changes, pack_stamps
from serving.engine.work import UserWork

TABLE_1 = read_bench("bench table1")

MEASURES = ("compute", "storage", "latency", "timeliness")
PAPER = {
    "offline": (1, 3, 0, 1),
    "nearline": (2, 4, 0, 3),
    "online": (3, 2, 1, 4),
    "real_time": (4, 1, 4, 4),
}  # of four ticks, in the order of MEASURES
DAY_S, POOL = 86_400.0, 3.0  # the pool holds as many states as POOL times the requests in flight (paper, section 5.3: two to three)
_BLOCK = 256  # most rows that are encoded at once


@dataclass(frozen=True, slots=True)
class Traffic:
    """The load of a deployment."""

    items: int = 1_000_000
    updates_per_s: float = 1_000.0
    batch_ms: float = 20.0  # updates that arrive within it are encoded together
    checkpoints_per_day: float = 24.0
    requests_per_s: float = 100.0
    candidates: int = 10_000
    mini_batch: int = 1_000
    behaviours: int = 1_000
    retrieval_ms: float = 50.0

    @property
    def rows_together(self) -> int:
        """How many updates arrive within `batch_ms` and are encoded together: at least one, at most a block."""
        return min(_BLOCK, max(1, math.ceil(self.updates_per_s * self.batch_ms / 1000)))


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs; milliseconds are of processor time.

    row_ms          one row of the item half, computed in blocks of 256
    block_ms        the rows that arrive together (`Traffic.rows_together`), computed and written into the table
    item_half_ms    the item half of a request's candidates in fp32, at ranking time
    user_half_ms    one user half
    gather_ms       look-up and gather of the vectors of a request's candidates
    row_bytes       a row's vector and bridge weights; order_bytes: the order stored with it; state_bytes: a user's state
    """

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
    """A row of the table: processor seconds per second, bytes, milliseconds that an answer waits, age of its inputs in seconds."""

    compute_cores: float
    storage_bytes: float
    latency_ms: float
    age_s: float


def measure_table1(traffic: Traffic, world_items: int, calls: int) -> Figures:
    """All figures of the command."""
    figures = Figures(TABLE_1, asdict(traffic) | {"world_items": world_items})
    say(f"filling an arena with {world_items} items ...")
    with open_rank_world(world_items) as world:
        costs = measure_costs(world, replace(traffic, candidates=min(traffic.candidates, world_items)), calls)
    for name in ("row", "block", "item_half", "user_half", "gather"):
        figures.add(f"{name}_ms", getattr(costs, f"{name}_ms"))
    for name in ("row", "order", "state"):
        figures.add(f"{name}_bytes", getattr(costs, f"{name}_bytes"))
    for name, way in weigh(traffic, costs).items():
        figures.add(f"{name}.compute_cores", way.compute_cores)
        figures.add(f"{name}.storage_bytes", way.storage_bytes)
        figures.add(f"{name}.latency_ms", way.latency_ms)
        figures.add(f"{name}.age_s", way.age_s)
        for measure, ticks in zip(MEASURES, PAPER[name], strict=True):
            figures.add(f"{name}.paper_{measure}", ticks)
    return figures


def weigh(traffic: Traffic, costs: Costs) -> dict[str, Way]:
    """The costs of a traffic in each of the four ways, by name."""
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
    """Measures the costs: medians of the processor time of the engine's own thread, on which each part runs alone."""
    say("item half, user half, look-up ...")
    network, spec, items = world.network, world.spec, ItemNetwork(parameters_of(world.network))
    block, history = _draw_features(world, _BLOCK), world.history(traffic.behaviours)
    candidates = FeatureTensors.from_block(_draw_features(world, traffic.candidates))
    ids = world.requests(traffic.candidates, 1)[0]
    count = min(traffic.rows_together, len(world.ids))
    updated, rows = _draw_features(world, count), draw_rows(spec, count, world.rng)
    orders = pack_stamps(np.full(count, np.array((2, 0, 0, 0, 0, 0, 0), STAMP)))

    def apply_block() -> None:
        encoded = items.encode(updated)
        rows["vector"], rows["bridge"] = encoded.vectors_RD, encoded.bridge_RN
        orders[:, 0] += 1
        world.tables.apply(Changes(world.ids[:count].copy(), orders, np.zeros(count, np.uint8), rows))

    def gather() -> None:
        row_C = world.tables.find(ids)
        world.tables.columns["vector"][row_C], world.tables.columns["bridge"][row_C]

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
        order_bytes=STAMP.itemsize,
        state_bytes=state.size_bytes,
    )


def _median_ms(world: RankWorld, call: Callable[[], object], calls: int) -> float:
    """Median milliseconds of processor time of a call on the engine's thread; the first two calls are not counted."""

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
    """The rows to print: the computed costs next to the paper's ticks."""
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
