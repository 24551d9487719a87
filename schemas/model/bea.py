"""Bridge Embedding Approximation (Algorithm 1): a user is n vectors instead of one, and each item has weights for them.

The rows of U come from user_half.py, the item key I from item_half.py.

    1  W = softmax(B U^T / sqrt(d))      n x m   user side, call 1
    2  V = f(W U)                        n x d'  user side, call 1; f is one MLP shared by the n rows
    3  w = softmax(I B^T / sqrt(d))      b x n   item side, nearline
    4  v = w V                           b x d'  call 2

Arrays: B users, m rows of U (G), N bridges, D width, P bridge width, R item rows, C candidates.
Source: AIF, Algorithm 1. Differs: a linear map makes the user's keys for the bridges, an MLP of its own the item's (item_half.py). The keys of both sides
have a LayerNorm. All of it starts as in `start_bridges`; otherwise a short training learns to use only some of the bridges, or none. f has a skip
connection. U has a row for each of eq. (2) and (3) too, and a learnt vector is added to every row.
"""

import torch
from torch import Tensor, nn

from schemas.model.embeddings import build_mlp, normal_parameter
from schemas.model.spec import ModelSpec

ROW_GAIN, BRIDGE_STD = 1.5, 0.3
KEY_GAIN = 0.3
PRODUCT_GAIN = 3.0


class BridgeEmbedding(nn.Module):
    """The bridges and f(. | Theta_u)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.bridges_ND = normal_parameter(spec.bridges, spec.width, std=BRIDGE_STD)
        self.user_key = nn.Linear(spec.width, spec.width)
        self.user_norm = nn.LayerNorm(spec.width)
        self.f = build_mlp(spec.width, spec.bridge_hidden, spec.bridge_width)
        self.skip = nn.Linear(spec.width, spec.bridge_width, bias=False) if spec.bridge_width != spec.width else nn.Identity()

    def user_vectors(self, rows_BGD: Tensor) -> Tensor:
        """Lines 1 and 2: V [B, N, P] from the user's rows U [B, m, D]."""
        keys_BGD = self.user_norm(self.user_key(rows_BGD))
        attention_BNG = torch.softmax(self.bridges_ND @ keys_BGD.transpose(1, 2) / self.bridges_ND.shape[1] ** 0.5, dim=-1)
        pooled_BND = attention_BNG @ rows_BGD
        return torch.as_tensor(self.f(pooled_BND) + self.skip(pooled_BND))

    def item_weights(self, keys_RD: Tensor) -> Tensor:
        """Line 3: [R, N], stored in the index next to the vector."""
        return torch.softmax(keys_RD @ self.bridges_ND.T / self.bridges_ND.shape[1] ** 0.5, dim=-1)


@torch.no_grad()
def start_bridges(bea: BridgeEmbedding, rows_GD: Tensor, key_norm: nn.LayerNorm) -> None:
    """Set the starting weights of both sides of the bridges, in place; all stay trainable. `rows_GD` [m, D]: the vectors that a new network adds to U's rows.

    The user's side starts decided: bridge n reads row n mod m of U. Among bridges at random some rows are read by none. The item's side starts undecided
    (`key_norm`, that of the item's keys). An item that starts at one bridge would have to leave it before it can learn its own.
    """
    keys_GD = bea.user_norm(bea.user_key(rows_GD))
    bea.bridges_ND.add_(ROW_GAIN * keys_GD[torch.arange(len(bea.bridges_ND)) % len(keys_GD)])
    key_norm.weight.fill_(KEY_GAIN)


def project_bridges(bridge_width: int, width: int) -> nn.Linear:
    """The head's P_b. It starts PRODUCT_GAIN times as large as other projections. At first it multiplies the mean of all bridges, in which an item's own
    bridge is small. Until the product is useful, no item learns its bridge."""
    projection = nn.Linear(bridge_width, width, bias=False)
    if not projection.weight.is_meta:
        with torch.no_grad():
            projection.weight *= PRODUCT_GAIN
    return projection


def join_bridges(weights_BCN: Tensor, vectors_BNP: Tensor) -> Tensor:
    """Line 4: [B, C, P]."""
    return weights_BCN @ vectors_BNP
