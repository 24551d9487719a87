"""Embedding tables: the features of one scope as one concatenated vector.

Bucket 0 = missing: a categorical has a trained row for it, the mean of a bag leaves it out; an empty bag is zeros. Numbers and embedding features are
copied, clipped to +-VALUE_ABS_MAX: a finite event must never give a score that is not finite.

Arrays: leading dimensions `...` are free ([R], [B], [B, L]); C categorical, N numeric, B bags, V values of a bag, E width of one embedding.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.features import Feature
from schemas.model.feature_places import VALUE_ABS_MAX, plan_features
from schemas.model.inputs import FeatureTensors

TABLE_STD = 0.25


def normal_parameter(*shape: int, std: float = TABLE_STD) -> nn.Parameter:
    """A parameter drawn from N(0, std^2); on the meta device its shape only.

    There a draw or a product would import torch's compiler: 1.6 s in every process that reads a checkpoint.
    """
    values = torch.empty(shape)
    return nn.Parameter(values if values.is_meta else values.normal_(0.0, std))


def normal_table(rows: int, width: int) -> nn.Embedding:
    """An embedding table drawn in this way."""
    return nn.Embedding(rows, width, _weight=normal_parameter(rows, width))


class FeatureEmbedding(nn.Module):
    """`width` = width of the output; a scope without features is one column of zeros, so that no layer after it has inputs of width 0.

    `table_width` = its first columns, those of the table.
    """

    def __init__(self, features: Sequence[Feature], embedding_width: int) -> None:
        super().__init__()
        places = plan_features(features, embedding_width)
        self._categorical_starts, self._bag_starts = places.categorical_starts, places.bag_starts
        self.widths, self.width = places.widths, places.width
        self.table_width = embedding_width * (len(self._categorical_starts) + len(self._bag_starts))
        self.table = normal_parameter(places.rows, embedding_width) if places.rows else None

    def forward(self, inputs: FeatureTensors) -> Tensor:
        """[..., width]."""
        parts = []
        if self._categorical_starts:
            parts.append(self._categorical(inputs.categorical))
        if self._bag_starts:
            parts.append(self._bags(inputs.bags))
        parts += [x.clamp(-VALUE_ABS_MAX, VALUE_ABS_MAX) for x in (inputs.numeric, inputs.embeddings) if x.shape[-1]]
        return torch.cat(parts, dim=-1) if parts else inputs.numeric.new_zeros(*inputs.numeric.shape[:-1], 1)

    def _categorical(self, buckets_C: Tensor) -> Tensor:
        assert self.table is not None
        return F.embedding(buckets_C + torch.tensor(self._categorical_starts, device=buckets_C.device), self.table).flatten(-2)

    def _bags(self, buckets_BV: Tensor) -> Tensor:
        """Masked mean of each bag, as one weighted sum per bag."""
        assert self.table is not None
        present_BV = buckets_BV > 0
        weights_BV = present_BV.to(self.table.dtype) / present_BV.sum(dim=-1, keepdim=True).clamp(min=1)
        rows_BV = buckets_BV + torch.tensor(self._bag_starts, device=buckets_BV.device)[:, None]
        values = rows_BV.shape[-1]
        pooled = F.embedding_bag(rows_BV.reshape(-1, values), self.table, mode="sum", per_sample_weights=weights_BV.reshape(-1, values))
        return pooled.view(*buckets_BV.shape[:-2], len(self._bag_starts) * pooled.shape[-1])


def build_mlp(width_in: int, hidden: Sequence[int], width_out: int) -> nn.Sequential:
    """Linear layers with ReLU between them; the last is linear."""
    widths = [width_in, *hidden, width_out]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
