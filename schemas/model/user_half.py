"""The user half: everything about a user that does not depend on the candidates (Eq. 1-3), computed in call 1.

Nothing here reads the request's time or context.

Arrays: B users, L behaviours (right-aligned, masked), D width, m rows of U (G), S scales of recency.
Source: AIF, eq. (1)-(3). Differs: the projection of the profile has a bias; in eq. (2) the projected sequence is added to what the FFN gives, past attention
and FFN; pooling is the masked mean; both attentions see the latest `attended_behaviours` only; eq. (1) reads recency too where the spec has it.
"""

import torch
from torch import Tensor, nn

from schemas.features import Scope
from schemas.model.behaviour_codes import encode_recency
from schemas.model.embeddings import FeatureEmbedding, build_mlp, normal_parameter, normal_table
from schemas.model.inputs import Behaviours, FeatureTensors
from schemas.model.spec import ModelSpec

MASKED = -1e9  # its softmax weight is exactly 0 next to any real score; finite, so that a user without behaviours gives no NaN


class BehaviourProjection(nn.Module):
    """Eq. 1, second line: [kind; item id bucket; SIM category; behaviour features; async vector of the item] times W_seq. The paper does not say what its
    U_seq is made of; a table that the spec does not have is left out.

    With `spec.recency`, W_seq also reads [recency] (its columns for that are `w_recency_SD`), and the whole is multiplied by a gate,
    exp(recency . recency_gate_S). Both start at 0, so that a model with them starts as the one without. `width` counts all inputs.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.embedding_width
        self.features = FeatureEmbedding(spec.schema.of(Scope.BEHAVIOUR), width)
        self.kinds = normal_table(len(spec.schema.behaviour_kinds) + 1, width)
        self.items = normal_table(spec.item_id_buckets, width) if spec.item_id_buckets else None
        categories = spec.schema.item(spec.schema.sim_category).buckets if spec.schema.sim_category else 0
        self.categories = normal_table(categories, width) if categories else None
        tables = 1 + (self.items is not None) + (self.categories is not None)
        self.width = tables * width + self.features.width + spec.width
        self.w_seq = nn.Linear(self.width, spec.width, bias=False)
        self.spec = spec
        if spec.recency:  # not columns of `w_seq` itself, so that a checkpoint without recency keeps its shapes
            self.width += len(spec.recency)
            self.w_recency_SD = nn.Parameter(torch.zeros(len(spec.recency), spec.width))
            self.recency_gate_S = nn.Parameter(torch.zeros(len(spec.recency)))

    def forward(self, behaviours: Behaviours) -> Tensor:
        """[B, L, D]; zeros where masked."""
        parts = [self.kinds(behaviours.kind_BL)]
        if self.items is not None:
            parts.append(self.items(behaviours.item_bucket_BL))
        if self.categories is not None:
            parts.append(self.categories(behaviours.category_BL))
        parts += [self.features(behaviours.features), behaviours.vectors_BLD.float()]
        projected_BLD = self.w_seq(torch.cat(parts, dim=-1))
        if self.spec.recency:
            recency_LS = torch.from_numpy(encode_recency(self.spec, behaviours.mask_BL.shape[1])).to(self.w_recency_SD)
            projected_BLD = (projected_BLD + recency_LS @ self.w_recency_SD) * torch.exp(recency_LS @ self.recency_gate_S)[:, None]
        return torch.as_tensor(projected_BLD * behaviours.mask_BL[..., None])


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension with weight 0 where `mask` (broadcast) is false; all zeros if it is false everywhere."""
    return torch.softmax(scores.masked_fill(~mask, MASKED), dim=-1) * mask


class UserAttention(nn.Module):
    """Eq. 2 and 3 over the projected behaviours and the projected profile."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.ffn = build_mlp(spec.width, spec.user_hidden, spec.width)

    def forward(self, profile_BD: Tensor, projected_BLD: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """(self_attention_BD, profile_attention_BD); zeros for a user without behaviours."""
        return self.self_attention(projected_BLD, mask_BL), profile_attention(profile_BD, projected_BLD, mask_BL)

    def self_attention(self, projected_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """Eq. 2 with the sum past it: Pooling(FFN(Softmax(U U^T / sqrt(d)) U) + U)."""
        scores_BLL = projected_BLD @ projected_BLD.transpose(1, 2) / projected_BLD.shape[-1] ** 0.5
        attended_BLD = masked_softmax(scores_BLL, mask_BL[:, None, :]) @ projected_BLD
        mixed_BLD = (self.ffn(attended_BLD) + projected_BLD) * mask_BL[..., None]
        return torch.as_tensor(mixed_BLD.sum(dim=1) / mask_BL.sum(dim=1, keepdim=True).clamp(min=1))


def profile_attention(profile_BD: Tensor, projected_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Eq. 3: Softmax(P U^T / sqrt(d)) U, one query per user."""
    scores_BL = (projected_BLD @ profile_BD[..., None]).squeeze(-1) / projected_BLD.shape[-1] ** 0.5
    return (masked_softmax(scores_BL, mask_BL)[:, None, :] @ projected_BLD).squeeze(1)


class UserHalf(nn.Module):
    """Eq. 1-3, and the m rows U of Algorithm 1: one per user feature, one for Eq. 2, one for Eq. 3."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.features = FeatureEmbedding(spec.schema.of(Scope.USER), spec.embedding_width)
        self.w_profile = nn.Linear(self.features.width, spec.width)
        self.attention = UserAttention(spec)
        self.rows = nn.ModuleList(nn.Linear(width, spec.width, bias=False) for width in self.features.widths)
        self.row_identity_GD = normal_parameter(len(self.features.widths) + 2, spec.width, std=1.0)

    def forward(self, profile: FeatureTensors, projected_BLD: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """(user_BU = [profile; Eq. 2; Eq. 3] [B, 3 D], rows_BGD = U of Algorithm 1)."""
        features_BF = self.features(profile)
        profile_BD = self.w_profile(features_BF)
        attended = self.attention(profile_BD, projected_BLD, mask_BL)
        pieces = features_BF.split(self.features.widths, dim=-1) if self.features.widths else ()
        rows = [linear(piece) for linear, piece in zip(self.rows, pieces, strict=True)]
        return torch.cat([profile_BD, *attended], dim=-1), torch.stack([*rows, *attended], dim=1) + self.row_identity_GD
