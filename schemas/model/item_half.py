"""The item half: what nearline computes for an item, independent of the user (Eq. 4, and the item side of Algorithm 1).

Both outputs end in a LayerNorm: without it the bridges do not learn, and it bounds every stored value for fp16.

Arrays: R rows, D width, I width of the concatenated item features.
Source: AIF, eq. (4). Differs: LayerNorm after the MLP; a second MLP makes the key that meets the bridges.
"""

import torch
from torch import Tensor, nn

from schemas.model.embeddings import FeatureEmbedding, build_mlp
from schemas.model.inputs import FeatureTensors
from schemas.model.spec import ModelSpec

TABLE_GAIN, KEY_COLUMNS_GAIN = 4.0, 2.0


class ItemHalf(nn.Module):
    """I [R, I] -> vector [R, D] and bridge key [R, D]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.features = FeatureEmbedding(spec.schema.item_half_inputs, spec.embedding_width)
        self.vector = build_mlp(self.features.width, spec.item_hidden, spec.width)
        self.vector_norm = nn.LayerNorm(spec.width)
        self.key = build_mlp(self.features.width, spec.item_hidden, spec.width)
        self.key_norm = nn.LayerNorm(spec.width)

    def forward(self, items: FeatureTensors) -> tuple[Tensor, Tensor]:
        """(vectors_RD of Eq. 4, keys_RD: the I of Algorithm 1) of `schema.item_half_inputs`, in that order."""
        features_RI = self.features(items)
        return self.vector_norm(self.vector(features_RI)), self.key_norm(self.key(features_RI))


@torch.no_grad()
def start_categories(half: ItemHalf) -> None:
    """Start weights of a network that knows nothing of its items, in place. Categories and bags become as large as numbers, and the key reads
    them twice as strongly. Otherwise the key starts as a function of the numbers, and a short training may end before it finds which category needs which
    bridge."""
    first = half.key[0]
    assert isinstance(first, nn.Linear)
    first.weight[:, : half.features.table_width] *= KEY_COLUMNS_GAIN
    if half.features.table is not None:
        half.features.table.mul_(TABLE_GAIN)
