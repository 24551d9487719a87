"""COLD, the baseline of the paper: fields of one (user, item) pair, weighed by squeeze-and-excitation, then seven layers.

Here: the trunk alone. Which fields it gets is the family's choice (head.py). Sequential: every pair goes through all of it at ranking time.

Arrays: B users, C candidates, F fields, X their widths together, T tasks.
Source: COLD (arXiv 2007.16122), sections 3.1 and 3.3; squeeze-and-excitation (arXiv 1709.01507). Differs: the gate is twice a sigmoid, so
that at the start a field passes as it is; the layers start with He's variance (with torch's default a signal has a sixth of its variance
after each layer, and seven learn late); beside the layers a linear map leads from the fields to the logits, by which the products of user
and item are found in the steps that a short training has.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from schemas.model.embeddings import build_mlp

LAYERS = 7
HIDDEN = (128, 96, 64, 64, 32, 32)

assert len(HIDDEN) + 1 == LAYERS


class FieldGate(nn.Module):
    """SE: a field's weight is a sigmoid of a linear map of the mean of every field."""

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.excite = nn.Linear(fields, fields)

    def forward(self, fields: Sequence[Tensor]) -> list[Tensor]:
        """The fields [B, C, width], each times its weight for this pair."""
        squeezed_BCF = torch.stack([field.mean(dim=-1) for field in fields], dim=-1)
        weights_BCF = 2 * torch.sigmoid(self.excite(squeezed_BCF))
        return [field * weights_BCF[..., f : f + 1] for f, field in enumerate(fields)]


class ColdTrunk(nn.Module):
    """Fields to logits. `hidden_scale` widens the layers."""

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
