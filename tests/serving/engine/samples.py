"""Small versions in ordinary memory for the tests of the engine: random networks of every shape of schema, their rows, their tables, engines on them."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from schemas.features import encode_realtime
from schemas.ids import Id, IdKind, encode_index_key
from schemas.index.layout import STAMP, RowLayout, encode_increment, row_layout, stack_increments
from schemas.model.inputs import UserInputs, UserStates, behaviour_row, build_user_inputs, candidate_rows
from schemas.model.network import AifNetwork
from schemas.model.parameters import Parameters, parameters_of
from schemas.model.spec import ModelSpec
from schemas.token import VersionToken
from schemas.users import BehaviourEvent
from serving.engine.devices.cpu import CpuScorer
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import Resident
from serving.engine.tables.arena import open_arrays, plan_arena, plan_arena_bytes, reset_arrays
from serving.engine.tables.changes import Changes, changes_of, encode_ids
from serving.engine.tables.tables import Tables
from tests.schemas.model.samples import encode_items, encode_rows, make_items, make_network, rank_reference, sign_items

PROFILE = {"age": 0.3, "city": "rome", "likes": ["a", "b"], "facets": [0.1, -0.2, 0.9]}
CONTEXT = {"hour": 13}


def changes_of_pairs(layout: RowLayout, pairs: Sequence[tuple[bytes, bytes]]) -> Changes:
    """At least one change, each as (index key, increment value), in this order."""
    return changes_of(stack_increments(layout, pairs), layout.id_kind)


def stamp(features_version: int = 1, features_offset: int = 0, embedding_offset: int = 0, dead: int = 0) -> np.ndarray:
    """One STAMP element."""
    return np.array((features_version, features_offset, 0, embedding_offset, 0, 0, dead), STAMP)


def empty_tables(layout: RowLayout, capacity: int, id_bytes: int = 0) -> Tables:
    """Tables in ordinary memory with room for at least `capacity` rows."""
    arena_bytes = plan_arena_bytes(layout, capacity, id_bytes)
    plan = plan_arena(layout, arena_bytes, capacity, id_bytes)
    arrays = open_arrays(plan, bytearray(plan.size_bytes))
    reset_arrays(arrays)
    return Tables(layout, plan, arrays)


def item_id(kind: IdKind, number: int) -> Id:
    """The id of the number-th item: numbers far apart (also negative), or text of several lengths."""
    return (number - 3) * 7_919_000_000_007 if kind is IdKind.INT64 else f"item-{'x' * (number % 11)}-{number}"


@dataclass
class Version:
    """A network, its items, their rows as stored, and tables that hold them."""

    network: AifNetwork
    items: list[dict[str, object]]
    ids: list[Id]
    rows: np.ndarray
    tables: Tables

    @property
    def spec(self) -> ModelSpec:
        """The network's spec."""
        return self.network.spec

    @property
    def parameters(self) -> Parameters:
        """The network's."""
        return parameters_of(self.network)

    @property
    def row_numbers(self) -> np.ndarray:
        """Where the tables have the items."""
        return self.tables.find(encode_ids(self.ids, self.spec.schema.id_kind))

    def scorer(self, number: int = 1) -> CpuScorer:
        """A scorer on the version's tables, as version `number`."""
        return CpuScorer(self.parameters, number, self.tables)

    def resident(self, number: int = 1) -> Resident:
        """What an engine is given to serve it as version `number`, of one shard."""
        watermark = ({"item-features": 0, "new-items": 0},)
        return Resident(token_of(number), self.tables, self.scorer(number), watermark, {0: 0})


def token_of(number: int) -> VersionToken:
    """The token of version `number`."""
    return VersionToken(number, 0, f"{number:08x}")


@contextlib.contextmanager
def running_engine(version: Version | None = None) -> Iterator[Engine]:
    """A real engine, which serves `version` as version 1."""
    engine = Engine()
    engine.start()
    try:
        if version is not None:
            engine.install(version.resident()).result(60)
        yield engine
    finally:
        engine.close()


def encode_item_rows(network: AifNetwork, items: Sequence[dict[str, object]]) -> np.ndarray:
    """Structured rows of the layout."""
    spec = network.spec
    rows, stored = np.zeros(len(items), row_layout(spec).dtype), encode_rows(network, encode_items(spec, items))
    rows["vector"], rows["bridge"] = stored.vectors_RD.reshape(rows["vector"].shape), stored.bridge_RN.reshape(rows["bridge"].shape)
    for i, (item, signature) in enumerate(zip(items, sign_items(network, items), strict=True)):
        rows["category"][i], rows["bid"][i] = spec.schema.category_of(item), spec.schema.bid_of(item)
        if spec.schema.realtime_features:
            values = encode_realtime(spec.schema, item)
            rows["realtime"][i] = values if len(values) > 1 else values[0]
        if signature is not None:
            rows["signature"].reshape(len(items), -1)[i], rows["has_signature"][i] = np.frombuffer(signature, np.uint8), 1
    return rows


def make_version(spec: ModelSpec, items: int = 300, seed: int = 0) -> Version:
    """A version of `items` random items."""
    return version_of(make_network(spec, seed), make_items(items, seed))


def version_of(network: AifNetwork, raw: list[dict[str, object]]) -> Version:
    """A version of this network and these items."""
    network, spec, items = network.eval(), network.spec, len(raw)
    ids, rows = [item_id(spec.schema.id_kind, i) for i in range(items)], encode_item_rows(network, raw)
    tables = empty_tables(row_layout(spec), items, sum(len(encode_index_key(i)) for i in ids))
    pairs = [(encode_index_key(i), encode_increment(stamp(), row)) for i, row in zip(ids, rows, strict=True)]
    tables.apply(changes_of_pairs(row_layout(spec), pairs))
    return Version(network, raw, ids, rows, tables)


def make_behaviours(version: Version, length: int, seed: int = 0) -> list[BehaviourEvent]:
    """A history over the version's items and over some that it does not have."""
    rng, kind = np.random.default_rng(seed), version.spec.schema.id_kind
    numbers = rng.integers(0, len(version.ids) * 8 // 7, length)
    return [
        BehaviourEvent(
            item_id(kind, int(n)), ("click", "buy", "look")[j % 3], j, {"dwell": float(rng.random()), "place": int(rng.integers(3))}
        )
        for j, n in enumerate(numbers)
    ]


def reference_inputs(version: Version, profile: dict[str, object], behaviours: Sequence[BehaviourEvent]) -> UserInputs:
    """`UserInputs` by the plain builder, one object per behaviour."""
    places = {id_: i for i, id_ in enumerate(version.ids)}
    rows = [version.rows[places[event.item_id]] if event.item_id in places else None for event in behaviours]
    joined = [behaviour_row(version.spec, e.item_id, e.kind, e.features, row) for e, row in zip(behaviours, rows, strict=True)]
    return build_user_inputs(version.spec, profile, joined)


def named_states(states: UserStates) -> dict[str, np.ndarray]:
    """The network's user half by the names of `HalfArrays.named`."""
    parts = [("", states, ("user_BU", "bridges_BNP", "simtier_BSW", "simtier_mask_BS"))]
    parts += [(f"{name}.", part, [f.name for f in dataclasses.fields(part)]) for name, part in (("din", states.din), ("sim", states.sim))]
    return {before + name: getattr(part, name).numpy() for before, part, names in parts for name in names}


@torch.inference_mode()
def reference_answer(
    version: Version, profile: dict[str, object], behaviours: Sequence[BehaviourEvent], places: Sequence[int], top_k: int
) -> list[tuple[Id, float, tuple[float, ...]]]:
    """The slow specification of an answer, from plain rows."""
    states = version.network.user_states(reference_inputs(version, profile, behaviours))
    rows = candidate_rows(version.spec, version.rows[list(places)], CONTEXT)
    return rank_reference(version.network, states, rows, [version.ids[p] for p in places], top_k)
