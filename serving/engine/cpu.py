"""The CPU scorer: complete, fp32, and the reference of every other device.

Here: call 1 and call 2 on one version's tables. Not here: threads and versions (loop.py), equations (schemas/model).
Call 2 is the exact split of the head's first layer (schemas/model/head_split.py) with two changes of arithmetic order only: everything that is
linear in a candidate's features is one matrix product per block of candidates, and sums over a signature's bits go through tables.

    base_GH     user constant + SIM-hard by category: one row per category of the user, one for none
    inputs_CX   [ I | w | (w V P_b) o I | DIN | (DIN P_d) o I | (SIM P_s) o I | tiers | realtime ]   times   weights_XH

Arrays: C candidates, B a block of them, D width, N bridges, H first hidden width, X width of inputs, G categories of the user, K bits, T tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schemas.model.din import din_affine
from schemas.model.hamming import equal_bits_min
from schemas.model.head_split import FirstLayerSplit, product_weights, slice_weights, split_first_layer
from schemas.model.inputs import UserStates, encode_context
from schemas.model.network import AifNetwork
from serving.engine.similarity import add_signs, build_sign_table, distances_max, pack_words, write_tiers
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
    sequence: "_Sequence | None"


@dataclass(frozen=True, slots=True)
class _Sequence:
    """SimTier's behaviours: different signatures as words [Q, S], how often each occurs, log1p of every count that can come."""

    words_QS: np.ndarray
    weights_S: np.ndarray
    log1p_L: np.ndarray


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
            self._distance_max_E = distances_max(equal_bits_min(spec.tier_edges, spec.hash_bits), spec.hash_bits)
            self._project_din_DD = network.head.project_din.weight.detach().T.contiguous()

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
        sign_table = offset = sequence = None
        if "din" in self._weights:
            sign_table, offset = self._sign_table(states)
            sequence = _sequence_of(states)
            parts += [self._weights["din"].T, products["din_x"]]
        if split.sim is not None and split.sim_log_weight_H is not None:
            through_w = split.sim.through_w[0] + states.sim.log_counts_BG[0, :, None] * split.sim_log_weight_H
            base_GH = torch.cat([constant_H + through_w, base_GH])
            sim_GD = torch.cat([split.sim.through_p[0], split.sim.through_p.new_zeros(1, split.sim.through_p.shape[2])])
            categories_G = states.sim.categories_BG[0].numpy()
            parts.append(products["sim_x"])
        parts += [self._weights[name].T for name in ("tiers", "realtime") if name in self._weights]
        return _User(base_GH, torch.cat(parts), split.bea.through_p[0], sim_GD, categories_G, sign_table, offset, sequence)

    def _sign_table(self, states: UserStates) -> tuple[np.ndarray, np.ndarray]:
        """DIN with its gain as sums of signs: nibble tables [2 W, 16, D] and offset [D]."""
        rows_BKD, offset_BD = (self.network.head.din_gain * t for t in din_affine(states.din, self.network.spec.din))
        rows_KD = np.ascontiguousarray(rows_BKD[0].numpy())
        table_GVD = np.empty((len(rows_KD) // 4, 16, rows_KD.shape[1]), np.float32)
        build_sign_table(rows_KD, table_GVD)
        return table_GVD, offset_BD[0].numpy()

    def _first_layer(self, user: _User, slots_B: Tensor) -> Tensor:
        """[B, H] before the rest of the head."""
        columns = {name: column.index_select(0, slots_B) for name, column in self._columns.items() if name != "bid"}
        items_BD, bridge_BN = columns["vector"].float(), columns["bridge"].float()
        inputs = [items_BD, bridge_BN, (bridge_BN @ user.bea_ND) * items_BD]
        entries_B = _entries_of(user.categories_G, columns["category"].numpy())
        base_BH = user.base_GH.index_select(0, entries_B) if user.sim_GD is not None else user.base_GH
        tiers = []
        if user.sign_table is not None:
            din_BD = self._din(user, columns)
            inputs += [din_BD, (din_BD @ self._project_din_DD) * items_BD]
            tiers = [self._tiers(user.sequence, columns)]
        if user.sim_GD is not None:
            inputs.append(user.sim_GD.index_select(0, entries_B) * items_BD)
        realtime = [self.network.head.realtime(columns["realtime"])] if "realtime" in columns else []
        return torch.addmm(base_BH, torch.cat([*inputs, *tiers, *realtime], dim=1), user.weights_XH)

    def _din(self, user: _User, columns: Mapping[str, Tensor]) -> Tensor:
        """Eq. 8, [B, D]; zeros without a signature."""
        signatures_BW, has_B = columns["signature"].numpy(), columns["has_signature"].numpy()
        out_BD = np.empty((len(signatures_BW), self.network.spec.width), np.float32)
        add_signs(signatures_BW, has_B, user.sign_table, user.sign_offset, out_BD)
        return torch.from_numpy(out_BD)

    def _tiers(self, sequence: _Sequence | None, columns: Mapping[str, Tensor]) -> Tensor:
        """Eq. 9 as the head reads it, [B, 2 N]; zeros without a signature."""
        assert sequence is not None
        items_BQ, has_B = pack_words(columns["signature"].numpy()), columns["has_signature"].numpy()
        out_BF = np.empty((len(items_BQ), 2 * self.network.spec.tiers), np.float32)
        write_tiers(items_BQ, has_B, sequence.words_QS, sequence.weights_S, self._distance_max_E, sequence.log1p_L, out_BF)
        return torch.from_numpy(out_BF)


def _sequence_of(states: UserStates) -> _Sequence:
    words_SQ = pack_words(states.simtier_BSW[0][states.simtier_mask_BS[0]].numpy())
    different_SQ, counts_S = np.unique(words_SQ, axis=0, return_counts=True)
    words_QS = np.ascontiguousarray(different_SQ.reshape(-1, words_SQ.shape[1]).T)
    return _Sequence(words_QS, counts_S.astype(np.int32), torch.arange(len(words_SQ) + 1, dtype=torch.float32).log1p().numpy())


def _entries_of(categories_G: np.ndarray, category_B: np.ndarray) -> Tensor:
    """Row of `base_GH` for each candidate; the last row for a category that the user has not met."""
    if len(categories_G) == 0:
        return torch.zeros(len(category_B), dtype=torch.int64)
    entry_B = np.searchsorted(categories_G, category_B).clip(max=len(categories_G) - 1)
    found_B = (categories_G[entry_B] == category_B) & (category_B > 0)
    return torch.from_numpy(np.where(found_B, entry_B, len(categories_G)).astype(np.int64))
