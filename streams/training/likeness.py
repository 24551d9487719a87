"""Training of the head alone, for few requests: of a candidate it reads numbers that say nothing of which item it is.

Kept of a candidate: the sums of its products with Eq. 2, DIN and the SIM sub-sequence, tiers, the count of its category, and `realtime` features. Everything
outside the head stays as it started. Its embedding then says only how alike it is to the history.
Why: from whatever distinguishes items a network learns which of them were popular while it was trained. With few requests it finds little else
(docs/EXPERIMENTS.md, films). The network has the same parts and serves as any other.
"""

import functools

import torch
from torch import Tensor

from schemas.model.network import AifNetwork
from schemas.model.parameters import segment_widths
from schemas.model.spec import ModelSpec

_WHOLE = ("tiers", "realtime")  # segments of head.py that are read as they are
_LAST = ("user_x", "din_x", "sim", "sim_x")  # segments of which the last number alone is read


@torch.no_grad()
def forget_items(network: AifNetwork) -> None:
    """The head starts without the numbers that it is not to read."""
    network.head.first.weight.mul_(read_columns(network.spec))


def keep_to_likeness(network: AifNetwork) -> None:
    """Removes from the gradients of a step whatever would learn something else."""
    for name, parameter in network.named_parameters():
        if not name.startswith("head.") or name.startswith("head.project_"):
            parameter.grad = None
    gradient = network.head.first.weight.grad
    if gradient is not None:
        gradient *= read_columns(network.spec)


@functools.lru_cache(maxsize=8)
def read_columns(spec: ModelSpec) -> Tensor:
    """1 for each column of the head's first layer that is read, 0 for the others: [X]."""
    user, item = segment_widths(spec)
    columns = [torch.ones(sum(user.values()))]
    for name, width in item.items():
        columns.append(torch.full((width,), float(name in _WHOLE)))
        if name in _LAST:
            columns[-1][-1] = 1.0
    return torch.cat(columns)
