"""Call 1 on a device of torch: a user's behaviours joined as tensors, the network's own user half, and the state that stays on the device.

Here: `join_behaviours` (equal to `build_user_inputs` on the same rows, without a Python object per behaviour), `DeviceUserState`, and the state of either kind
as tensors (`states_on`). Not here: the form of the CPU, which needs no torch (user_state.py), the user half itself (schemas/model/user_half.py).
A behaviour whose item is gone from the version keeps its hashed id, kind and features; its vector, category and signature are zeros (D1).

Arrays: L behaviours, D width, W signature bytes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_type_hints

import numpy as np
import torch
from torch import Tensor

from schemas.errors import RejectedInput
from schemas.features import Scope, encode_features
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import encode_item_buckets
from schemas.model.inputs import Behaviours, FeatureTensors, UserInputs, UserStates, map_tensors
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.history import features_of, find_slots, item_ids_of, kinds_of
from serving.engine.tables import Tables
from serving.engine.user_state import EngineUserState
from serving.engine.work import UserState, UserWork

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceUserState:
    """`UserState` of work.py. `tensors` are copies (B = 1), on the device of the scorer that made them."""

    version: int
    tensors: UserStates
    size_bytes: int
    behaviours: int
    behaviours_without_row: int
    cold: bool

    def named_arrays(self) -> dict[str, np.ndarray]:
        """What call 2 needs, by name."""
        return {name: tensor.cpu().contiguous().numpy() for name, tensor in _flatten(self.tensors)}


def states_on(state: UserState, device: torch.device) -> UserStates:
    """The tensors of a state on a device, whoever made it."""
    if isinstance(state, DeviceUserState):
        return state.tensors
    assert isinstance(state, EngineUserState)
    tensors = {name: torch.from_numpy(array.copy()).to(device) for name, array in state.named_arrays().items()}
    return _build(UserStates, tensors)


@torch.inference_mode()
def build_device_state(network: AifNetwork, version: int, tables: Tables, work: UserWork) -> DeviceUserState:
    """Call 1 of one user. Raises RejectedInput (`too_many_behaviours`, `bad_id`)."""
    if len(work.behaviours) > BEHAVIOURS_PER_USER_MAX:
        raise RejectedInput("too_many_behaviours", f"{len(work.behaviours)} behaviours, expected at most {BEHAVIOURS_PER_USER_MAX}")
    spec, device = network.spec, next(network.parameters()).device
    behaviours, missing = join_behaviours(spec, tables, work.behaviours)
    profile = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [work.profile]))
    inputs = map_tensors(UserInputs(profile, behaviours), lambda t: t.to(device))
    states = map_tensors(network.user_states(inputs), lambda t: t.clone())  # a view would keep a whole history alive
    size_bytes = sum(tensor.nbytes for _, tensor in _flatten(states))
    return DeviceUserState(version, states, size_bytes, len(work.behaviours), missing, not work.profile and not work.behaviours)


def join_behaviours(spec: ModelSpec, tables: Tables, events: Sequence[BehaviourEvent]) -> tuple[Behaviours, int]:
    """(histories with B = 1, how many behaviours have no row). No behaviours: one masked column."""
    rows = len(events)
    slots_L = np.concatenate([find_slots(tables, events), np.full(max(rows, 1) - rows, -1)])
    buckets_L, kind_L = np.zeros((2, len(slots_L)), np.int64)
    buckets_L[:rows] = encode_item_buckets(spec, list(item_ids_of(events)))
    kind_L[:rows] = kinds_of(spec, events)
    features = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.BEHAVIOUR), features_of(events) or [{}]))
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


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    for field in dataclasses.fields(value):  # type: ignore[arg-type] # what is no tensor is a dataclass
        yield from _flatten(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)


def _build(kind: type[T], tensors: Mapping[str, Tensor], path: str = "") -> T:
    if kind is Tensor:
        return tensors[path]  # type: ignore[return-value] # here T is Tensor
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type] # what is no tensor is a dataclass
    named = {field.name: f"{path}.{field.name}" if path else field.name for field in fields}
    return kind(**{name: _build(hints[name], tensors, at) for name, at in named.items()})
