"""The AIF network: the parts of this folder in the order of the paper's two calls.

    item_rows     nearline          item features -> async vector, bridge weights           Eq. 4, Algorithm 1 line 3
    user_states   call 1, online    profile, behaviours -> UserStates                       Eq. 1-3, Algorithm 1 lines 1-2, sums of Eq. 8, section 3.3
    joint_logits  call 2, online    UserStates x candidates -> logits                       Algorithm 1 line 4, Eq. 6-9, head

Invariants: no part of the user half reads a candidate, and no part of the item half reads a user (request_split.py checks it when a network is made). No
result depends on padding, on the order of candidates, or on the other users of a batch, up to rounding.
Arrays: B users, L behaviours, C candidates, R rows, D width, N bridges, T tasks.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from schemas.model.bea import BridgeEmbedding, start_bridges
from schemas.model.din import build_din_sums
from schemas.model.head import Head
from schemas.model.inputs import CandidateRows, FeatureTensors, UserInputs, UserStates, map_tensors
from schemas.model.item_half import ItemHalf
from schemas.model.parameters import Parameters
from schemas.model.ranker.ranker import Ranker
from schemas.model.request_split import check_request_split
from schemas.model.score import rank_scores
from schemas.model.sim_hard import build_sim_table
from schemas.model.simtier import decode_signs
from schemas.model.spec import ModelSpec
from schemas.model.user_half import BehaviourProjection, UserHalf


class AifNetwork(nn.Module):
    """A network of one spec. `w_hash_KM` (float32 [K, mm_width], None without a multimodal embedding) belongs to the model but is not trained."""

    def __init__(self, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> None:
        super().__init__()
        self.spec = spec
        self.w_hash_KM = w_hash_KM
        self.item_half = ItemHalf(spec)
        self.bea = BridgeEmbedding(spec)
        self.behaviour = BehaviourProjection(spec)
        self.user_half = UserHalf(spec)
        self.head = Head(spec)
        self.ranker = Ranker(spec) if spec.ranker is not None else None
        if self.head.first.weight.is_meta:
            return  # it has no values to start from, or to run with
        start_bridges(self.bea, self.user_half.row_identity_GD, self.item_half.key_norm)
        if type(self).user_states is AifNetwork.user_states:  # a subclass that overrides the calls is not complete yet
            check_request_split(self)

    def item_rows(self, items: FeatureTensors) -> tuple[Tensor, Tensor]:
        """(vectors_RD, bridge_RN) with gradient. Stored rows come from `ItemNetwork` instead."""
        vectors_RD, keys_RD = self.item_half(items)
        return vectors_RD, self.bea.item_weights(keys_RD)

    def user_states(self, users: UserInputs) -> UserStates:
        """Call 1 for B users. Behaviours are right-aligned; all read the latest `behaviours_max`, and some parts fewer."""
        spec = self.spec
        behaviours = map_tensors(users.behaviours, lambda t: t[:, -spec.behaviours_max :])
        projected_BLD = self.behaviour(behaviours)
        attended = slice(-spec.attended_behaviours, None)
        user_BU, rows_BGD = self.user_half(users.profile, projected_BLD[:, attended], behaviours.mask_BL[:, attended])
        tiered = slice(-spec.simtier_behaviours, None)
        return UserStates(
            user_BU=user_BU,
            bridges_BNP=self.bea.user_vectors(rows_BGD),
            din=build_din_sums(
                projected_BLD, decode_signs(behaviours.signatures_BLW, behaviours.has_signature_BL), behaviours.has_signature_BL
            ),
            simtier_BSW=behaviours.signatures_BLW[:, tiered],
            simtier_mask_BS=behaviours.has_signature_BL[:, tiered],
            sim=build_sim_table(projected_BLD, behaviours.category_BL, behaviours.mask_BL, spec.sim_behaviours),
        )

    def joint_logits(self, states: UserStates, candidates: CandidateRows) -> Tensor:
        """Call 2: logits [B, C, T]. Stored fp16 rows are widened to fp32; candidates do not influence each other."""
        return torch.as_tensor(self.head(states, candidates))

    def scores(self, logits_BCT: Tensor, bids_BC: Tensor) -> tuple[Tensor, Tensor]:
        """(score [..., C], probabilities [..., C, T]): y * bid with y = sigmoid(click logit), y, or another product, by `spec.rank_by`."""
        probabilities_BCT = torch.sigmoid(logits_BCT)
        return rank_scores(self.spec.rank_terms, self.spec.tasks, probabilities_BCT, bids_BC), probabilities_BCT


def build_network(parameters: Parameters) -> AifNetwork:
    """The network of these parameters, in evaluation mode on the CPU; it shares their memory."""
    with torch.device("meta"):
        network = AifNetwork(parameters.spec, None)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.arrays.items()}, assign=True)
    return network.eval()


class InFloat64(TorchFunctionMode):
    """Inside, every torch function gets its floating-point arguments in fp64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_widen(args), **_widen(kwargs or {}))


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor.double(value) if value.dtype in (torch.float16, torch.float32) else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widen, value))
    return {name: _widen(one) for name, one in value.items()} if isinstance(value, dict) else value
