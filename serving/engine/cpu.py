"""The CPU scorer: complete, fp32, and the reference of every other device.

Here: call 1 and call 2 on one version's tables. Not here: threads and versions (loop.py), equations (schemas/model).
Call 2 is the exact split of the head's first layer (schemas/model/head_split.py) with two changes of arithmetic order only: everything that is
linear in a candidate's features is one matrix product per block of candidates, and sums over a signature's bits go through tables.

    base_GH     user constant + SIM-hard by category: one row per category of the user, one for none
    inputs_CX   [ I | w | (w V P_b) o I | (DIN P_d) o I | (SIM P_s) o I | tiers | realtime ]   times   weights_XH

Arrays: C candidates, B a block of them, D width, N bridges, H first hidden width, X width of inputs, G categories of the user, K bits, T tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schemas.model.hamming import equal_bits_min
from schemas.model.head_split import FirstLayerSplit, product_weights, slice_weights, split_first_layer
from schemas.model.inputs import UserStates, encode_context
from schemas.model.network import AifNetwork
from serving.engine.similarity import (
    add_signs,
    build_sign_table,
    count_distances,
    count_distances_2,
    pack_words,
    pool_distances,
    tier_of_distances,
)
from serving.engine.tables import Applied, Tables
from serving.engine.user_state import EngineUserState, build_user_state
from serving.engine.work import UserState, UserWork

BLOCK = 1024  # candidates whose inputs stay in the second-level cache


@dataclass(frozen=True, slots=True)
class _User:
    """What one request's user adds, folded: see the legend at the top. `sign_table` etc. are None without a multimodal embedding."""

    base_GH: Tensor
    weights_XH: Tensor
    bea_ND: Tensor
    sim_GD: Tensor | None
    categories_G: np.ndarray
    sign_table: np.ndarray | None
    sign_offset: np.ndarray | None
    sequence_SQ: np.ndarray | None
    weights_S: np.ndarray | None
    behaviours: int


class CpuScorer:
    """One version's network on one version's tables. Used by one thread."""

    def __init__(self, network: AifNetwork, version: int, tables: Tables) -> None:
        self.network, self.version, self.tables = network.eval(), version, tables
        spec = network.spec
        self._weights = {name: w.detach() for name, w in slice_weights(network.head).items()}
        self._products = {n: product_weights(w).T.contiguous() for n, w in self._weights.items() if n.endswith("_x") and n != "user_x"}
        columns = {name: torch.from_numpy(column) for name, column in tables.columns.items()}
        self._columns = {
            n: c.unsqueeze(1) if c.ndim == 1 and n in ("vector", "bridge", "signature", "realtime") else c for n, c in columns.items()
        }
        if spec.schema.multimodal:
            self._tier_H = tier_of_distances(equal_bits_min(spec.tier_edges, spec.hash_bits), spec.hash_bits)
            self._histogram = np.zeros((BLOCK, spec.hash_bits + 1), np.int32)

    def user_state(self, work: UserWork) -> EngineUserState:
        """Call 1."""
        return build_user_state(self.network, self.version, self.tables, work)

    def on_applied(self, applied: Applied) -> None:
        """The columns are the slot's own memory: nothing to copy."""

    @torch.inference_mode()
    def score(self, state: UserState, slots_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T]) of live slots."""
        assert isinstance(state, EngineUserState)
        spec, head = self.network.spec, self.network.head
        user = self._fold(state.tensors, split_first_layer(head, state.tensors, encode_context(spec, context)))
        logits_CT, slots = torch.empty(len(slots_C), len(spec.tasks)), torch.from_numpy(slots_C)
        for at in range(0, len(slots_C), BLOCK):
            block = slots[at : at + BLOCK]
            logits_CT[at : at + BLOCK] = head.rest(self._first_layer(user, block))
        bids_C = self._columns["bid"].index_select(0, slots)
        scores_C, probabilities_CT = self.network.scores(logits_CT, bids_C)
        return scores_C.numpy(), probabilities_CT.numpy()

    def _fold(self, states: UserStates, split: FirstLayerSplit) -> _User:
        """One request's tables (B = 1)."""
        constant_H, products = split.constant_BH[0], self._products
        sim_GD, base_GH, categories_G = None, constant_H[None], np.zeros(0, np.int64)
        parts = [split.item_BHD[0].T, split.bea.through_w[0], products["bea_x"]]
        sign_table = offset = sequence = weights = None
        if split.din is not None and split.din_offset is not None:
            sign_table, offset = self._sign_tables(split)
            sequence, weights = _sequence_of(states)
            parts.append(products["din_x"])
        if split.sim is not None and split.sim_log_weight_H is not None:
            through_w = split.sim.through_w[0] + states.sim.log_counts_BG[0, :, None] * split.sim_log_weight_H
            base_GH = torch.cat([constant_H + through_w, base_GH])
            sim_GD = torch.cat([split.sim.through_p[0], split.sim.through_p.new_zeros(1, split.sim.through_p.shape[2])])
            categories_G = states.sim.categories_BG[0].numpy()
            parts.append(products["sim_x"])
        parts += [self._weights[name].T for name in ("tiers", "realtime") if name in self._weights]
        behaviours = int(states.simtier_mask_BS.sum())
        return _User(
            base_GH, torch.cat(parts), split.bea.through_p[0], sim_GD, categories_G, sign_table, offset, sequence, weights, behaviours
        )

    def _sign_tables(self, split: FirstLayerSplit) -> tuple[np.ndarray, np.ndarray]:
        """DIN through W and through P_d side by side, [H + D] wide."""
        assert split.din is not None and split.din_offset is not None
        rows_KX = torch.cat([split.din.through_w[0], split.din.through_p[0]], dim=1).numpy()
        offset_X = torch.cat([split.din_offset.through_w[0, 0], split.din_offset.through_p[0, 0]]).numpy()
        table_GVX = np.empty((rows_KX.shape[0] // 4, 16, rows_KX.shape[1]), np.float32)
        build_sign_table(np.ascontiguousarray(rows_KX), table_GVX)
        return table_GVX, offset_X

    def _first_layer(self, user: _User, slots_B: Tensor) -> Tensor:
        """[B, H] before the rest of the head."""
        columns = {name: column.index_select(0, slots_B) for name, column in self._columns.items() if name != "bid"}
        items_BD, bridge_BN = columns["vector"].float(), columns["bridge"].float()
        inputs = [items_BD, bridge_BN, (bridge_BN @ user.bea_ND) * items_BD]
        entries_B = _entries_of(user.categories_G, columns["category"].numpy())
        base_BH = user.base_GH.index_select(0, entries_B) if user.sim_GD is not None else user.base_GH
        tiers = []
        if user.sign_table is not None:
            signed_BX = self._signed(user, columns)
            hidden = user.base_GH.shape[1]
            base_BH = base_BH + signed_BX[:, :hidden]
            inputs.append(signed_BX[:, hidden:] * items_BD)
            tiers = self._tiers(user, columns)
        if user.sim_GD is not None:
            inputs.append(user.sim_GD.index_select(0, entries_B) * items_BD)
        realtime = [self.network.head.realtime(columns["realtime"])] if "realtime" in columns else []
        return torch.addmm(base_BH, torch.cat([*inputs, *tiers, *realtime], dim=1), user.weights_XH)

    def _signed(self, user: _User, columns: Mapping[str, Tensor]) -> Tensor:
        assert user.sign_table is not None
        signatures, has = columns["signature"].numpy(), columns["has_signature"].numpy()
        out_BX = np.empty((len(signatures), user.sign_table.shape[2]), np.float32)
        add_signs(signatures, has, user.sign_table, user.sign_offset, out_BX)
        return torch.from_numpy(out_BX)

    def _tiers(self, user: _User, columns: Mapping[str, Tensor]) -> list[Tensor]:
        """log1p(count), count / l of SimTier; zeros without a signature."""
        items_BQ, has_B1 = pack_words(columns["signature"].numpy()), columns["has_signature"].numpy()[:, None] != 0
        histogram = self._histogram[: len(items_BQ)]
        count = count_distances_2 if items_BQ.shape[1] == 2 else count_distances
        count(items_BQ, user.sequence_SQ, user.weights_S, histogram)
        counts_BN = np.empty((len(items_BQ), self.network.spec.tiers), np.float32)
        pool_distances(histogram, self._tier_H, counts_BN)
        counts_BN *= has_B1
        return [torch.from_numpy(counts_BN).log1p(), torch.from_numpy(counts_BN / np.float32(max(user.behaviours, 1)))]


def _sequence_of(states: UserStates) -> tuple[np.ndarray, np.ndarray]:
    """Different signatures of SimTier's behaviours as words, and how often each occurs (int32)."""
    words_SQ = pack_words(states.simtier_BSW[0][states.simtier_mask_BS[0]].numpy())
    different, counts = np.unique(words_SQ, axis=0, return_counts=True)
    return np.ascontiguousarray(different.reshape(-1, words_SQ.shape[1])), counts.astype(np.int32)


def _entries_of(categories_G: np.ndarray, category_B: np.ndarray) -> Tensor:
    """Row of `base_GH` for each candidate; the last row for a category that the user has not met."""
    if len(categories_G) == 0:
        return torch.zeros(len(category_B), dtype=torch.int64)
    entry_B = np.searchsorted(categories_G, category_B).clip(max=len(categories_G) - 1)
    found_B = (categories_G[entry_B] == category_B) & (category_B > 0)
    return torch.from_numpy(np.where(found_B, entry_B, len(categories_G)).astype(np.int64))
