"""The scorer on a device of torch: the columns live there, rows that change are copied there, and only scores come back.

Here: the copy of the columns, and call 2 by the exact split of the first layer: torch's products, SimTier by one fused kernel where that works. Not here:
the kernel (tier_kernel.py); captured graphs, which nobody has built, because they could not be tried without a device.
Same interface and same numbers (up to fp32 rounding) as cpu.py; it also runs on the device "cpu", which is how its arithmetic is tested without a GPU.

Arrays: R slots, C candidates, T tasks.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from schemas.model.head_split import joint_logits_split
from schemas.model.inputs import CandidateRows, encode_context, map_tensors
from schemas.model.network import build_network
from schemas.model.parameters import Parameters
from serving.engine.device_state import DeviceUserState, build_device_state, states_on
from serving.engine.tables import Applied, Tables
from serving.engine.work import UserState, UserWork

if TYPE_CHECKING:
    from serving.engine.tier_kernel import CountTiers


class CudaScorer:
    """One version's network and columns on a device. The look-up and the slot's own columns stay on the CPU."""

    user_beside = False  # the device is one queue, and the engine's thread the one that fills it

    def __init__(self, parameters: Parameters, version: int, tables: Tables, device: str = "cuda") -> None:
        self.device = torch.device(device)
        torch.backends.cuda.matmul.allow_tf32 = False  # exact forms are fp32
        self.parameters, self.version, self.tables = parameters, version, tables
        self.network = build_network(parameters).to(self.device)
        self._columns = {name: torch.from_numpy(column.copy()).to(self.device) for name, column in tables.columns.items()}
        self.count_tiers, why = self._open_tier_kernel()
        self.tiers_by = f"torch, because {why}" if why else "triton"

    def user_state(self, work: UserWork) -> DeviceUserState:
        """Call 1; the state stays on the device."""
        return build_device_state(self.network, self.version, self.tables, work)

    def on_applied(self, applied: Applied) -> None:
        """Copies the rows that were written."""
        if len(applied.slots) == 0:
            return
        slots = np.unique(applied.slots)
        at = torch.from_numpy(slots).to(self.device)
        for name, column in self.tables.columns.items():
            self._columns[name].index_copy_(0, at, torch.from_numpy(column[slots]).to(self.device))

    def _open_tier_kernel(self) -> tuple["CountTiers | None", str]:
        """(SimTier's kernel, "") or (None, why plain torch counts)."""
        if self.device.type != "cuda":
            return None, f"the device is {self.device.type}"
        if not self.network.spec.signature_bytes:
            return None, "the model compares no signatures"
        try:
            from serving.engine.tier_kernel import open_tier_kernel
        except ImportError as error:
            return None, f"Triton is missing: {error}"
        return open_tier_kernel(self.network.spec, self._columns["signature"])

    @torch.inference_mode()
    def score(self, state: UserState, slots_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T]) of live slots."""
        states, slots = states_on(state, self.device), torch.from_numpy(slots_C).to(self.device)
        rows = self._rows(slots, map_tensors(encode_context(self.network.spec, context), lambda t: t.to(self.device)))
        counts_BCN = None
        if self.count_tiers is not None:
            counts_BCN = self.count_tiers(rows.signatures_BCW[0], states.simtier_BSW[0], states.simtier_mask_BS[0])[None]
        logits_BCT = joint_logits_split(self.network.head, states, rows, counts_BCN)
        scores_BC, probabilities_BCT = self.network.scores(logits_BCT, rows.bid_BC)
        return scores_BC[0].cpu().numpy(), probabilities_BCT[0].cpu().numpy()

    def _rows(self, slots_C: torch.Tensor, context: Any) -> CandidateRows:
        spec, count = self.network.spec, len(slots_C)

        def column(name: str, width: int) -> torch.Tensor:
            if width == 0:
                dtype = torch.uint8 if name == "signature" else torch.float32
                return torch.zeros(1, count, 0, dtype=dtype, device=self.device)
            return self._columns[name].index_select(0, slots_C).reshape(1, count, width)

        def scalar(name: str) -> torch.Tensor:
            return self._columns[name].index_select(0, slots_C)[None]

        return CandidateRows(
            vectors_BCD=column("vector", spec.width),
            bridge_BCN=column("bridge", spec.bridges),
            signatures_BCW=column("signature", spec.signature_bytes),
            has_signature_BC=scalar("has_signature") != 0,
            category_BC=scalar("category").long(),
            realtime_BCQ=column("realtime", len(spec.schema.realtime_features)),
            bid_BC=scalar("bid"),
            context=context,
        )
