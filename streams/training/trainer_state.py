"""The state from which a killed trainer continues exactly: weights, moments of the optimiser, the generator, and how far the log was read, in one file.

Here: `TrainerState` to bytes and back, and its file. Not here: the loop that makes and takes it (trainer.py), topics.
Invariants: a file is there whole or not at all, so weights and offsets never part. It ends with its SHA-256, so a flipped bit is never taken for a weight.
Nothing that is read can run code (safetensors and JSON).
A resumed run gives the weights of the uninterrupted one, bit for bit, on one machine with the same threads.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from schemas.errors import Corrupted, Unavailable

FORMAT = 1
_METADATA = "aif-trainer"
_LOSSES = "losses"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class TrainerState:
    """`weights` by the network's names; `moments` of the optimiser by parameter number and name; `losses` [step, number of losses] so far; `generator` as
    numpy gives it. The caller's `about` describes the run and the offsets at which its data ended. The `soup` is that of the fits before this one (soup.py),
    empty where there is one fit alone."""

    step: int
    weights: Mapping[str, Tensor]
    moments: Mapping[int, Mapping[str, Tensor]]
    generator: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)
    losses: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    soup: Mapping[str, Tensor] = field(default_factory=dict)


def encode_state(state: TrainerState) -> bytes:
    """The bytes of the file: safetensors, then their SHA-256."""
    tensors = {f"w/{name}": t.detach().contiguous() for name, t in state.weights.items()}
    for number, named in state.moments.items():
        tensors |= {f"m/{number}/{name}": t.detach().contiguous() for name, t in named.items()}
    tensors |= {f"s/{name}": t.detach().contiguous() for name, t in state.soup.items()}
    tensors[_LOSSES] = torch.from_numpy(np.ascontiguousarray(state.losses, np.float64))
    told = {"format": FORMAT, "step": state.step, "generator": state.generator, "about": state.about}
    data = safetensors.torch.save(tensors, {_METADATA: json.dumps(told)})
    return data + hashlib.sha256(data).digest()


def decode_state(data: bytes, name: str = "the state") -> TrainerState:
    """The inverse of `encode_state`. Raises Corrupted (`bad_trainer_state`), whose message names the file as `name`."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() == digest:
        data = body  # else it was damaged, or written before states had a digest: then its length is right without one
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        told = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_METADATA])
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']}, expected {FORMAT}")
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("m/"):
                _, number, moment = key.split("/")
                moments.setdefault(int(number), {})[moment] = tensor
        weights = {key.removeprefix("w/"): tensor for key, tensor in tensors.items() if key.startswith("w/")}
        soup = {key.removeprefix("s/"): tensor for key, tensor in tensors.items() if key.startswith("s/")}
        return TrainerState(int(told["step"]), weights, moments, told["generator"], told["about"], tensors[_LOSSES].numpy(), soup)
    except (KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise Corrupted(
            "bad_trainer_state",
            f"{name} is damaged or no trainer's state: {error}; name another file, or delete this one to start from the beginning",
        ) from error


@dataclass(frozen=True)
class StateFile:
    """Where a fit keeps its state. `every_steps` bounds the loss of a kill; `about` is written with it."""

    path: Path
    every_steps: int = 100
    about: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> TrainerState | None:
        """The state, None if absent yet. Raises Corrupted."""
        return decode_state(self.path.read_bytes(), str(self.path)) if self.path.exists() else None

    def write(self, state: TrainerState) -> None:
        """The new state in the place of the old, whole or not at all. Raises Unavailable (`state_not_kept`) where the disk does not take it."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")  # one name: what a killed trainer left is written over
        try:
            with temporary.open("wb") as file:
                file.write(encode_state(state))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise Unavailable(
                "state_not_kept", f"{self.path}: {error}; the last state is untouched, and training resumes from it"
            ) from error
