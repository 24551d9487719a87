"""The rows of the paper's Table 4 as scorers for the engine: the sequential base, and the base with one part of AIF each.

    cold        raw item features through an embedding table, the profile and the mean of the latest behaviours, all after the candidates are known
    async       Eq. 1-4 ahead of time: the item's vector instead of its raw features, the user's vectors from call 1
    sim         cold, and the sub-sequence of the candidate's category, fetched from a remote store and parsed after the candidates are known
    sim_cached  the sub-sequences of all categories of the user, fetched and parsed in call 1
    bea         cold, and w V with V from call 1
    long        cold, and DIN and SimTier by products of the multimodal embeddings
    long_lsh    cold, and DIN and SimTier by signatures, with the sums of call 1
    aif         the engine's own scorer with all of AIF

All rows are computed from the same features. In `async` and `aif` an item's raw features went into its vector nearline; in the others they are read at
ranking time. Three simplifications favour the base. Raw features lie in memory next to the index, where a sequential system asks a feature service. They
are gathered and multiplied by the same compiled code as in AIF. Its user side is computed once per request and not once per mini-batch.

Arrays: C candidates, L behaviours, D width, H first hidden width, K bits, M multimodal width, Q raw columns, R rows, E edges.
Source: AIF, Table 4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lab.serving.table4_pass import Places, score_row
from lab.serving.world import RankWorld
from schemas.kernels.float32_code import LANES, SIGN_CHUNK
from schemas.kernels.products import pack_panels, pad_columns
from serving.engine.call_one.history import HistorySums, join_history
from serving.engine.call_two.joint_pass import RequestUser, Scratch, build_sign_table
from serving.engine.call_two.tier_counts import Arranged, arrange_behaviours
from serving.engine.call_two.version_weights import VersionWeights, product_weights, slice_first_layer
from serving.engine.devices.cpu import CpuScorer
from serving.engine.devices.workers import WORKERS
from serving.engine.tables.tables import Columns
from serving.engine.work import UserState, UserWork

MINI_BATCH = 1_000  # candidates; the paper's example
CATEGORICAL, NUMERIC, BUCKETS, EMBEDDING = 24, 16, 200, 8  # the base's raw features, without the multimodal embedding
NO_SIGNATURES = np.zeros((0, 1), np.uint8)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its parts, and whether its user half is computed in call 1 (`ahead`). `paper`: avgRT, p99RT, maxQPS in %; `columns`: of the index, beyond
    the base's."""

    name: str
    parts: frozenset[str]
    ahead: bool
    paper: tuple[float, float, float]
    columns: tuple[str, ...] = ()

    @property
    def fetches(self) -> bool:
        """Whether it reads a remote store."""
        return "sim" in self.parts


def _row(name: str, parts: str, ahead: bool, paper: tuple[float, float, float], columns: str = "") -> Row:
    return Row(name, frozenset(parts.split()), ahead, paper, tuple(columns.split()))


ROWS = (
    _row("cold", "raw", False, (0.0, 0.0, 0.0)),
    _row("async", "item user", True, (0.02, 0.05, -0.75), "vector"),
    _row("sim", "raw sim", False, (30.43, 18.02, -19.23)),
    _row("sim_cached", "raw sim", True, (0.05, 0.03, -0.52)),
    _row("bea", "raw bea", True, (0.25, 0.50, -1.27), "bridge"),
    _row("long", "raw direct", False, (45.12, 51.80, -46.47)),
    _row("long_lsh", "raw hash", True, (0.03, 0.09, -4.58), "signature has_signature"),
    _row("aif", "aif", True, (0.31, 0.55, -6.72), "vector bridge signature has_signature"),
)


@dataclass(frozen=True, slots=True)
class RawFeatures:
    """The base's item features [R, Q] as float32: numbers and multimodal embedding first, then buckets; and the table of their embeddings."""

    rows_RQ: np.ndarray
    table: np.ndarray

    @property
    def numbers(self) -> int:
        """Columns that are numbers."""
        return self.rows_RQ.shape[1] - CATEGORICAL

    @property
    def inputs(self) -> int:
        """How many inputs of the first layer they become."""
        return self.numbers + CATEGORICAL * EMBEDDING

    def embeddings(self, rows: np.ndarray) -> np.ndarray:
        """[..., M] multimodal embeddings of unit length."""
        return np.ascontiguousarray(self.rows_RQ[rows, NUMERIC : self.numbers])


def draw_raw_features(world: RankWorld) -> RawFeatures:
    """Random features of every row."""
    rows = len(world.tables.columns["category"])
    embeddings = world.rng.standard_normal((rows, world.spec.schema.mm_width), np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    numbers = world.rng.standard_normal((rows, NUMERIC), np.float32)
    buckets = world.rng.integers(0, BUCKETS, (rows, CATEGORICAL)).astype(np.float32)
    table = world.rng.standard_normal((CATEGORICAL * BUCKETS, EMBEDDING), np.float32)
    return RawFeatures(np.concatenate([numbers, embeddings, buckets], axis=1), table)


@dataclass(frozen=True, slots=True)
class RowState:
    """A `UserState` (engine/work.py) of a row: the arrays that its user half computed, by name, and the user (`work`), for the computations of call 2.

    As a work's `base` it brings `fetched`, the sub-sequences from a remote store.
    """

    version: int
    work: UserWork
    made: Mapping[str, Any] = field(default_factory=dict)
    behaviours_without_row: int = 0
    cold: bool = False

    @property
    def behaviours(self) -> int:
        """The number of behaviours in the history."""
        return len(self.work.behaviours)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(one.size_bytes if isinstance(one, Arranged) else one.nbytes for one in self.made.values())


class RowScorer(CpuScorer):
    """The scorer of one row, over the bench's tables."""

    def __init__(self, row: Row, world: RankWorld, raw: RawFeatures, version: int) -> None:
        super().__init__(world.scorer.parameters, version, world.tables)
        self.version, self._raw, self._parts, self._half = version, raw, row.parts, self.call_one
        self._first_layer = slice_first_layer(self.parameters)
        self._places = self._plan_places()
        self._columns, self.weights = self._cut_columns(), self._fold_weights(world.rng)

    def _plan_places(self) -> Places:
        width, tiers = self.spec.width, 2 * self.spec.tiers
        sizes = {
            "raw": self._raw.inputs if "raw" in self._parts else 0,
            "item": width if "item" in self._parts else 0,
            "bea": width if "bea" in self._parts else 0,
            "din": width if "hash" in self._parts else 0,
            "tiers": tiers if "hash" in self._parts else 0,
            "given": width + tiers if "direct" in self._parts else 0,
            "sim": width if "sim" in self._parts else 0,
        }
        at, places = 0, dict[str, int]()
        for name, size in sizes.items():
            places[name], at = (at, at + size) if size else (-1, at)
        return Places(**places, inputs=at, width=width)

    def _cut_columns(self) -> Columns:
        """The version's columns; what the row does not read has no elements."""
        columns = self.call_one.columns
        if "raw" in self._parts:
            columns = columns._replace(realtime=self._raw.rows_RQ)
        read = {"vector": "item", "bridge": "bea", "signature": "hash"}
        return columns._replace(**{name: getattr(columns, name)[:, :0].copy() for name, part in read.items() if part not in self._parts})

    def _fold_weights(self, rng: np.random.Generator) -> VersionWeights:
        """The version's weights with a first layer of the row's own width."""
        first_XH = rng.standard_normal((self._places.inputs, self.weights.first_width)).astype(np.float32) / self._places.inputs
        numbers = self._raw.numbers
        return self.weights._replace(
            joint_panels=pack_panels(first_XH),
            inputs=self._places.inputs,
            realtime_numeric=np.arange(numbers),
            realtime_categorical=np.arange(numbers, numbers + CATEGORICAL),
            realtime_start=np.arange(CATEGORICAL) * BUCKETS,
            realtime_table=self._raw.table,
        )

    # --- the user ----------------------------------------------------------------------------------------------------------

    def user_state(self, work: UserWork) -> RowState:
        """The row's user half, by the engine's passes: in call 1, or as part of call 2 where the row is sequential."""
        made: dict[str, Any] = {}
        if self._parts & {"user", "bea"}:
            made |= self._make_vectors(work)
        if self._parts & {"sim", "hash", "direct"}:
            made |= self._make_long(work)
        return RowState(self.version, work, made)

    def _make_vectors(self, work: UserWork) -> dict[str, Any]:
        """The user's vectors of Eq. 1-3 and Algorithm 1, folded through the first layer where they meet an item's vector."""
        user_U, bridges_NP = self._half.make_vectors(work, self._read_latest(work).attended_AD)
        if "bea" in self._parts:
            return {"bea": pack_panels(bridges_NP)}
        weights, parameters = self._first_layer, self.parameters
        projected_D = parameters["head.project_user.weight"] @ user_U
        item_HD = weights["item"] + product_weights(weights["user_x"]) * projected_D
        base_H = weights["user"] @ user_U + parameters["head.first.bias"]
        return {"base": pad_columns(base_H[None], LANES), "panels": pack_panels(np.ascontiguousarray(item_HD.T))}

    def _make_long(self, work: UserWork) -> dict[str, Any]:
        """What the row needs of the whole history: sub-sequences, sums over signatures, or the projected history itself."""
        spec, half, length = self.spec, self._half, len(work.behaviours)
        fetched = work.base.made["fetched"] if isinstance(work.base, RowState) else work.behaviours
        history = join_history(half.weights, half.tables, fetched)
        if "sim" in self._parts:
            length = len(fetched)
            categories_G, means_GD, _ = half.sub_sequences_of(half.read(history, 0, 0, length, spec.sim_behaviours))
            return {"categories": categories_G, "sim": np.concatenate([np.zeros((1, spec.width), np.float32), means_GD])}
        if "hash" in self._parts:
            sums = half.read(history, 0, spec.simtier_behaviours, 0, 0)
            _, cross_KD, count = half.din_of(sums)
            signs_KF = pad_columns(cross_KD / (spec.hash_bits * np.maximum(count, 1)), SIGN_CHUNK)
            return {"signs": signs_KF, "arranged": arrange_behaviours(sums.signatures_SW[sums.has_S != 0])}
        projected_LD = half.read(history, length, 0, length, 0).attended_AD[:, : spec.width]
        return {"direct_LD": np.ascontiguousarray(projected_LD), "direct_LM": self._raw.embeddings(history.row_L)}

    def _read_latest(self, work: UserWork) -> HistorySums:
        """The latest behaviours, projected."""
        attended = self.spec.attended_behaviours
        history = join_history(self._half.weights, self._half.tables, work.behaviours[-attended:])
        return self._half.read(history, attended, 0, len(history.row_L), 0)

    def _base_row(self, work: UserWork) -> np.ndarray:
        """The base's user, the profile and the mean of the latest behaviours, through the first layer."""
        projected_AD = self._read_latest(work).attended_AD[:, : self.spec.width]
        _, profile_D = self._half.vectors.embed_profile(work)
        user_U = np.concatenate([profile_D, projected_AD.sum(axis=0) / max(1, len(projected_AD))])
        row_H = self._first_layer["user"][:, : len(user_U)] @ user_U + self.parameters["head.first.bias"]
        return pad_columns(row_H[None], LANES)

    # --- call 2 --------------------------------------------------------------------------------------------------------------

    def score(self, state: UserState, row_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2 of the row: (scores [C], probabilities [C, T])."""
        assert isinstance(state, RowState)
        made, weights = state.made, self.weights
        if "panels" in made:
            weights = weights._replace(joint_panels=made["panels"])
        user = self._row_user(made, made["base"] if "base" in made else self._base_row(state.work))
        given_CG = self._direct(made, row_C) if "direct" in self._parts else np.zeros((len(row_C), 0), np.float32)

        def compute(share: slice, scratch: Scratch, logits_CT: np.ndarray) -> None:
            score_row(self._columns, weights, user, self._places, row_C[share], given_CG[share], scratch, logits_CT)

        return self.score_in_shares(row_C, made.get("categories", np.zeros(0, np.int64)), compute)

    def _row_user(self, made: Mapping[str, Any], base_GH: np.ndarray) -> RequestUser:
        arranged = made.get("arranged") or arrange_behaviours(NO_SIGNATURES)
        signs_KF = made.get("signs", np.zeros((0, 0), np.float32))
        length = arranged.length
        return RequestUser(
            base_GH,
            np.zeros(base_GH.shape[1], np.float32),
            np.zeros(0, np.float32),
            made.get("bea", np.zeros(0, np.float32)),
            made.get("sim", np.zeros((1, 0), np.float32)),
            build_sign_table(signs_KF),
            np.zeros(signs_KF.shape[1], np.float32),
            arranged.planes_ZQBL,
            arranged.valid_ZL,
            arranged.shift_ZL,
            np.log1p(np.arange(length + 1, dtype=np.float32)),
            length,
            True,
        )

    @torch.inference_mode()
    def _direct(self, made: Mapping[str, Any], row_C: np.ndarray) -> np.ndarray:
        """DIN and SimTier's features from the embeddings themselves: [C, D + 2 tiers], in mini-batches on the engine's threads."""
        spec = self.spec
        behaviours_LM, values_LD = torch.from_numpy(made["direct_LM"]), torch.from_numpy(made["direct_LD"])
        edges = [math.cos(math.pi * (1 - edge)) for edge in spec.tier_edges[:-1]] + [1 - 1e-6]
        given_CG = np.empty((len(row_C), spec.width + 2 * spec.tiers), np.float32)

        def compute(first: int, end: int, _: int) -> None:
            for at in range(first, end, MINI_BATCH):
                chosen = slice(at, min(end, at + MINI_BATCH))
                items_CM = torch.from_numpy(self._raw.embeddings(row_C[chosen]))
                given_CG[chosen] = _join_direct(items_CM, behaviours_LM, values_LD, edges).numpy()

        WORKERS.run(compute, len(row_C))
        return given_CG


def _join_direct(items_CM: torch.Tensor, behaviours_LM: torch.Tensor, values_LD: torch.Tensor, edges: list[float]) -> torch.Tensor:
    """Cosines once for both: DIN is their product with the behaviours, SimTier counts them tier by tier."""
    length = len(values_LD)
    cosine_CL = items_CM @ behaviours_LM.T
    reached = [(cosine_CL >= edge).sum(dim=1) for edge in edges]
    above_CE = torch.stack([torch.full_like(reached[0], length), *reached, torch.zeros_like(reached[0])], dim=1)
    counts_CN = (above_CE[:, :-1] - above_CE[:, 1:]).float()
    return torch.cat([cosine_CL @ values_LD / length, counts_CN.log1p(), counts_CN / length], dim=1)
