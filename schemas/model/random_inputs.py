"""Inputs drawn for any schema: items, users with a short history, candidates, for runs whose result alone matters.

Without a generator everything is zero or missing.
Arrays: B users, L behaviours, C candidates, R rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from schemas.features import Feature, FeatureBlock, Scope, encode_features
from schemas.model.inputs import Behaviours, CandidateRows, FeatureTensors, UserInputs, map_tensors
from schemas.model.item_network import EncodedRows
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec

USERS, LENGTH, CANDIDATES = 2, 5, 4
SEED = 0


def draw_block(features: Sequence[Feature], rows: int, rng: np.random.Generator | None) -> FeatureBlock:
    """R rows of features: defaults (everything missing) without a generator, else random values of every feature."""
    records = [{} if rng is None else {f.name: f.kind.draw(f, rng) for f in features} for _ in range(rows)]
    return encode_features(features, records)


def draw_users(spec: ModelSpec, stored: EncodedRows, rng: np.random.Generator | None) -> UserInputs:
    """Users with a short history of items whose rows are `stored`."""
    shape = (USERS, LENGTH)
    features = FeatureTensors.from_block(draw_block(spec.schema.of(Scope.BEHAVIOUR), USERS * LENGTH, rng))
    history = Behaviours(
        item_bucket_BL=_integers(rng, spec.item_id_buckets, shape),
        kind_BL=_integers(rng, len(spec.schema.behaviour_kinds) + 1, shape),
        features=map_tensors(features, lambda t: t.reshape(*shape, *t.shape[1:])),
        category_BL=_integers(rng, 2 if spec.schema.sim_category else 0, shape),
        vectors_BLD=torch.from_numpy(stored.vectors_RD[:1]).expand(*shape, spec.width),
        signatures_BLW=_signatures(spec, rng, shape),
        has_signature_BL=torch.full(shape, rng is not None),
        mask_BL=torch.full(shape, rng is not None),
    )
    return UserInputs(FeatureTensors.from_block(draw_block(spec.schema.of(Scope.USER), USERS, rng)), history)


def draw_candidates(spec: ModelSpec, stored: EncodedRows, rng: np.random.Generator | None) -> CandidateRows:
    """Candidates whose rows are `stored` (USERS x CANDIDATES of them)."""
    shape = (USERS, CANDIDATES)
    return CandidateRows(
        vectors_BCD=torch.from_numpy(stored.vectors_RD).reshape(*shape, -1),
        bridge_BCN=torch.from_numpy(stored.bridge_RN).reshape(*shape, -1),
        signatures_BCW=_signatures(spec, rng, shape),
        has_signature_BC=torch.full(shape, rng is not None),
        category_BC=_integers(rng, 2 if spec.schema.sim_category else 0, shape),
        realtime_BCQ=torch.zeros(*shape, len(spec.schema.realtime_features)),
        bid_BC=torch.ones(shape),
        context=FeatureTensors.from_block(draw_block(spec.schema.of(Scope.CONTEXT), USERS, rng)),
    )


def draw_ranker_items(spec: RankerSpec, rng: np.random.Generator | None) -> tuple[Tensor, Tensor]:
    """Rows of the ranker's item table: of a history [B, L] and of candidates [B, C]."""
    return _integers(rng, spec.item_buckets, (USERS, LENGTH)), _integers(rng, spec.item_buckets, (USERS, CANDIDATES))


def _integers(rng: np.random.Generator | None, below: int, shape: tuple[int, int]) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64) if rng is None or not below else torch.from_numpy(rng.integers(0, below, shape))


def _signatures(spec: ModelSpec, rng: np.random.Generator | None, shape: tuple[int, int]) -> Tensor:
    drawn = (
        np.zeros((*shape, spec.signature_bytes), np.uint8)
        if rng is None
        else rng.integers(0, 256, (*shape, spec.signature_bytes), np.uint8)
    )
    return torch.from_numpy(drawn)
