"""The head of the family: the fields of a (user, item) pair that a variant has, and the trunk that reads them.

A variant in the served form does not use this head: it is the served network itself. COLD, the paper's baseline, weighs the fields by
squeeze-and-excitation and passes them through seven layers. It is sequential: at ranking time every pair passes through all of it. Differs from COLD: the
gate is twice a sigmoid, so that fields are unchanged at the start of a training. The layers start with He's variance: with torch's default, a signal loses
five sixths of its variance in each layer, and seven layers learn late. A linear map from the fields to the logits is added to the layers; without it, a
short training does not find the products of user and item.

Arrays: B users, C candidates, L behaviours, D width, P bridge width, G rows of U, X code width or the sum of fields' widths, F fields,
T tasks.
Source: COLD (arXiv 2007.16122), sections 3.1 and 3.3; squeeze-and-excitation (arXiv 1709.01507).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lab.evaluation.family.codes import factored_din, moment_tier_features, similarity_edges, tier_features
from lab.evaluation.family.variant import Variant
from schemas.features import Scope
from schemas.model.bea import BridgeEmbedding, join_bridges, project_bridges
from schemas.model.embeddings import FeatureEmbedding, build_mlp
from schemas.model.head import DIN_GAIN, RealtimeFeatures, multiply_by_item
from schemas.model.inputs import CandidateRows
from schemas.model.sim_hard import SimTable, look_up_sim
from schemas.model.spec import ModelSpec
from schemas.model.user_half import masked_softmax

LAYERS = 7
HIDDEN = (128, 96, 64, 64, 32, 32)

assert len(HIDDEN) + 1 == LAYERS


class FieldGate(nn.Module):
    """Squeeze-and-excitation: the weight of a field is twice a sigmoid of a linear map of the means of all fields."""

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.excite = nn.Linear(fields, fields)

    def forward(self, fields: Sequence[Tensor]) -> list[Tensor]:
        """The fields [B, C, width of the field], each multiplied by its weight for the pair."""
        squeezed_BCF = torch.stack([field.mean(dim=-1) for field in fields], dim=-1)
        weights_BCF = 2 * torch.sigmoid(self.excite(squeezed_BCF))
        return [field * weights_BCF[..., f : f + 1] for f, field in enumerate(fields)]


class ColdTrunk(nn.Module):
    """Fields to logits. `widths` are those of the fields in order; `hidden_scale` multiplies the widths of the hidden layers."""

    def __init__(self, widths: Sequence[int], tasks: int, hidden_scale: float = 1.0) -> None:
        super().__init__()
        self.gate = FieldGate(len(widths))
        self.layers = build_mlp(sum(widths), [round(hidden_scale * width) for width in HIDDEN], tasks)
        for layer in self.layers[:-1]:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        self.wide = nn.Linear(sum(widths), tasks, bias=False)

    def forward(self, fields: Sequence[Tensor]) -> Tensor:
        """Logits [B, C, T]."""
        gated_BCX = torch.cat(self.gate(fields), dim=-1)
        return torch.as_tensor(self.layers(gated_BCX) + self.wide(gated_BCX))


@dataclass(frozen=True, slots=True)
class FamilyStates:
    """The arrays of B users that are computed before the candidates are known: user_BU, the head's user segment; rows_BGD, U of Algorithm 1; the projected
    behaviours with their codes (codes.py), whether each has one, and which places hold a behaviour; the sub-sequences of SIM-hard."""

    user_BU: Tensor
    rows_BGD: Tensor
    projected_BLD: Tensor
    codes_BLX: Tensor
    has_code_BL: Tensor
    mask_BL: Tensor
    sim: SimTable


def cross_fully(bea: BridgeEmbedding, keys_BCD: Tensor, rows_BGD: Tensor) -> Tensor:
    """Full-Cross (section 5.2.2): Algorithm 1 with the candidates as bridges, f(softmax(I U^T / sqrt(d)) U), [B, C, P]."""
    user_keys_BGD = bea.user_norm(bea.user_key(rows_BGD))
    attention_BCG = torch.softmax(keys_BCD @ user_keys_BGD.transpose(1, 2) / user_keys_BGD.shape[-1] ** 0.5, dim=-1)
    pooled_BCD = attention_BCG @ rows_BGD
    return torch.as_tensor(bea.f(pooled_BCD) + bea.skip(pooled_BCD))


class FamilyHead(nn.Module):
    """Fields, then the trunk: COLD's, or the layers of the served head, without the split of the first one. `widths` names the fields in order."""

    def __init__(self, variant: Variant, spec: ModelSpec, user_width: int) -> None:
        super().__init__()
        self.variant, self.spec = variant, spec
        width = spec.width
        self.context = FeatureEmbedding(spec.schema.of(Scope.CONTEXT), spec.embedding_width)
        self.realtime = RealtimeFeatures(spec.schema.realtime_features, spec.embedding_width)
        projections = {"user": user_width}
        self.widths = {"user": user_width, "context": self.context.width, "item": width, "user_x": width + 1}
        if variant.has("bea"):
            projections["bea"] = spec.bridge_width
            self.widths |= {"bea": spec.bridge_width, "bea_x": width + 1}
        if variant.has("long_term"):
            projections["din"] = width
            self.din_gain = nn.Parameter(torch.full((1,), DIN_GAIN))
            self.query = nn.Linear(width, width, bias=False) if variant.din == "id" else None
            self.widths |= {"din": width, "din_x": width + 1, "tiers": 2 * spec.tiers}
        if variant.has("sim"):
            projections["sim"] = width
            self.widths |= {"sim": width + 1, "sim_x": width + 1}
        if self.realtime.width:
            self.widths |= {"realtime": self.realtime.width}
        self.project = nn.ModuleDict(
            {name: project_bridges(of, width) if name == "bea" else nn.Linear(of, width, bias=False) for name, of in projections.items()}
        )
        widths, tasks, scale = list(self.widths.values()), len(spec.tasks), variant.hidden_scale
        self.trunk: nn.Module = (
            ColdTrunk(widths, tasks, scale)
            if variant.trunk == "cold"
            else build_mlp(sum(widths), [round(scale * hidden) for hidden in spec.head_hidden], tasks)
        )

    def forward(self, states: FamilyStates, rows: CandidateRows, bea: BridgeEmbedding | None) -> Tensor:
        """Logits [B, C, T]. `rows.bridge_BCN` holds what the variant's cross needs of an item (network.py)."""
        named = self.fields(states, rows, bea)
        fields = [named[name] for name in self.widths]
        return torch.as_tensor(self.trunk(fields if self.variant.trunk == "cold" else torch.cat(fields, dim=-1)))

    def fields(self, states: FamilyStates, rows: CandidateRows, bea: BridgeEmbedding | None) -> Mapping[str, Tensor]:
        """Every field [B, C, width] by name."""
        items_BCD = rows.vectors_BCD
        candidates = items_BCD.shape[1]
        user_BCU = states.user_BU[:, None, :].expand(-1, candidates, -1)
        fields = {"user": user_BCU, "context": self.context(rows.context)[:, None, :].expand(-1, candidates, -1), "item": items_BCD}
        crossed = {"user": user_BCU}
        if bea is not None:
            crossed["bea"] = fields["bea"] = self._bea(states, rows, bea)
        if self.variant.has("long_term"):
            codes_BCX, has_BC1 = rows.signatures_BCW, rows.has_signature_BC[..., None]
            crossed["din"] = fields["din"] = self._din(states, codes_BCX, items_BCD) * (self.din_gain * has_BC1)
            fields["tiers"] = self._tiers(states, codes_BCX) * has_BC1
        if self.variant.has("sim"):
            crossed["sim"], log_counts_BC1 = look_up_sim(states.sim, rows.category_BC)
            fields["sim"] = torch.cat([crossed["sim"], log_counts_BC1], dim=-1)
        fields |= {f"{name}_x": multiply_by_item(self.project[name](of), items_BCD) for name, of in crossed.items()}
        return fields | {"realtime": self.realtime(rows.realtime_BCQ)}

    def _bea(self, states: FamilyStates, rows: CandidateRows, bea: BridgeEmbedding) -> Tensor:
        """Algorithm 1 with bridges, or with the candidates themselves as bridges: [B, C, P]."""
        if self.variant.cross == "bridges":
            return join_bridges(rows.bridge_BCN, bea.user_vectors(states.rows_BGD))
        return cross_fully(bea, rows.bridge_BCN, states.rows_BGD)

    def _code(self, kind: str, codes: Tensor) -> Tensor:
        """The part of the codes [..., K + M + P + 1] that a kind of similarity is measured on."""
        bits, both = self.spec.hash_bits, self.spec.hash_bits + self.spec.schema.mm_width
        return codes[..., {"lsh": slice(bits), "mm": slice(bits, both), "clusters": slice(both, None)}[kind]]

    def _din(self, states: FamilyStates, codes_BCX: Tensor, items_BCD: Tensor) -> Tensor:
        if self.query is not None:
            scores_BCL = self.query(items_BCD) @ states.projected_BLD.transpose(1, 2) / items_BCD.shape[-1] ** 0.5
            return masked_softmax(scores_BCL, states.mask_BL[:, None, :]) @ states.projected_BLD
        kind = self.variant.din
        return factored_din(self._code(kind, codes_BCX), self._code(kind, states.codes_BLX), states.projected_BLD, states.has_code_BL)

    def _tiers(self, states: FamilyStates, codes_BCX: Tensor) -> Tensor:
        kind = self.variant.tiers
        latest = slice(-self.spec.simtier_behaviours, None)
        ours, theirs, has_BS = self._code(kind, codes_BCX), self._code(kind, states.codes_BLX)[:, latest], states.has_code_BL[:, latest]
        edges_N = similarity_edges(self.spec.tier_edges, kind)
        if kind == "clusters":
            return moment_tier_features(ours, theirs, has_BS, edges_N)
        return tier_features(ours @ theirs.transpose(1, 2), has_BS, edges_N)
