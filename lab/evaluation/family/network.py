"""The network of a variant: the halves of the served network, without the parts that the variant lacks, and the head that the variant names.

Invariant: a variant in the served form is the served network itself (schemas/model/network.py), so the network that is measured as AIF also serves requests.

Arrays: B users, C candidates, L behaviours, R rows, D width, T tasks.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

from lab.evaluation.family.head import FamilyHead, FamilyStates
from lab.evaluation.family.variant import Variant
from schemas.features import FeatureSchema, Scope
from schemas.model.inputs import CandidateRows, FeatureTensors, UserInputs
from schemas.model.item_half import start_categories
from schemas.model.network import AifNetwork
from schemas.model.sim_hard import build_sim_table
from schemas.model.spec import ModelSpec

RECENT = 20  # latest behaviours that a model without asynchronous inference averages instead of attention over its sequence


def variant_spec(variant: Variant, spec: ModelSpec, cheap: frozenset[str]) -> ModelSpec:
    """The family's spec with the variant's sizes. Without the part `async` it has only the item and user features named in `cheap`."""
    schema = spec.schema if variant.has("async") else keep_features(spec.schema, cheap)
    return dataclasses.replace(spec, schema=schema, **dict(variant.sizes))


def keep_features(schema: FeatureSchema, names: frozenset[str]) -> FeatureSchema:
    """The schema with only those item and user features; features with a role (bid, SIM category, multimodal) are always kept."""
    kept = names | {schema.sim_category, schema.bid, schema.multimodal}
    features = tuple(f for f in schema.features if f.scope not in (Scope.ITEM, Scope.USER) or f.name in kept)
    return dataclasses.replace(schema, features=features)


def build_network(variant: Variant, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> AifNetwork:
    """A new network with random weights; `spec` is the variant's own (`variant_spec`), `w_hash_KM` float32 [K, mm_width] or None."""
    network = AifNetwork(spec, w_hash_KM) if variant.is_served else FamilyNetwork(variant, spec, w_hash_KM)
    start_categories(network.item_half)
    return network


class FamilyNetwork(AifNetwork):
    """A network that reads training sets `with_codes`. Parts that the variant lacks have no parameters: they are None here, and in no other network, so
    AifNetwork's types do not allow for it."""

    def __init__(self, variant: Variant, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> None:
        super().__init__(spec, w_hash_KM)
        self.variant = variant
        self.head = FamilyHead(variant, spec, (3 if variant.has("async") else 2) * spec.width)  # type: ignore[assignment]
        if not variant.has("bea"):
            self.bea = None  # type: ignore[assignment]
            self.user_half.rows, self.user_half.row_identity_GD = nn.ModuleList(), None  # type: ignore[assignment]
        if not variant.has("async"):
            self.user_half.attention = None  # type: ignore[assignment]

    def item_rows(self, items: FeatureTensors) -> tuple[Tensor, Tensor]:
        """(vectors_RD, what the cross needs): bridge weights, the bridge key itself for Full-Cross, nothing [R, 0] without BEA."""
        vectors_RD, keys_RD = self.item_half(items)
        if not self.variant.has("bea"):
            return vectors_RD, keys_RD[:, :0]
        return vectors_RD, keys_RD if self.variant.cross == "full" else self.bea.item_weights(keys_RD)

    def user_states(self, users: UserInputs) -> FamilyStates:  # type: ignore[override]
        """Everything that is computed before the candidates are known. Without `async`, a user is the profile and the mean of the latest behaviours."""
        behaviours, spec = users.behaviours, self.spec
        projected_BLD = self.behaviour(behaviours)
        profile_BF = self.user_half.features(users.profile)
        profile_BD = self.user_half.w_profile(profile_BF)
        seen = slice(-spec.attended_behaviours, None)
        attended = self._attended(profile_BD, projected_BLD[:, seen], behaviours.mask_BL[:, seen])
        return FamilyStates(
            user_BU=torch.cat([profile_BD, *attended], dim=-1),
            rows_BGD=self._rows(profile_BF, attended),
            projected_BLD=projected_BLD,
            codes_BLX=behaviours.signatures_BLW,
            has_code_BL=behaviours.has_signature_BL,
            mask_BL=behaviours.mask_BL,
            sim=build_sim_table(projected_BLD, behaviours.category_BL, behaviours.mask_BL, spec.sim_behaviours),
        )

    def _attended(self, profile_BD: Tensor, projected_BLD: Tensor, mask_BL: Tensor) -> list[Tensor]:
        """The vectors of Eq. 2 and Eq. 3, [B, D] each; without `async` the mean of the latest behaviours."""
        if self.user_half.attention is not None:
            return list(self.user_half.attention(profile_BD, projected_BLD, mask_BL))
        recent_BL = mask_BL[:, -RECENT:]
        return [(projected_BLD[:, -RECENT:] * recent_BL[..., None]).sum(dim=1) / recent_BL.sum(dim=1, keepdim=True).clamp(min=1)]

    def _rows(self, profile_BF: Tensor, attended: list[Tensor]) -> Tensor:
        """U of Algorithm 1, [B, m, D]: one row per user feature, and one per attended vector; [B, 0, D] without BEA."""
        half = self.user_half
        if half.row_identity_GD is None:
            return profile_BF.new_zeros(len(profile_BF), 0, self.spec.width)
        pieces = profile_BF.split(half.features.widths, dim=-1) if half.features.widths else ()
        rows_BGD = torch.stack([*(linear(p) for linear, p in zip(half.rows, pieces, strict=True)), *attended], dim=1)
        return rows_BGD + half.row_identity_GD[: rows_BGD.shape[1]]

    def joint_logits(self, states: FamilyStates, candidates: CandidateRows) -> Tensor:  # type: ignore[override]
        """Logits [B, C, T]."""
        return torch.as_tensor(self.head(states, candidates, self.bea))
