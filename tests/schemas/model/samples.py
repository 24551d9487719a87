"""Small models of every shape of feature schema, and inputs for them, for the tests of this folder."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.features import Feature, FeatureBlock, FeatureSchema, Scope, encode_features, encode_realtime
from schemas.ids import Id, IdKind, encode_index_key
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC
from schemas.model.inputs import (
    BehaviourRow,
    Behaviours,
    CandidateRows,
    FeatureTensors,
    UserInputs,
    UserStates,
    build_user_inputs,
    encode_context,
    map_tensors,
)
from schemas.model.item_network import EncodedRows
from schemas.model.lsh import encode_signatures, make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec

T = TypeVar("T")
MM_WIDTH = 12
FULL = FeatureSchema(
    features=(
        Feature("category", Scope.ITEM, CATEGORICAL, buckets=7),
        Feature("brand", Scope.ITEM, CATEGORICAL, buckets=11),
        Feature("tags", Scope.ITEM, BAG, buckets=9),
        Feature("words", Scope.ITEM, BAG, buckets=5),
        Feature("quality", Scope.ITEM, NUMERIC),
        Feature("bid", Scope.ITEM, NUMERIC, default=1.0),
        Feature("image", Scope.ITEM, EMBEDDING, width=MM_WIDTH),
        Feature("price", Scope.ITEM, NUMERIC, realtime=True),
        Feature("stock", Scope.ITEM, CATEGORICAL, buckets=5, realtime=True),
        Feature("age", Scope.USER, NUMERIC),
        Feature("city", Scope.USER, CATEGORICAL, buckets=13),
        Feature("likes", Scope.USER, BAG, buckets=9),
        Feature("facets", Scope.USER, EMBEDDING, width=3),
        Feature("dwell", Scope.BEHAVIOUR, NUMERIC),
        Feature("place", Scope.BEHAVIOUR, CATEGORICAL, buckets=4),
        Feature("hour", Scope.CONTEXT, CATEGORICAL, buckets=25),
    ),
    sim_category="category",
    bid="bid",
    multimodal="image",
    behaviour_kinds=("click", "buy"),
)
_SMALL = {"width": 8, "bridges": 3, "bridge_width": 6, "hash_bits": 16, "embedding_width": 4, "item_hidden": (10,), "head_hidden": (12, 5)}
# No width is a multiple of a vector, and most take more than one.
_UNEVEN = _SMALL | {"width": 37, "bridges": 9, "bridge_width": 5, "hash_bits": 72, "item_hidden": (11, 7), "head_hidden": (33, 7, 9)}


def without(schema: FeatureSchema, *scopes: Scope, **roles: object) -> FeatureSchema:
    """The schema without some scopes and with other roles."""
    return dataclasses.replace(schema, features=tuple(f for f in schema.features if f.scope not in scopes), **roles)


SPECS = {
    "full": ModelSpec(FULL, **_SMALL, item_id_buckets=17, attended_behaviours=4, simtier_behaviours=5, sim_behaviours=2),
    "recency": ModelSpec(FULL, **_SMALL, attended_behaviours=4, simtier_behaviours=5, sim_behaviours=2, recency=(2, 30)),
    "ranker": ModelSpec(
        FULL,
        **_SMALL,
        attended_behaviours=4,
        ranker=RankerSpec(width=16, layers=2, item_buckets=31, history_max=64, history_step=16, attention_norm=8),
    ),
    "raw_din_two_tasks": ModelSpec(FULL, **_UNEVEN, din="raw", tasks=("click", "buy"), tier_edges=(0.5,)),
    "two_tasks_by_formula": ModelSpec(FULL, **_SMALL, tasks=("click", "buy"), rank_by="click * buy^0.5 * bid"),
    "image_not_an_input": ModelSpec(dataclasses.replace(FULL, multimodal_is_input=False), **_SMALL),
    "no_multimodal": ModelSpec(without(FULL, multimodal=None), **_SMALL),
    "no_sim": ModelSpec(without(FULL, sim_category=None), **_SMALL),
    "no_bid_text_ids": ModelSpec(without(FULL, bid=None, id_kind=IdKind.TEXT), **_SMALL, rank_by="click"),
    "items_only": ModelSpec(without(FULL, Scope.USER, Scope.BEHAVIOUR, Scope.CONTEXT), **_SMALL),
    "one_feature": ModelSpec(
        FeatureSchema((Feature("quality", Scope.ITEM, NUMERIC),)), **(_SMALL | {"bridge_width": 8, "head_hidden": ()}), rank_by="click"
    ),
}


def make_network(spec: ModelSpec, seed: int = 0) -> AifNetwork:
    """An untrained network, the same for the same seed. No weight is 0: what starts at 0 would hide whatever is done with it."""
    torch.manual_seed(seed)
    network = AifNetwork(spec, make_w_hash(7, spec.hash_bits, spec.schema.mm_width) if spec.schema.multimodal else None)
    if network.ranker is not None:
        torch.nn.init.normal_(network.ranker.head.weight)
    if spec.recency:
        torch.nn.init.normal_(network.behaviour.w_recency_SD)
        torch.nn.init.normal_(network.behaviour.recency_gate_S, std=0.3)
    return network


def make_items(rows: int, seed: int = 0) -> list[dict[str, object]]:
    """Raw item features; a few values are missing."""
    rng = np.random.default_rng(seed)
    items: list[dict[str, object]] = [
        {
            "category": int(rng.integers(6)),
            "brand": f"b{rng.integers(20)}",
            "tags": [f"t{t}" for t in rng.integers(0, 30, rng.integers(0, 9))],
            "words": [int(w) for w in rng.integers(0, 30, rng.integers(0, 3))],
            "quality": float(rng.standard_normal()),
            "bid": float(rng.random() + 0.5),
            "image": rng.standard_normal(MM_WIDTH).tolist(),
            "price": float(rng.standard_normal()),
            "stock": int(rng.integers(4)),
        }
        for _ in range(rows)
    ]
    return [{k: v for k, v in item.items() if i % 5 or k in ("bid", "price")} for i, item in enumerate(items)]


def encode_items(spec: ModelSpec, items: Sequence[dict[str, object]]) -> FeatureBlock:
    """The item half's inputs."""
    return encode_features(spec.schema.item_half_inputs, items)


@torch.inference_mode()
def encode_rows(network: AifNetwork, block: FeatureBlock) -> EncodedRows:
    """Stored rows by torch's item half, the reference of `ItemNetwork`: in fp64, rounded once."""
    items = map_tensors(FeatureTensors.from_block(block), lambda t: t.double() if t.is_floating_point() else t)
    vectors_RD, bridge_RN = copy.deepcopy(network).double().item_rows(items)
    return EncodedRows(vectors_RD.half().numpy(), bridge_RN.half().numpy())


def sign_items(network: AifNetwork, items: Sequence[dict[str, object]]) -> list[bytes | None]:
    """The signature of each item, None without an embedding."""
    if network.w_hash_KM is None:
        return [None] * len(items)
    images = [item.get("image") for item in items]
    encoded = encode_signatures(np.array([i or [0.0] * MM_WIDTH for i in images]).reshape(-1, MM_WIDTH), network.w_hash_KM)
    return [row.tobytes() if image else None for row, image in zip(encoded, images, strict=True)]


def make_candidates(network: AifNetwork, items: Sequence[dict[str, object]]) -> CandidateRows:
    """The rows of these items as an index stores them, for one request."""
    spec, stored, signatures = network.spec, encode_rows(network, encode_items(network.spec, items)), sign_items(network, items)
    width = spec.signature_bytes
    packed = np.array([list(s or bytes(width)) for s in signatures], np.uint8).reshape(len(items), width)
    return CandidateRows(
        vectors_BCD=torch.from_numpy(stored.vectors_RD)[None],
        bridge_BCN=torch.from_numpy(stored.bridge_RN)[None],
        signatures_BCW=torch.from_numpy(packed)[None],
        has_signature_BC=torch.tensor([[s is not None for s in signatures]]),
        category_BC=torch.tensor([[spec.schema.category_of(i) for i in items]]),
        realtime_BCQ=torch.tensor([[encode_realtime(spec.schema, i) for i in items]], dtype=torch.float32).reshape(1, len(items), -1),
        bid_BC=torch.tensor([[spec.schema.bid_of(i) for i in items]], dtype=torch.float32),
        context=encode_context(spec, {"hour": 13}),
    )


def make_user(network: AifNetwork, history: Sequence[dict[str, object]], seed: int = 0) -> UserInputs:
    """A user whose behaviours are on these items, oldest first; every seventh item is gone from the version."""
    rng, spec = np.random.default_rng(seed), network.spec
    stored, signatures = encode_rows(network, encode_items(spec, history)), sign_items(network, history)
    behaviours = [
        BehaviourRow(
            item=j if spec.schema.id_kind is IdKind.INT64 else f"item-{j}",
            kind=("click", "buy", "look")[j % 3],
            features={"dwell": float(rng.random()), "place": j % 3},
            category=spec.schema.category_of(item) if j % 7 else 0,
            vector=stored.vectors_RD[j] if j % 7 else None,
            signature=signatures[j] if j % 7 else None,
        )
        for j, item in enumerate(history)
    ]
    profile = {"age": 0.3, "city": "rome", "likes": ["a", "b"], "facets": [0.1, -0.2, 0.9]}
    return build_user_inputs(spec, profile, behaviours)


def pad_behaviours(behaviours: Behaviours, length: int) -> Behaviours:
    """The same histories in `length` columns: masked columns added on the left."""
    missing = length - behaviours.mask_BL.shape[1]
    return map_tensors(behaviours, lambda t: F.pad(t, [0, 0] * (t.ndim - 2) + [missing, 0]))


def stack_users(users: Sequence[UserInputs]) -> UserInputs:
    """A batch from several, padded to the longest history."""
    length = max(user.behaviours.mask_BL.shape[1] for user in users)
    padded = [UserInputs(user.profile, pad_behaviours(user.behaviours, length)) for user in users]
    return cat_tensors(padded)


def cat_tensors(values: Sequence[T]) -> T:
    """Dataclasses of the same shapes, concatenated along the first dimension."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values))  # type: ignore[arg-type,return-value]
    changed = {f.name: cat_tensors([getattr(v, f.name) for v in values]) for f in dataclasses.fields(first)}  # type: ignore[arg-type]
    return dataclasses.replace(first, **changed)  # type: ignore[type-var]


@torch.inference_mode()
def rank_reference(
    network: AifNetwork, states: UserStates, rows: CandidateRows, item_ids: Sequence[Id], top_k: int
) -> list[tuple[Id, float, tuple[float, ...]]]:
    """The slow specification of call 2's answer for one user: (id, score, probabilities), score descending, then id ascending.

    Ids ascend as numbers or bytewise. `rows` are the known candidates of `item_ids` (B = 1), without duplicates.
    """
    scores_BC, probabilities_BCT = network.scores(network.joint_logits(states, rows), rows.bid_BC)
    answer = list(zip(item_ids, scores_BC[0].tolist(), map(tuple, probabilities_BCT[0].tolist()), strict=True))
    return sorted(answer, key=lambda entry: (-entry[1], encode_index_key(entry[0])))[:top_k]
