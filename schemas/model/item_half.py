"""The item half: what nearline computes for an item, independent of the user (Eq. 4, and the item side of Algorithm 1).

Here: item features to the async vector and to the bridge key. Not here: the softmax over bridges (bea.py), stored rows
(item_network.py, the same compiled). Both outputs end in a LayerNorm: without it the bridges do not learn, and it bounds every stored value for fp16.

Arrays: R rows, D width, I width of the concatenated item features.
Source: AIF, eq. (4). Differs: LayerNorm after the MLP; a second MLP makes the key that meets the bridges.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.model.embeddings import FeatureEmbedding, build_mlp
from schemas.model.inputs import ItemInputs
from schemas.model.spec import ModelSpec


class ItemHalf(nn.Module):
    """I [R, I] -> vector [R, D] and bridge key [R, D]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.features = FeatureEmbedding(spec.schema.item_half_inputs, spec.embedding_width)
        self.vector = build_mlp(self.features.width, spec.item_hidden, spec.width)
        self.vector_norm = nn.LayerNorm(spec.width)
        self.key = build_mlp(self.features.width, spec.item_hidden, spec.width)
        self.key_norm = nn.LayerNorm(spec.width)

    def forward(self, items: ItemInputs, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """(vectors_RD of Eq. 4, keys_RD: the I of Algorithm 1), computed in `dtype` if one is given."""
        features_RI = self.features(items)
        vectors_RD = call_in(dtype, self.vector_norm, call_in(dtype, self.vector, features_RI))
        return vectors_RD, call_in(dtype, self.key_norm, call_in(dtype, self.key, features_RI))


def call_in(dtype: torch.dtype | None, module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` with input and parameters widened to `dtype`; as it is if None.

    The module itself is not touched (torch's `functional_call` swaps its parameters for a moment): shards encode with one network side by side.
    """
    if dtype is None:
        return torch.as_tensor(module(x))
    x = x.to(dtype)
    for layer in module if isinstance(module, nn.Sequential) else (module,):
        x = _layer_in(dtype, layer, x)
    return x


def _layer_in(dtype: torch.dtype, layer: nn.Module, x: Tensor) -> Tensor:
    match layer:
        case nn.Linear():
            return F.linear(x, layer.weight.to(dtype), layer.bias.to(dtype))
        case nn.LayerNorm():
            return F.layer_norm(x, layer.normalized_shape, layer.weight.to(dtype), layer.bias.to(dtype), layer.eps)
        case nn.ReLU():
            return F.relu(x)
    raise TypeError(f"no widened form of {layer!r}: add it here")
