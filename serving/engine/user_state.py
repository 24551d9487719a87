"""Call 1: a user's behaviours joined with their items' rows in one version, and the state that call 2 ranks with.

Here: the join from slot columns (equal to `build_user_inputs` on the same rows, without a Python object per behaviour) and the state.
Not here: the user half itself (schemas/model/user_half.py), the fold of histories (schemas/users.py).
A behaviour whose item is gone from the version keeps its hashed id, kind and features; its vector, category and signature are zeros (D1).

Arrays: L behaviours, D width, W signature bytes.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from schemas.errors import RejectedInput
from schemas.features import Scope, encode_features
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.inputs import Behaviours, FeatureTensors, UserInputs, UserStates, encode_item_buckets, encode_kind, map_tensors
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.changes import encode_ids
from serving.engine.folded_user import FoldedUser, fold_user
from serving.engine.tables import Tables
from serving.engine.work import UserWork


@dataclass(frozen=True, slots=True)
class EngineUserState:
    """`UserState` of work.py. `tensors` are copies (B = 1), on the device of the scorer that made them; `folded` = what the CPU scorer made of
    them for call 2 (None elsewhere, and in a state that was carried here: then call 2 makes it)."""

    version: int
    tensors: UserStates
    folded: FoldedUser | None
    size_bytes: int
    behaviours: int
    behaviours_without_row: int
    cold: bool
    newest: BehaviourEvent | None = None  # the last behaviour in it
    extensions: int = 0  # how often it was gone on from instead of made anew


def join_behaviours(spec: ModelSpec, tables: Tables, events: Sequence[BehaviourEvent]) -> tuple[Behaviours, int]:
    """(histories with B = 1, how many behaviours have no row). No behaviours: one masked column."""
    rows = len(events)
    slots_L = tables.find(encode_ids([e.item_id for e in events], tables.layout.id_kind)) if rows else np.zeros(0, np.int64)
    slots_L = np.concatenate([slots_L, np.full(max(rows, 1) - rows, -1)])
    kinds = {kind: encode_kind(spec, kind) for kind in {e.kind for e in events}}
    buckets_L, kind_L = np.zeros((2, len(slots_L)), np.int64)
    buckets_L[:rows] = encode_item_buckets(spec, [e.item_id for e in events])
    kind_L[:rows] = [kinds[e.kind] for e in events]
    features = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.BEHAVIOUR), [e.features for e in events] or [{}]))
    arrays = (*_rows_of(spec, tables, slots_L), np.arange(len(slots_L)) < rows)
    head = (torch.from_numpy(buckets_L)[None], torch.from_numpy(kind_L)[None], map_tensors(features, lambda t: t[None]))
    missing = int((slots_L[:rows] < 0).sum())
    return Behaviours(*head, *(torch.from_numpy(a)[None] for a in arrays)), missing


def _rows_of(spec: ModelSpec, tables: Tables, slots_L: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(category, vector, signature, has_signature) of each behaviour, zeros where its row is gone."""
    known_L, columns = slots_L >= 0, tables.columns
    slots = slots_L[known_L]
    category_L = np.zeros(len(slots_L), np.int64)
    vectors_LD = np.zeros((len(slots_L), spec.width), np.float32)
    signatures_LW = np.zeros((len(slots_L), spec.signature_bytes), np.uint8)
    has_L = np.zeros(len(slots_L), bool)
    category_L[known_L] = columns["category"][slots]
    vectors_LD[known_L] = columns["vector"][slots].reshape(len(slots), spec.width)
    if spec.signature_bytes:
        has_L[known_L] = columns["has_signature"][slots] != 0
        signatures_LW[known_L] = columns["signature"][slots].reshape(len(slots), spec.signature_bytes)
        signatures_LW[~has_L] = 0
    return category_L, vectors_LD, signatures_LW, has_L


@torch.inference_mode()
def build_user_state(network: AifNetwork, version: int, tables: Tables, work: UserWork, folds: bool = False) -> EngineUserState:
    """Call 1 of one user; `folds`: for the compiled pass. Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
    if len(work.behaviours) > BEHAVIOURS_PER_USER_MAX:
        raise RejectedInput("too_many_behaviours", f"{len(work.behaviours)} behaviours, expected at most {BEHAVIOURS_PER_USER_MAX}")
    spec, device = network.spec, next(network.parameters()).device
    behaviours, missing = join_behaviours(spec, tables, work.behaviours)
    profile = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [work.profile]))
    inputs = map_tensors(UserInputs(profile, behaviours), lambda t: t.to(device))
    return keep_states(network, version, network.user_states(inputs), work, missing, folds)


def keep_states(
    network: AifNetwork, version: int, states: UserStates, work: UserWork, missing: int, folds: bool, extensions: int = 0
) -> EngineUserState:
    """Call 1's result as it is kept. `missing` = behaviours whose item has no row."""
    states = map_tensors(states, lambda t: t.clone())  # a view would keep a whole history alive
    folded = fold_user(network.head, states) if folds else None
    size_bytes = count_bytes(states) + (folded.size_bytes if folded else 0)
    cold, newest = not work.profile and not work.behaviours, work.behaviours[-1] if work.behaviours else None
    return EngineUserState(version, states, folded, size_bytes, len(work.behaviours), missing, cold, newest, extensions)


def count_bytes(value: object) -> int:
    """Memory of all tensors in a dataclass of them."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(count_bytes(getattr(value, f.name)) for f in dataclasses.fields(value))  # type: ignore[arg-type]
