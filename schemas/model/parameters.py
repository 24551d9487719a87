"""A model's parameters as plain arrays by the network's own names: what a checkpoint file holds, and all that serving on a CPU needs of a model.

No torch: the network itself is network.py, and a test holds the two to the same names and shapes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.features import Scope
from schemas.model.feature_places import FeaturePlaces, plan_features
from schemas.model.spec import ModelSpec

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]


@dataclass(frozen=True, slots=True)
class Parameters:
    """float32 arrays by name. Nothing changes them."""

    spec: ModelSpec
    arrays: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def find(self, name: str) -> np.ndarray | None:
        """None where the model has no such part."""
        return self.arrays.get(name)

    def mlp(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """(weight [out, in], bias) of the linear layers of an MLP, first to last: they lie at even places, between ReLUs."""
        found, at = list[tuple[np.ndarray, np.ndarray]](), 0
        while f"{name}.{at}.weight" in self.arrays:
            found.append((self.arrays[f"{name}.{at}.weight"], self.arrays[f"{name}.{at}.bias"]))
            at += 2
        return found


def parameters_of(network: Any) -> Parameters:
    """Those of an `AifNetwork`, on the CPU; they share its memory where it is there."""
    return Parameters(network.spec, {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()})


def segment_widths(spec: ModelSpec) -> tuple[dict[str, int], dict[str, int]]:
    """The head's input, segment by segment in its order (head.py): those that all candidates of a request share, and those of each candidate."""
    width = spec.width
    user = {"user": 3 * width, "context": plan_features(spec.schema.of(Scope.CONTEXT), spec.embedding_width).width}
    item = {"item": width, "user_x": width + 1, "bea": spec.bridge_width, "bea_x": width + 1}
    if spec.schema.multimodal:
        item |= {"din": width, "din_x": width + 1, "tiers": 2 * spec.tiers}
    if spec.schema.sim_category:
        item |= {"sim": width + 1, "sim_x": width + 1}
    realtime = plan_features(spec.schema.realtime_features, spec.embedding_width)
    return user, item | {"realtime": sum(realtime.widths)}


def parameter_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every array of a model of this spec."""
    return dict(itertools.chain(_item_half(spec), _bridges(spec), _behaviours(spec), _user_half(spec), _head(spec), _ranker(spec)))


def _linear(name: str, width_in: int, width_out: int, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (width_out, width_in)
    if bias:
        yield f"{name}.bias", (width_out,)


def _norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _mlp(name: str, widths: Sequence[int]) -> Shapes:
    for place, (a, b) in enumerate(itertools.pairwise(widths)):
        yield from _linear(f"{name}.{2 * place}", a, b)


def _table(name: str, places: FeaturePlaces, width: int) -> Shapes:
    if places.rows:
        yield f"{name}.table", (places.rows, width)


def _item_half(spec: ModelSpec) -> Shapes:
    places = plan_features(spec.schema.item_half_inputs, spec.embedding_width)
    yield from _table("item_half.features", places, spec.embedding_width)
    for part in ("vector", "key"):
        yield from _mlp(f"item_half.{part}", (places.width, *spec.item_hidden, spec.width))
        yield from _norm(f"item_half.{part}_norm", spec.width)


def _bridges(spec: ModelSpec) -> Shapes:
    yield "bea.bridges_ND", (spec.bridges, spec.width)
    yield from _linear("bea.user_key", spec.width, spec.width)
    yield from _norm("bea.user_norm", spec.width)
    yield from _mlp("bea.f", (spec.width, *spec.bridge_hidden, spec.bridge_width))
    if spec.bridge_width != spec.width:
        yield from _linear("bea.skip", spec.width, spec.bridge_width, bias=False)


def _behaviours(spec: ModelSpec) -> Shapes:
    width, places = spec.embedding_width, plan_features(spec.schema.of(Scope.BEHAVIOUR), spec.embedding_width)
    categories = spec.schema.item(spec.schema.sim_category).buckets if spec.schema.sim_category else 0
    tables = {"kinds": len(spec.schema.behaviour_kinds) + 1, "items": spec.item_id_buckets, "categories": categories}
    yield from _table("behaviour.features", places, width)
    yield from ((f"behaviour.{name}.weight", (rows, width)) for name, rows in tables.items() if rows)
    inputs = sum(map(bool, tables.values())) * width + places.width + spec.width
    yield from _linear("behaviour.w_seq", inputs, spec.width, bias=False)
    if spec.recency:
        yield "behaviour.w_recency_SD", (len(spec.recency), spec.width)
        yield "behaviour.recency_gate_S", (len(spec.recency),)


def _user_half(spec: ModelSpec) -> Shapes:
    places = plan_features(spec.schema.of(Scope.USER), spec.embedding_width)
    yield from _table("user_half.features", places, spec.embedding_width)
    yield from _linear("user_half.w_profile", places.width, spec.width)
    yield from _mlp("user_half.attention.ffn", (spec.width, *spec.user_hidden, spec.width))
    for place, width in enumerate(places.widths):
        yield from _linear(f"user_half.rows.{place}", width, spec.width, bias=False)
    yield "user_half.row_identity_GD", (len(places.widths) + 2, spec.width)


def _head(spec: ModelSpec) -> Shapes:
    width, (user, item) = spec.width, segment_widths(spec)
    yield from _table("head.context", plan_features(spec.schema.of(Scope.CONTEXT), spec.embedding_width), spec.embedding_width)
    yield from _table("head.realtime", plan_features(spec.schema.realtime_features, spec.embedding_width), spec.embedding_width)
    yield from _linear("head.project_user", 3 * width, width, bias=False)
    yield from _linear("head.project_bea", spec.bridge_width, width, bias=False)
    if spec.schema.multimodal:
        yield from _linear("head.project_din", width, width, bias=False)
        yield "head.din_gain", (1,)
    if spec.schema.sim_category:
        yield from _linear("head.project_sim", width, width, bias=False)
    outputs = [*spec.head_hidden, len(spec.tasks)]
    yield from _linear("head.first", sum(user.values()) + sum(item.values()), outputs[0])
    yield from _mlp("head.rest.1", outputs)


def _ranker(spec: ModelSpec) -> Shapes:
    if spec.ranker is None:
        return
    width = spec.ranker.width
    yield "ranker.items.weight", (spec.ranker.item_buckets, width)
    yield "ranker.kinds.weight", (len(spec.schema.behaviour_kinds) + 1, width)
    for name, scope in (("profile", Scope.USER), ("context", Scope.CONTEXT)):
        places = plan_features(spec.schema.of(scope), spec.embedding_width)
        yield from _table(f"ranker.{name}", places, spec.embedding_width)
        yield from _linear(f"ranker.w_{name}", places.width, width)
    yield from _linear("ranker.w_logits", len(spec.tasks), width)
    for layer in range(spec.ranker.layers):
        yield from _linear(f"ranker.layers.w_in.{layer}", width, 4 * width, bias=False)
        yield from _linear(f"ranker.layers.w_out.{layer}", width, width, bias=False)
    yield from _linear("ranker.head", width, len(spec.tasks))
