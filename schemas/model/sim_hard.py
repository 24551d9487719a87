"""SIM-hard: a user's history split by item category before the candidates are known (paper, section 3.3).

An entry is the mean of the latest `sim_behaviours` projected behaviours of that category, and log1p of their number. A category that is not in the
history, and the missing category 0, give zeros.

Arrays: B users, L behaviours (oldest first, right-aligned), G categories of a user, C candidates, D width.
Source: AIF, section 3.3; SIM (Pi et al. 2020). Differs: a mean instead of attention inside the sub-sequence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.model.behaviour_codes import NO_CATEGORY


@dataclass(frozen=True, slots=True)
class SimTable:
    """categories_BG ascending, padded with NO_CATEGORY; means_BGD; log_counts_BG = log1p(behaviours in the mean). G >= 1."""

    categories_BG: Tensor
    means_BGD: Tensor
    log_counts_BG: Tensor


def build_sim_table(projected_BLD: Tensor, category_BL: Tensor, mask_BL: Tensor, latest: int) -> SimTable:
    """The sub-sequences of every user of the batch. Behaviours with category 0 or masked belong to none."""
    users, length, width = projected_BLD.shape
    key_BL = torch.where(mask_BL & (category_BL > 0), category_BL, NO_CATEGORY)
    group_BL, rank_BL = _group_newest_first(key_BL)
    groups = int(group_BL.max()) + 1 if length else 1
    kept_BL = (rank_BL < latest) & (key_BL != NO_CATEGORY)
    flat = (group_BL + torch.arange(users, device=group_BL.device)[:, None] * groups).reshape(-1)
    values = (projected_BLD * kept_BL[..., None]).reshape(-1, width)
    sums = projected_BLD.new_zeros(users * groups, width).index_add(0, flat, values)
    counts = projected_BLD.new_zeros(users * groups).index_add(0, flat, kept_BL.reshape(-1).to(projected_BLD.dtype))
    categories_BG = key_BL.new_full((users, groups), NO_CATEGORY).scatter_(1, group_BL, key_BL)
    means_BGD = (sums / counts.clamp(min=1)[:, None]).view(users, groups, width)
    return SimTable(categories_BG, means_BGD, counts.log1p().view(users, groups))


def _group_newest_first(key_BL: Tensor) -> tuple[Tensor, Tensor]:
    """For each behaviour: its group (groups in ascending order of the key) and its rank in the group, 0 = newest."""
    length = key_BL.shape[1]
    sorted_BL, order_BL = torch.sort(key_BL.flip(1), dim=1, stable=True)
    is_first_BL = torch.ones_like(sorted_BL, dtype=torch.bool)
    is_first_BL[:, 1:] = sorted_BL[:, 1:] != sorted_BL[:, :-1]
    place_L = torch.arange(length, device=key_BL.device)
    first_place_BL = torch.cummax(torch.where(is_first_BL, place_L, 0), dim=1).values if length else sorted_BL
    group_BL = torch.empty_like(order_BL).scatter_(1, order_BL, is_first_BL.cumsum(dim=1) - 1)
    rank_BL = torch.empty_like(order_BL).scatter_(1, order_BL, place_L - first_place_BL)
    return group_BL.flip(1), rank_BL.flip(1)


def look_up_sim(table: SimTable, category_BC: Tensor) -> tuple[Tensor, Tensor]:
    """(means_BCD, log_counts_BC1) of the candidates' categories; zeros where the user has none."""
    entry_BC = torch.searchsorted(table.categories_BG.contiguous(), category_BC.contiguous()).clamp(max=table.categories_BG.shape[1] - 1)
    found_BC = (table.categories_BG.gather(1, entry_BC) == category_BC) & (category_BC > 0)
    users, groups, width = table.means_BGD.shape
    flat = (entry_BC + torch.arange(users, device=entry_BC.device)[:, None] * groups).reshape(-1)
    means_BCD = table.means_BGD.reshape(-1, width).index_select(0, flat).view(*entry_BC.shape, width)
    log_counts_BC = table.log_counts_BG.gather(1, entry_BC)
    return means_BCD * found_BC[..., None], (log_counts_BC * found_BC)[..., None]
