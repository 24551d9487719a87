"""COLD, the paper's baseline: the fields of a (user, item) pair are weighted by squeeze-and-excitation and pass through seven layers.

Here: the trunk. Not here: which fields it reads (head.py). The model is sequential: at ranking time every pair passes through all of it.

Arrays: B users, C candidates, F fields, X the sum of their widths, T tasks.
Source: COLD (arXiv 2007.16122), sections 3.1 and 3.3; squeeze-and-excitation (arXiv 1709.01507). Differs: the gate is twice a sigmoid, so that
fields are unchanged at the start of a training. The layers start with He's variance: with torch's default, a signal loses five sixths of its
variance in each layer, and seven layers learn late. A linear map from the fields to the logits is added to the layers; without it, a short training
does not find the products of user and item.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from schemas.model.embeddings import build_mlp

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
