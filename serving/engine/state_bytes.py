"""A user state as bytes and back: for a client that carries it between the two calls itself.

Here: the tensors of `EngineUserState`, by name, as safetensors. Not here: who may carry what, signatures, Base64 (serving/carried_state.py): bytes come
here only after they were found to be ours.
What call 1 folded for the compiled pass is left out: call 2 folds it again from the same tensors, to the same bits.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeVar, get_type_hints

import torch
from safetensors.torch import load, save
from torch import Tensor

from schemas.model.inputs import UserStates, map_tensors
from serving.engine.user_state import EngineUserState, count_bytes

T = TypeVar("T")
_ABOUT = "about"  # int64 [4]: version, behaviours, behaviours without a row, cold


def encode_state(state: EngineUserState) -> bytes:
    """The bytes of a state, from whatever device it is on."""
    about = torch.tensor([state.version, state.behaviours, state.behaviours_without_row, int(state.cold)])
    tensors = {name: tensor.cpu().contiguous() for name, tensor in _flatten(state.tensors)}
    return save({**tensors, _ABOUT: about})


def decode_state(raw: bytes, device: str = "cpu") -> EngineUserState:
    """What `encode_state` was given, on `device`. REQUIRES: bytes of `encode_state`."""
    found = load(raw)
    version, behaviours, missing, cold = found.pop(_ABOUT).tolist()
    # copies: the library's tensors lie anywhere in the bytes, and a product over other alignments may round otherwise
    states = map_tensors(_build(UserStates, found), lambda t: t.clone().to(device))
    return EngineUserState(version, states, None, count_bytes(states), behaviours, missing, bool(cold))


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        yield from _flatten(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)


def _build(kind: type[T], tensors: Mapping[str, Tensor], path: str = "") -> T:
    if kind is Tensor:
        return tensors[path]  # type: ignore[return-value]
    hints = get_type_hints(kind)
    named = {field.name: f"{path}.{field.name}" if path else field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _build(hints[name], tensors, at) for name, at in named.items()})
