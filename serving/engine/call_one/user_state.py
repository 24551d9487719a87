"""A user's state, from its arrays to its bytes.

    HalfArrays        the user half: what call 1 computes from profile and history
    HeadSplit         the weights of the head that read the user alone
    HeadTables        the products of both, which call 2 reads: made once, so that rankings need not
    EngineUserState   all of it, kept between the calls
    encode_state      the arrays as bytes, for a client that carries them. Call 2 makes the same tables of them, bit for bit

With M_x the weights of a product segment, its sum column included (`product_weights`), the exact split of the first layer, segment by segment, is

    user, context    constant:  u W_u + c W_c + b
    item, user_x     I (W_i + M_u o (u P_u))                  the user's product costs nothing per candidate
    bea, bea_x       w (V W_b)  +  ((w (V P_b)) o I) M_b
    din, din_x       DIN W_d  +  ((DIN P_d) o I) M_d          DIN = s T + offset of Eq. 8 by its sums (schemas/model/din.py), times the gain
    sim, sim_x       look-ups of [mean; log count] W_s  +  ((look-up of mean P_s) o I) M_s
    tiers, realtime  as they are

and that of a candidate then

    base_GH[category] + context  +  [ I | w ] user_panels  +  [ (w bea) o I | DIN | DIN_P o I | sim_GD[category] o I | tiers | realtime ] version

with [ DIN | DIN_P ] = s signs_KF + sign_start_F, and `version` the weights that no user changes (call_two/version_weights.py).

Arrays: G categories of the user (in tables: first, none), D width, U = 3 D, P bridge width, N bridges; H first hidden width (padded); K bits, W signature
bytes, F = 2 D columns of signs (padded), S behaviours for SimTier.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load, save

from schemas.kernels.float32_code import LANES, SIGN_CHUNK
from schemas.kernels.products import pack_panels, pad_columns, padded
from schemas.kernels.vector_blocks import aligned
from schemas.model.parameters import Parameters
from schemas.users import BehaviourEvent
from serving.engine.call_two.tier_counts import Arranged, arrange_behaviours
from serving.engine.call_two.version_weights import product_weights, slice_first_layer


@dataclass(frozen=True, slots=True)
class HalfArrays:
    """`UserStates` of schemas/model/inputs.py for one user: user_U [3 D]; V of Algorithm 1; DIN's sums (count float32 []); SimTier's signatures with a bool
    mask; the sub-sequences, G >= 1."""

    user_U: np.ndarray
    bridges_NP: np.ndarray
    din_sum_D: np.ndarray
    din_cross_KD: np.ndarray
    din_count: np.ndarray
    simtier_SW: np.ndarray
    simtier_mask_S: np.ndarray
    categories_G: np.ndarray
    means_GD: np.ndarray
    log_counts_G: np.ndarray

    @property
    def size_bytes(self) -> int:
        """Memory they hold."""
        return sum(getattr(self, field.name).nbytes for field in dataclasses.fields(self))

    def named(self) -> dict[str, np.ndarray]:
        """As a batch of one, by the names of `UserStates`."""
        return {name: getattr(self, field)[None] for field, name in _NAMES.items()}


_NAMES = {
    "user_U": "user_BU",
    "bridges_NP": "bridges_BNP",
    "din_sum_D": "din.sum_BD",
    "din_cross_KD": "din.cross_BKD",
    "din_count": "din.count_B",
    "simtier_SW": "simtier_BSW",
    "simtier_mask_S": "simtier_mask_BS",
    "categories_G": "sim.categories_BG",
    "means_GD": "sim.means_BGD",
    "log_counts_G": "sim.log_counts_BG",
}


def arrays_of(named: Mapping[str, np.ndarray]) -> HalfArrays:
    """The inverse of `HalfArrays.named`; copies."""
    return HalfArrays(**{field: named[name][0].copy() for field, name in _NAMES.items()})


class HeadTables(NamedTuple):
    """The user's part of the head, by the split above: what call 2 reads of a user. Floats are float32.

    categories_G int64 are the categories of rows 1, 2, ... of base_GH and sim_GD. `behaviours`: SimTier's signatures.
    """

    categories_G: np.ndarray
    base_GH: np.ndarray
    user_panels: np.ndarray
    bea_panels: np.ndarray
    sim_GD: np.ndarray
    signs_KF: np.ndarray
    sign_start_F: np.ndarray
    behaviours: Arranged

    @property
    def size_bytes(self) -> int:
        """Memory they hold."""
        return sum(array.nbytes for array in self[:-1]) + self.behaviours.size_bytes


class HeadSplit:
    """The head's weights that multiply a user's values, of one version: of a segment [width, H], of a projection [width, D]."""

    def __init__(self, parameters: Parameters) -> None:
        self.spec, weights = parameters.spec, slice_first_layer(parameters)

        def transposed(name: str) -> np.ndarray:
            return np.ascontiguousarray(parameters[name].T)

        self._user_UH, self._bias_1H = _widened(weights["user"]), pad_columns(parameters["head.first.bias"][None], LANES)
        self._item_DH, self._user_x_DH = _widened(weights["item"]), _widened(product_weights(weights["user_x"]))
        self._project_user_UD = transposed("head.project_user.weight")
        self._bea_PH, self._project_bea_PD = _widened(weights["bea"]), transposed("head.project_bea.weight")
        if self.spec.schema.multimodal:
            self._gain, self._project_din_DD = parameters["head.din_gain"], transposed("head.project_din.weight")
        if self.spec.schema.sim_category:
            self._sim_DH, self._project_sim_DD = _widened(weights["sim"]), transposed("head.project_sim.weight")
        self._context_FH = _widened(weights["context"])

    def tables(self, arrays: HalfArrays) -> HeadTables:
        """The tables of one user. Cost: (N P + G D) H + K D D products."""
        user_x_D = arrays.user_U @ self._project_user_UD
        user_XH = np.concatenate([self._item_DH + self._user_x_DH * user_x_D[:, None], arrays.bridges_NP @ self._bea_PH])
        base_GH, sim_GD = self._category_tables(arrays)
        panels = pack_panels(user_XH), pack_panels(arrays.bridges_NP @ self._project_bea_PD)
        behaviours = arrange_behaviours(arrays.simtier_SW[arrays.simtier_mask_S])
        return HeadTables(arrays.categories_G, base_GH, *panels, sim_GD, *self._sign_tables(arrays), behaviours)

    def context_row(self, context_F: np.ndarray) -> np.ndarray:
        """[H]: the part of the request's context."""
        return np.asarray(context_F @ self._context_FH)

    def _category_tables(self, arrays: HalfArrays) -> tuple[np.ndarray, np.ndarray]:
        """(base_GH, sim_GD): first the row for categories that are not in the history, then one row per category of the history."""
        base_1H = arrays.user_U @ self._user_UH + self._bias_1H
        if not self.spec.schema.sim_category:
            return base_1H, np.zeros((1, 0), np.float32)
        sub_GX = np.concatenate([arrays.means_GD, arrays.log_counts_G[:, None]], axis=1)
        none_1D = np.zeros((1, self.spec.width), np.float32)
        return np.concatenate([base_1H, sub_GX @ self._sim_DH + base_1H]), np.concatenate([none_1D, arrays.means_GD @ self._project_sim_DD])

    def _sign_tables(self, arrays: HalfArrays) -> tuple[np.ndarray, np.ndarray]:
        """DIN with its gain, and its projection, as sums of signs: rows [K, F] and start [F] (schemas/model/din.py, `din_affine`)."""
        if not self.spec.schema.multimodal:
            return np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
        (bits, width), centred = arrays.din_cross_KD.shape, self.spec.din == "centred"
        sums_F = padded(2 * width, SIGN_CHUNK)
        signs_KF, start_F = aligned((bits, sums_F)), aligned((sums_F,))
        rows = bits * np.maximum(arrays.din_count, np.float32(1)) if centred else np.float32(2 * bits)
        signs_KF[:, :width] = arrays.din_cross_KD * (self._gain / rows)
        signs_KF[:, width : 2 * width] = signs_KF[:, :width] @ self._project_din_DD
        if not centred:
            start_F[:width] = arrays.din_sum_D * (self._gain / np.float32(2))
            start_F[width : 2 * width] = start_F[:width] @ self._project_din_DD
        return signs_KF, start_F


def _widened(segment_HE: np.ndarray) -> np.ndarray:
    """[E, H padded]: a segment's weights as they are multiplied from the left."""
    return pad_columns(np.ascontiguousarray(segment_HE.T), LANES)


_ABOUT = "about"  # int64 [4]: version, behaviours, behaviours without a row, cold


@dataclass(frozen=True, slots=True)
class EngineUserState:
    """`UserState` of work.py. `tables`: None in a state that a client carried, for which call 2 makes them."""

    version: int
    arrays: HalfArrays
    tables: HeadTables | None
    behaviours: int
    behaviours_without_row: int
    cold: bool
    newest: BehaviourEvent | None = None  # the last behaviour in it
    extensions: int = 0  # how often it was extended since it was made from scratch

    def without_long(self) -> "EngineUserState | None":
        """The same user as if no behaviour had a signature, so that a ranking leaves out the long history: DIN and SimTier. None if none has one."""
        arrays, tables = self.arrays, self.tables
        if not arrays.din_count > 0:
            return None
        gone = {name: np.zeros_like(getattr(arrays, name)) for name in ("din_sum_D", "din_cross_KD", "din_count", "simtier_mask_S")}
        if tables is not None:
            signs_KF, start_F = (np.zeros_like(one) for one in (tables.signs_KF, tables.sign_start_F))
            tables = tables._replace(signs_KF=signs_KF, sign_start_F=start_F, behaviours=arrange_behaviours(arrays.simtier_SW[:0]))
        return dataclasses.replace(self, arrays=dataclasses.replace(arrays, **gone), tables=tables)

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.arrays.size_bytes + (self.tables.size_bytes if self.tables else 0)


def encode_state(state: EngineUserState) -> bytes:
    """The bytes of a state."""
    about = np.array([state.version, state.behaviours, state.behaviours_without_row, int(state.cold)], np.int64)
    return save({name: np.ascontiguousarray(array) for name, array in state.arrays.named().items()} | {_ABOUT: about})


def decode_state(raw: bytes) -> EngineUserState:
    """The inverse of `encode_state`, as a state in memory. REQUIRES: bytes of `encode_state`."""
    found = load(raw)
    version, behaviours, missing, cold = found.pop(_ABOUT).tolist()
    return EngineUserState(version, arrays_of(found), None, behaviours, missing, bool(cold))
