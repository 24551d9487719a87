"""Groups the requests of a batch by the length of their histories, so that short ones are not padded to the longest.

Here: the groups and their members. Not here: what is computed with them (trainer.py). A shop's longest history is twenty times its median; with padding
to the longest, four fifths of a batch's attention and similarities would be computed on padding. No result depends on padding, so logits are the same up
to rounding. The groups depend only on the lengths.

Arrays: B users, G of one group, L behaviours.
"""

import torch
from torch import Tensor

from schemas.model.inputs import UserInputs, map_tensors

SHORT = 32  # histories up to this length are one group


def group_by_length(mask_BL: Tensor) -> list[Tensor]:
    """Places of the requests, [G] each, shortest first; within a group the longest is less than twice the shortest (or all are short)."""
    level_B = (mask_BL.sum(dim=1).clamp(min=SHORT) / SHORT).log2().floor()
    return [torch.nonzero(level_B == level).flatten() for level in level_B.unique()]


def take_users(users: UserInputs, group_G: Tensor) -> UserInputs:
    """Those of one group, padded to its longest history (behaviours are right-aligned)."""
    longest = max(1, int(users.behaviours.mask_BL[group_G].sum(dim=1).max()))
    profile = map_tensors(users.profile, lambda t: t[group_G])
    return UserInputs(profile, map_tensors(users.behaviours, lambda t: t[group_G, -longest:]))
