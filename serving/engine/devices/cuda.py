"""The scorer on a device of torch: the rows live there, call 1 is the CPU's (call_one.py), and of call 2 only scores come back.

Same interface and same numbers (up to fp32 rounding) as cpu.py; it also runs on the device "cpu", which is how its arithmetic is tested.

A request goes to the device in three copies (tables; rows and categories; signatures) and comes back in one. Between them are some forty operations,
each of which costs a launch: what a version or a user has in common is prepared before.

Arrays: R rows, Z bytes of a row, C candidates, X inputs, D width, N bridges, W signature bytes, T tasks; H first hidden width (padded); G categories of the
user and, first, none; F = 2 D columns of signs (padded), S behaviours with a signature.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.index.layout import RowLayout
from schemas.kernels.float32_code import LANES
from schemas.kernels.products import pad_columns, unpack_panels
from schemas.model.parameters import Parameters
from schemas.model.score import rank_scores
from schemas.model.simtier import count_plainly, decode_signs, simtier_features
from serving.engine.call_one.call_one import CallOne
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.call_two.version_weights import joint_parts, plan_realtime
from serving.engine.tables.tables import Applied, Tables
from serving.engine.work import UserState, UserWork

if TYPE_CHECKING:
    from serving.engine.devices.tier_kernel import CountTiers


class DeviceUser(NamedTuple):
    """One request's tables of the user (`HeadTables`) on the device, and the candidates' rows.

    joined_GX: base_GH with the context added, and sim_GD, side by side.
    """

    user_XH: Tensor
    bea_ND: Tensor
    joined_GX: Tensor
    signs_KF: Tensor
    sign_start_F: Tensor
    categories_G: Tensor
    signatures_SW: Tensor
    row_C: Tensor


class CudaScorer:
    """One version's weights and rows on a device. The look-up, call 1 and the arena's columns stay on the CPU."""

    device_error = ""

    def __init__(self, parameters: Parameters, version: int, tables: Tables, device: str = "cuda") -> None:
        self.device, self.parameters, self.spec = torch.device(device), parameters, parameters.spec
        torch.backends.cuda.matmul.allow_tf32 = False  # exact forms are fp32
        self.call_one, self._tables, self._row_dtype = CallOne(parameters, version, tables), tables, device_row(tables.layout)
        realtime = plan_realtime(parameters)
        self._numeric, self._categorical, self._start, self._table = (
            self._on_device(realtime[f"realtime_{name}"]) for name in ("numeric", "categorical", "start", "table")
        )
        self._value_abs_max = realtime["value_abs_max"]
        self._joint_XH = self._on_device(pad_columns(np.concatenate([part.T for part in joint_parts(parameters).values()]), LANES))
        self._first_width = len(parameters["head.first.bias"])
        self._rest = [(self._on_device(weight), self._on_device(bias)) for weight, bias in parameters.mlp("head.rest.1")]
        self._packed_R = self._on_device(self._pack_rows(slice(None)))
        self.count_tiers, why = self._open_tier_kernel()
        self.tiers_by = f"torch, because {why}" if why else "triton"

    def user_state(self, work: UserWork) -> EngineUserState:
        """Call 1."""
        return self.call_one.user_state(work)

    def on_applied(self, applied: Applied) -> None:
        """Copies the rows that were written."""
        if len(applied.rows):
            rows = np.unique(applied.rows)
            self._packed_R.index_copy_(0, self._on_device(rows), self._on_device(self._pack_rows(rows)))

    @torch.inference_mode()
    def score(self, state: UserState, row_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T]) of live rows."""
        assert isinstance(state, EngineUserState)
        answer_CX = self.score_there(self.send_user(state, row_C, context)).cpu().numpy()
        return answer_CX[:, 0], answer_CX[:, 1:]

    def send_user(self, state: EngineUserState, row_C: np.ndarray, context: Mapping[str, Any]) -> DeviceUser:
        """What the device needs for one request."""
        tables, arrays, spec = self.call_one.tables_of(state), state.arrays, self.spec
        floats = (
            unpack_panels(tables.user_panels, spec.width + spec.bridges),
            np.ascontiguousarray(unpack_panels(tables.bea_panels, spec.bridges)[:, : spec.width]),
            np.concatenate([tables.base_GH + self.call_one.context(context), tables.sim_GD], axis=1),
            tables.signs_KF,
            tables.sign_start_F,
        )
        sent = self._on_device(np.concatenate([one.ravel() for one in floats])).split([one.size for one in floats])
        user_XH, bea_ND, joined_GX, signs_KF, start_F = (one.view(of.shape) for one, of in zip(sent, floats, strict=True))
        categories_G, rows = self._on_device(np.concatenate([tables.categories_G, row_C])).split([len(tables.categories_G), len(row_C)])
        signatures_SW = self._on_device(arrays.simtier_SW[arrays.simtier_mask_S])
        return DeviceUser(user_XH, bea_ND, joined_GX, signs_KF, start_F, categories_G, signatures_SW, rows)

    def score_there(self, user: DeviceUser) -> Tensor:
        """[C, 1 + T]: scores, then probabilities, on the device."""
        rows_CZ, spec, hidden = self._packed_R.index_select(0, user.row_C).view(torch.uint8), self.spec, self._joint_XH.shape[1]
        items_CX = torch.cat([self._field(rows_CZ, "vector"), self._field(rows_CZ, "bridge")], dim=1).float()
        items_CD, bridge_CN = items_CX[:, : spec.width], items_CX[:, spec.width :]
        joined_CX = user.joined_GX.index_select(0, self._entries(user.categories_G, self._field(rows_CZ, "category")[:, 0]))
        parts = [(bridge_CN @ user.bea_ND) * items_CD]
        parts += self._realtime_parts(rows_CZ)
        if spec.schema.multimodal:
            parts += self._similarity(user, rows_CZ, items_CD)
        if spec.schema.sim_category:
            parts.append(joined_CX[:, hidden:] * items_CD)
        first_CH = torch.addmm(joined_CX[:, :hidden], items_CX, user.user_XH).addmm_(torch.cat(parts, dim=1), self._joint_XH)
        x = first_CH[:, : self._first_width]
        for weight, bias in self._rest:
            x = F.linear(x.relu(), weight, bias)
        probabilities_CT = x.sigmoid()
        scores_C = rank_scores(spec.rank_terms, spec.tasks, probabilities_CT, self._field(rows_CZ, "bid")[:, 0])
        return torch.cat([scores_C[:, None], probabilities_CT], dim=1)

    @staticmethod
    def _entries(categories_G: Tensor, category_C: Tensor) -> Tensor:
        """Rows of the user's tables: 0 for a category that the user does not have."""
        at_C = torch.searchsorted(categories_G, category_C.long()).clamp_(max=len(categories_G) - 1)
        return (at_C + 1) * (categories_G.index_select(0, at_C) == category_C)

    def _similarity(self, user: DeviceUser, rows_CZ: Tensor, items_CD: Tensor) -> list[Tensor]:
        """DIN (Eq. 8), DIN_P o I and the features of SimTier (Eq. 9); zeros without a signature."""
        width, signatures_CW = self.spec.width, self._field(rows_CZ, "signature")
        has_C = self._field(rows_CZ, "has_signature")[:, 0].float()
        din_CF = torch.addmm(has_C[:, None] * user.sign_start_F, decode_signs(signatures_CW, has_C), user.signs_KF)
        counts_CN = self.count_tiers(signatures_CW, user.signatures_SW)
        behaviours = torch.full((1,), len(user.signatures_SW), device=self.device)
        return [din_CF[:, :width], din_CF[:, width : 2 * width] * items_CD, simtier_features(counts_CN[None], behaviours, has_C[None])[0]]

    def _realtime_parts(self, rows_CZ: Tensor) -> list[Tensor]:
        """Numbers, clipped, then the rows of the table: the order of `RealtimeFeatures`."""
        if not self.spec.schema.realtime_features:
            return []
        values_CQ = self._field(rows_CZ, "realtime")
        numbers = values_CQ.index_select(1, self._numeric).clamp_(-self._value_abs_max, self._value_abs_max)
        if not len(self._start):
            return [numbers]
        rows = (values_CQ.index_select(1, self._categorical).long() + self._start).clamp_(0, len(self._table) - 1)
        return [numbers, F.embedding(rows, self._table).flatten(1)]

    # --- rows -----------------------------------------------------------------------------------------------------------

    def _pack_rows(self, rows: Any) -> np.ndarray:
        """int32 [rows, Z / 4]: one row after the other, so that call 2 gathers once."""
        columns = {name: column[rows] for name, column in self._tables.columns.items()}
        packed = np.zeros(len(columns["category"]), self._row_dtype)
        for name, values in columns.items():
            packed[name] = values
        return packed.view(np.int32).reshape(len(packed), -1)

    def _field(self, rows_CZ: Tensor, name: str) -> Tensor:
        """A column of rows, [C, width]: a view."""
        dtype, at = self._row_dtype.fields[name][:2]  # type: ignore[index] # it has fields
        return rows_CZ[:, at : at + dtype.itemsize].view(_TORCH_DTYPES[dtype.base.char])

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def _open_tier_kernel(self) -> tuple["CountTiers", str]:
        """(who counts SimTier's tiers, "" if it is the kernel, else why it is plain torch)."""
        plain = functools.partial(count_plainly, tier_edges=self.spec.tier_edges)
        if self.device.type != "cuda":
            return plain, f"the device is {self.device.type}"
        if not self.spec.signature_bytes:
            return plain, "the model compares no signatures"
        try:
            from serving.engine.devices.tier_kernel import open_tier_kernel
        except ImportError as error:
            return plain, f"Triton is missing: {error}"
        kernel, why = open_tier_kernel(self.spec, self._field(self._packed_R.view(torch.uint8), "signature"))
        return kernel or plain, why


_TORCH_DTYPES = {"e": torch.float16, "f": torch.float32, "i": torch.int32, "B": torch.uint8}


def device_row(layout: RowLayout) -> np.dtype[Any]:
    """A row with each column at a multiple of its element's size, as torch reads it."""
    return np.dtype(layout.dtype.descr, align=True)
