"""The head: from one user's state and C candidates to logits (call 2).

Segments, in order (the user and context segments are the same for all candidates of a request):

    user     [profile; Eq. 2; Eq. 3]               context   request features
    item     async vector I                        user_x    (P_u u) * I and its sum
    bea      v of Algorithm 1                      bea_x     (P_b v) * I and its sum
    din      Eq. 8, times a gain                   din_x     (P_d din) * I and its sum      (with a multimodal embedding only)
    tiers    Eq. 9                                                                          (with a multimodal embedding only)
    sim      mean of sub-sequence, log1p(count)    sim_x     (P_s mean) * I and its sum     (with a SIM category only)
    realtime raw numbers and embedded categoricals of the item's row

The products are needed for learning: ReLU units over concatenated vectors hardly learn inner products by themselves.
The projections P are on the user's side, so that they can be folded into the user's state.

Arrays: B users, C candidates, D width, P bridge width, K bits, S behaviours of SimTier, N bridges (`bridge_`) or tiers (`counts_`), X input width,
H first hidden width, Q realtime features, T tasks.
Source: AIF, sections 3.1, 3.3 and 4, which name these inputs. Differs: the paper does not describe its head; segments, products and layers are ours.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.features import Feature, Scope
from schemas.kinds import Layout
from schemas.model.bea import join_bridges, project_bridges
from schemas.model.din import din_from_sums
from schemas.model.embeddings import FeatureEmbedding, build_mlp, normal_parameter
from schemas.model.feature_places import VALUE_ABS_MAX
from schemas.model.inputs import CandidateRows, FeatureTensors, UserStates
from schemas.model.parameters import segment_widths
from schemas.model.sim_hard import look_up_sim
from schemas.model.simtier import decode_signs, simtier_counts, simtier_features
from schemas.model.spec import ModelSpec

DIN_GAIN = 4.0  # centred similarities are small; with this gain DIN starts at the size of the other segments


class RealtimeFeatures(nn.Module):
    """The row's `realtime` column [..., Q] to [..., width]: numbers unchanged, buckets through a table."""

    def __init__(self, features: Sequence[Feature], embedding_width: int) -> None:
        super().__init__()
        self._numeric = [i for i, f in enumerate(features) if f.layout is Layout.NUMBER]
        self._categorical = [i for i, f in enumerate(features) if f.layout is Layout.BUCKET]
        buckets = [features[i].buckets for i in self._categorical]
        self._starts = [sum(buckets[:i]) for i in range(len(buckets))]
        self.table = normal_parameter(sum(buckets), embedding_width) if buckets else None
        self.width = len(self._numeric) + len(buckets) * embedding_width

    def forward(self, realtime_BCQ: Tensor) -> Tensor:
        """[..., width]; width may be 0."""
        numbers = realtime_BCQ[..., self._numeric].clamp(-VALUE_ABS_MAX, VALUE_ABS_MAX)
        if self.table is None:
            return numbers
        rows = realtime_BCQ[..., self._categorical].long() + torch.tensor(self._starts, device=realtime_BCQ.device)
        return torch.cat([numbers, F.embedding(rows, self.table).flatten(-2)], dim=-1)


def multiply_by_item(projected: Tensor, items_BCD: Tensor) -> Tensor:
    """A product segment: [B, C, D + 1] = projected * I, and its sum over sqrt(D)."""
    product_BCD = projected * items_BCD
    return torch.cat([product_BCD, product_BCD.sum(dim=-1, keepdim=True) / items_BCD.shape[-1] ** 0.5], dim=-1)


class Head(nn.Module):
    """[segments] -> hidden layers -> logits. `user_segments` and `item_segments` name the segments and their widths, in input order."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self.context = FeatureEmbedding(spec.schema.of(Scope.CONTEXT), spec.embedding_width)
        self.realtime = RealtimeFeatures(spec.schema.realtime_features, spec.embedding_width)
        self.project_user = nn.Linear(3 * width, width, bias=False)
        self.project_bea = project_bridges(spec.bridge_width, width)
        self.user_segments, self.item_segments = segment_widths(spec)
        if spec.schema.multimodal:
            self.project_din = nn.Linear(width, width, bias=False)
            self.din_gain = nn.Parameter(torch.full((1,), DIN_GAIN))
        if spec.schema.sim_category:
            self.project_sim = nn.Linear(width, width, bias=False)
        self.user_width = sum(self.user_segments.values())
        outputs = [*spec.head_hidden, len(spec.tasks)]
        self.first = nn.Linear(self.user_width + sum(self.item_segments.values()), outputs[0])
        self.rest = nn.Sequential(nn.ReLU(), build_mlp(outputs[0], outputs[1:-1], outputs[-1])) if len(outputs) > 1 else nn.Identity()

    def forward(self, states: UserStates, rows: CandidateRows) -> Tensor:
        """Logits [B, C, T]. The user's part of the first layer is computed once per request and broadcast."""
        weight = self.first.weight
        user_BH = F.linear(self.user_part(states, rows.context), weight[:, : self.user_width], self.first.bias)
        item_BCH = F.linear(self.item_part(states, rows), weight[:, self.user_width :])
        return torch.as_tensor(self.rest(item_BCH + user_BH[:, None, :]))

    def user_part(self, states: UserStates, context: FeatureTensors) -> Tensor:
        """[B, user_width]: the segments that all candidates of a request share."""
        return torch.cat([states.user_BU, self.context(context)], dim=-1)

    def item_part(self, states: UserStates, rows: CandidateRows) -> Tensor:
        """[B, C, X - user_width]: the segments of each candidate, in the order of `item_segments`."""
        items_BCD = rows.vectors_BCD.float()
        bea_BCP = join_bridges(rows.bridge_BCN.float(), states.bridges_BNP)
        user_x = multiply_by_item(self.project_user(states.user_BU)[:, None, :], items_BCD)
        parts = [items_BCD, user_x, bea_BCP, multiply_by_item(self.project_bea(bea_BCP), items_BCD)]
        if self.spec.schema.multimodal:
            parts += self._similarity(states, rows, items_BCD)
        if self.spec.schema.sim_category:
            means_BCD, log_counts_BC1 = look_up_sim(states.sim, rows.category_BC)
            parts += [torch.cat([means_BCD, log_counts_BC1], dim=-1), multiply_by_item(self.project_sim(means_BCD), items_BCD)]
        return torch.cat([*parts, self.realtime(rows.realtime_BCQ)], dim=-1)

    def _similarity(self, states: UserStates, rows: CandidateRows, items_BCD: Tensor) -> list[Tensor]:
        """DIN, its product, and tiers; zeros for a candidate without a signature."""
        signs_BCK = decode_signs(rows.signatures_BCW, rows.has_signature_BC)
        din_BCD = din_from_sums(signs_BCK, states.din, self.spec.din) * (self.din_gain * rows.has_signature_BC[..., None])
        sequence_BSK = decode_signs(states.simtier_BSW, states.simtier_mask_BS)
        counts_BCN = simtier_counts(signs_BCK, sequence_BSK, states.simtier_mask_BS, self.spec.tier_edges)
        tiers_BCX = simtier_features(counts_BCN, states.simtier_mask_BS.sum(dim=1), rows.has_signature_BC)
        return [din_BCD, multiply_by_item(self.project_din(din_BCD), items_BCD), tiers_BCX]
