"""The network's inputs, and the state between its two calls, as tensors with documented shapes.

The same `CandidateRows` are built by training (from `item_rows`, with gradient), by serving (from index rows as stored, fp16) and by the audit that
recomputes answers.

Behaviours are oldest first and RIGHT-aligned: padding (mask false) is on the left, so "the latest n" are the last n columns. L >= 1.

Arrays: B users, L behaviours, C candidates, R rows, D width, P bridge width, N bridges, K bits, W signature bytes, S SimTier behaviours,
G categories of a user, Q realtime features.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from schemas.features import FeatureBlock, Scope, encode_features
from schemas.ids import Id
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.model.din import DinSums
from schemas.model.sim_hard import SimTable
from schemas.model.spec import ModelSpec

T = TypeVar("T")


def map_tensors(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """The same dataclass with `function` applied to every tensor in it (to a device, or one user of a batch)."""
    if isinstance(value, Tensor):
        return function(value)  # type: ignore[return-value] # here T is Tensor
    # Anything else is a dataclass; a bound of T cannot allow both.
    changed = {f.name: map_tensors(getattr(value, f.name), function) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    return dataclasses.replace(value, **changed)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class FeatureTensors:
    """A FeatureBlock as tensors.

    categorical int64 [..., C], numeric float32 [..., N], bags int64 [..., B, V], embeddings float32 [..., E].
    """

    categorical: Tensor
    numeric: Tensor
    bags: Tensor
    embeddings: Tensor

    @staticmethod
    def from_block(block: FeatureBlock) -> "FeatureTensors":
        """[R, ...]; shares memory with the block."""
        arrays = (block.categorical_RC, block.numeric_RN, block.bags_RBV, block.embeddings_RE)
        return FeatureTensors(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays))


@dataclass(frozen=True, slots=True)
class Behaviours:
    """Histories of B users, right-aligned.

    item_bucket_BL int64, 1.. (zeros if spec.item_id_buckets is 0); kind_BL int64, 0 = other; features [B, L, ...] of scope behaviour;
    category_BL int64 SIM category, vectors_BLD async vector, signatures_BLW uint8 packed: of the item's row in the version, zeros if it is
    gone; has_signature_BL bool (false where masked); mask_BL bool, true = a behaviour.
    """

    item_bucket_BL: Tensor
    kind_BL: Tensor
    features: FeatureTensors
    category_BL: Tensor
    vectors_BLD: Tensor
    signatures_BLW: Tensor
    has_signature_BL: Tensor
    mask_BL: Tensor


@dataclass(frozen=True, slots=True)
class UserInputs:
    """profile [B, ...] (features of scope user) and behaviours."""

    profile: FeatureTensors
    behaviours: Behaviours


@dataclass(frozen=True, slots=True)
class UserStates:
    """Call 1's result, all that call 2 needs of B users.

    user_BU [B, 3 D] = [profile; Eq. 2; Eq. 3]; bridges_BNP = V of Algorithm 1; din; simtier_BSW uint8 packed signatures of the latest
    behaviours with simtier_mask_BS; sim.
    """

    user_BU: Tensor
    bridges_BNP: Tensor
    din: DinSums
    simtier_BSW: Tensor
    simtier_mask_BS: Tensor
    sim: SimTable


def without_long(states: UserStates) -> UserStates:
    """The same users as if no behaviour had a signature: without the long history, which is DIN and SimTier."""
    return dataclasses.replace(
        states, din=map_tensors(states.din, torch.zeros_like), simtier_mask_BS=torch.zeros_like(states.simtier_mask_BS)
    )


@dataclass(frozen=True, slots=True)
class CandidateRows:
    """Item rows of C candidates for each of B requests, and the requests' context.

    vectors_BCD, bridge_BCN fp16 or fp32; signatures_BCW uint8; has_signature_BC bool; category_BC int64; realtime_BCQ float32 (numbers
    scaled, categoricals as buckets, as `encode_realtime` makes them); bid_BC float32; context [B, ...] features of scope context.
    """

    vectors_BCD: Tensor
    bridge_BCN: Tensor
    signatures_BCW: Tensor
    has_signature_BC: Tensor
    category_BC: Tensor
    realtime_BCQ: Tensor
    bid_BC: Tensor
    context: FeatureTensors


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """One behaviour joined with its item's row in the version; `vector` None if the row is gone, `signature` None if it has none."""

    item: Id
    kind: str
    features: Mapping[str, Any]
    category: int = 0
    vector: np.ndarray | None = None
    signature: bytes | None = None


def encode_context(spec: ModelSpec, context: Mapping[str, Any]) -> FeatureTensors:
    """One request's context: [1, ...]."""
    return FeatureTensors.from_block(encode_features(spec.schema.of(Scope.CONTEXT), [context]))


def build_user_inputs(spec: ModelSpec, profile: Mapping[str, Any], behaviours: Sequence[BehaviourRow]) -> UserInputs:
    """One user (B = 1) from plain values; behaviours oldest first. No behaviours: one masked column."""
    rows = len(behaviours)
    vectors_LD = np.zeros((max(rows, 1), spec.width), np.float32)
    signatures_LW = np.zeros((max(rows, 1), spec.signature_bytes), np.uint8)
    has_L, buckets_L, kind_L, category_L = (np.zeros(max(rows, 1), dtype) for dtype in (bool, np.int64, np.int64, np.int64))
    buckets_L[:rows] = encode_item_buckets(spec, [row.item for row in behaviours])
    for j, row in enumerate(behaviours):
        kind_L[j], category_L[j] = encode_kind(spec, row.kind), row.category
        if row.vector is not None:
            vectors_LD[j] = row.vector
        if row.signature is not None and spec.signature_bytes:
            signatures_LW[j], has_L[j] = np.frombuffer(row.signature, np.uint8), True
    features = encode_features(spec.schema.of(Scope.BEHAVIOUR), [row.features for row in behaviours] or [{}])
    arrays = (category_L, vectors_LD, signatures_LW, has_L, np.arange(max(rows, 1)) < rows)
    head = (torch.from_numpy(buckets_L)[None], torch.from_numpy(kind_L)[None])
    block = map_tensors(FeatureTensors.from_block(features), lambda t: t[None])
    history = Behaviours(*head, block, *(torch.from_numpy(a)[None] for a in arrays))
    return UserInputs(FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [profile])), history)


def candidate_rows(spec: ModelSpec, rows_C: np.ndarray, context: Mapping[str, Any]) -> CandidateRows:
    """Structured rows as the head takes them (B = 1)."""
    count = len(rows_C)

    def column(name: str, width: int) -> torch.Tensor:
        values = rows_C[name].reshape(count, width) if width else np.zeros((count, 0), np.float32)
        return torch.from_numpy(values.copy())[None]

    return CandidateRows(
        vectors_BCD=column("vector", spec.width),
        bridge_BCN=column("bridge", spec.bridges),
        signatures_BCW=column("signature", spec.signature_bytes).to(torch.uint8),
        has_signature_BC=torch.from_numpy(rows_C["has_signature"] != 0)[None],
        category_BC=torch.from_numpy(rows_C["category"].astype(np.int64))[None],
        realtime_BCQ=column("realtime", len(spec.schema.realtime_features)),
        bid_BC=torch.from_numpy(rows_C["bid"].copy())[None],
        context=encode_context(spec, context),
    )


def behaviour_row(spec: ModelSpec, item: Id, kind: str, features: Mapping[str, Any], row: np.ndarray | None) -> BehaviourRow:
    """A behaviour with its item's row (a 0-d structured array); None: the item is gone from the version."""
    if row is None:
        return BehaviourRow(item, kind, features)
    signature = row["signature"].tobytes() if spec.signature_bytes and row["has_signature"] else None
    vector = np.atleast_1d(row["vector"]).astype(np.float32)
    return BehaviourRow(item, kind, features, int(row["category"]), vector, signature)
