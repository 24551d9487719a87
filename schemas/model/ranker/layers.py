"""The ranker's layers: HSTU's, with sums over keys that simply add, so that a sequence can be computed in any pieces.

    x -> [u, v, q, k] = SiLU(LN(x) W_in)
    x -> x + (LN(attention) * u) W_out        attention = sum over the seen keys of SiLU(q . k / sqrt(d)) v / N

There is no softmax: a query takes one sum from earlier tokens (`Kv`) and one from tokens of its own piece. Positions are rotations of q
and k (RoPE): q . k depends on the distance alone, and a stored key never changes when the sequence grows.

All functions take leading dimensions `...` (of a batch).
Arrays: n tokens of the piece, m earlier tokens, D width, H heads, d = D / H, Y layers.
Source: HSTU (arXiv 2402.17152), eq. (1)-(3).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.model.ranker.spec import RankerSpec

_QUERIES = 128  # of a block: [H, 128, m] weights stay in the cache of a core; with 256, 300 candidates take a third longer
_ROTATION_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Kv:
    """Keys (rotated) and values of the tokens so far: [Y, ..., H, m, d] each."""

    keys: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        """m."""
        return self.keys.shape[-2]

    def part(self, first: int, end: int) -> "Kv":
        """The tokens from `first` to `end`, as views."""
        return Kv(self.keys[..., first:end, :], self.values[..., first:end, :])

    def put(self, first: int, newer: "Kv") -> None:
        """Writes tokens in place, from place `first` on. Joining pieces to a new whole each time took a quarter of a prefix's time."""
        self.keys[..., first : first + newer.tokens, :] = newer.keys
        self.values[..., first : first + newer.tokens, :] = newer.values


Own = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # (q, k, v) of a piece -> what its tokens take from the piece itself, before the division by N


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token takes from itself and from those before it."""
    return _weights(q, k).tril() @ v


def alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token takes from itself only: candidates never see each other."""
    return F.silu((q * k).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])) * v


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return F.silu((q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2))


Rotation = tuple[Tensor, Tensor]  # cosines and sines of the angles, [..., n, d / 2] each


def rotation_at(positions: Tensor, d: int, dtype: torch.dtype) -> Rotation:
    """The rotation of tokens at `positions` [..., n]: pair i turns by position * base^(-2 i / d). One for all layers, as they share positions."""
    half = d // 2
    speeds = _ROTATION_BASE ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[..., None].to(torch.float32) * speeds
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """RoPE: the pairs (i, i + d / 2) of x [..., n, d], rotated."""
    (cos, sin), (a, b) = rotation, x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def make_room(spec: RankerSpec, tokens: int, device: str = "cpu") -> Kv:
    """Keys and values of one sequence of so many tokens, to be written."""
    both = torch.empty(2, spec.layers, 1, spec.heads, tokens, spec.width // spec.heads, device=device)
    return Kv(both[0], both[1])


class Layers(nn.Module):
    """All layers. Layer norms have no weights of their own, because linear maps follow them."""

    def __init__(self, spec: RankerSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self.w_in = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(spec.layers))
        self.w_out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(spec.layers))

    def forward(self, x: Tensor, positions: Tensor, past: Kv | None, own: Own) -> Tensor:
        """The last layer's output of a piece [..., n, D] at `positions` [..., n] after the tokens of `past`."""
        rotation = self._rotation_at(x, positions)
        for y in range(self.spec.layers):
            x = self._attend(y, x, *self._project(y, x, rotation), past, own)
        return x

    def keys_values(self, x: Tensor, positions: Tensor, past: Kv | None, own: Own) -> Kv:
        """What later tokens read of a piece. The last layer's attention is not among it, so it is not computed."""
        keys, values, rotation = [], [], self._rotation_at(x, positions)
        for y in range(self.spec.layers):
            u, v, q, k = self._project(y, x, rotation)
            keys.append(k)
            values.append(v)
            if y + 1 < self.spec.layers:
                x = self._attend(y, x, u, v, q, k, past, own)
        return Kv(torch.stack(keys), torch.stack(values))

    def _rotation_at(self, x: Tensor, positions: Tensor) -> Rotation:
        return rotation_at(positions, self.spec.width // self.spec.heads, x.dtype)

    def _project(self, y: int, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(u [..., n, D]; v, q and k [..., H, n, d])."""
        width = self.spec.width
        u, v, qk = torch.split(F.silu(self.w_in[y](self._norm(x))), [width, width, 2 * width], -1)
        q, k = rotate(self._split(qk), rotation).chunk(2, -3)
        return u, self._split(v), q, k

    def _attend(self, y: int, x: Tensor, u: Tensor, v: Tensor, q: Tensor, k: Tensor, past: Kv | None, own: Own) -> Tensor:
        taken = own(q, k, v)
        if past is not None and past.tokens:
            taken = taken + self._take(q, past.keys[y].to(q.dtype), past.values[y].to(q.dtype))
        attended = (taken / self.spec.attention_norm).transpose(-2, -3).flatten(-2)
        return x + torch.as_tensor(self.w_out[y](self._norm(attended) * u))

    def masked(self, x: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
        """The specification: the last layer's output of all tokens [B, n, D] at once. positions [B, n]; allowed [B, 1, n, n] = query sees key."""

        def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (_weights(q, k) * allowed) @ v

        return torch.as_tensor(self(x, positions[:, None], None, own))

    @staticmethod
    def _take(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What queries take from earlier tokens, a block of queries at a time."""
        return torch.cat([_weights(block, keys) @ values for block in torch.split(q, _QUERIES, -2)], -2)

    def _norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.spec.width,))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.spec.width // self.spec.heads).transpose(-2, -3)
