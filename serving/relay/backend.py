"""The only door to torch of a server: the ranker of one version on one device, and the memory of KV pages there.

Here: tokens to keys and values, candidates to logits, pages read and written. Not here: when (relay.py), who holds which page (kv_pool.py).
Keys and values are stored in fp16 and computed in fp32. A thread that computes calls `limit_threads` first: two OpenMP threads on a busy machine wait for
each other and take ten times as long as one.

Arrays: n tokens, C candidates, T tasks, Y layers, H heads, d width of a head, G pages.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from schemas.features import Scope, encode_features
from schemas.model.inputs import FeatureTensors, encode_context
from schemas.model.parameters import Parameters
from schemas.model.ranker.layers import Kv, make_room
from schemas.model.ranker.ranker import Ranker
from schemas.model.ranker.spec import RankerSpec, encode_items
from serving.relay.window import Window

_PREFIX = "ranker."


def limit_threads() -> None:
    """Lets torch compute in the calling thread alone."""
    torch.set_num_threads(1)


class PageMemory:
    """`pages` of `elements` fp16 numbers each. A freed page is filled with NaN, so that whoever still reads it gives no plausible answer."""

    def __init__(self, pages: int, elements: int, device: str) -> None:
        self.elements = elements
        self._storage_GE = torch.full((pages, elements), torch.nan, dtype=torch.float16, device=device)

    def tokens(self, spec: RankerSpec) -> int:
        """Tokens of one page."""
        return self.elements // (2 * spec.layers * spec.width)

    def write(self, spec: RankerSpec, pages: Sequence[int], first: int, kv: Kv) -> None:
        """Stores the keys and values of tokens from place `first` on."""
        room, at = self.tokens(spec), 0
        while at < kv.tokens:
            page, place = divmod(first + at, room)
            count = min(room - place, kv.tokens - at)
            view = self._view(spec, self._storage_GE[pages[page]])
            view[:, 0, :, place : place + count] = kv.keys[:, 0, :, at : at + count]
            view[:, 1, :, place : place + count] = kv.values[:, 0, :, at : at + count]
            at += count

    def read(self, spec: RankerSpec, pages: Sequence[int], count: int, into: Kv) -> None:
        """Writes the first `count` tokens into `into`, in fp32."""
        room = self.tokens(spec)
        for number, first in enumerate(range(0, count, room)):
            view = self._view(spec, self._storage_GE[pages[number]])[..., : count - first, :]
            into.put(first, Kv(view[:, 0][:, None], view[:, 1][:, None]))

    def poison(self, pages: Sequence[int]) -> None:
        """Fills freed pages with NaN."""
        self._storage_GE[list(pages)] = torch.nan

    def save(self, pages: Sequence[int]) -> torch.Tensor:
        """A copy of pages in host memory."""
        return self._storage_GE[list(pages)].cpu()

    def restore(self, pages: Sequence[int], saved: torch.Tensor) -> None:
        """Writes a copy back into pages."""
        self._storage_GE[list(pages)] = saved.to(self._storage_GE.device)

    def _view(self, spec: RankerSpec, pages: torch.Tensor) -> torch.Tensor:
        """[..., Y, 2, H, tokens, d]."""
        room = self.tokens(spec)
        used = pages[..., : room * 2 * spec.layers * spec.width]
        return used.view(*pages.shape[:-1], spec.layers, 2, spec.heads, room, spec.width // spec.heads)


class RankerBackend:
    """The ranker of one version. Computes for one user at a time."""

    def __init__(self, parameters: Parameters, device: str) -> None:
        self.spec = parameters.spec
        assert self.spec.ranker is not None
        self.ranker, self._device = self.spec.ranker, device
        with torch.device("meta"):
            network = Ranker(self.spec)
        arrays = {name.removeprefix(_PREFIX): array for name, array in parameters.arrays.items() if name.startswith(_PREFIX)}
        network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
        self._network = network.eval().to(device)

    @torch.inference_mode()
    def open(self, window: Window, memory: PageMemory, pages: Sequence[int], done: int) -> Kv:
        """Room for the window's tokens and the request's context, of which the first `done` are read from pages."""
        kv = make_room(self.ranker, window.tokens + 1, self._device)
        memory.read(self.ranker, pages, done, kv)
        return kv

    @torch.inference_mode()
    def extend(self, window: Window, done: int, end: int, kv: Kv) -> None:
        """Writes keys and values of the window's tokens from `done` to `end` (token 0 is the profile) behind the first `done`."""
        first, last = max(0, done - 1), max(0, end - 1)
        items, kinds = (torch.from_numpy(rows[first:last])[None].to(self._device) for rows in (window.items_n, window.kinds_n))
        tokens = self._network.behaviour_tokens(items, kinds)
        if done == 0:
            block = FeatureTensors.from_block(encode_features(self.spec.schema.of(Scope.USER), [window.profile]))
            tokens = torch.cat([self._network.profile_token(_to(block, self._device)), tokens], 1)
        kv.put(done, self._network.extend(tokens, kv.part(0, done)))

    @torch.inference_mode()
    def score(self, kv: Kv, context: Any, item_ids: Sequence[Any], aif_logits_CT: np.ndarray) -> np.ndarray:
        """Final logits float32 [C, T] of candidates after the window's tokens in `kv` and the request's context, which is written behind them."""
        network, tokens = self._network, kv.tokens - 1
        kv.put(tokens, network.extend(network.context_token(_to(encode_context(self.spec, context), self._device)), kv.part(0, tokens)))
        items = torch.from_numpy(encode_items(self.ranker, item_ids))[None].to(self._device)
        logits = torch.from_numpy(aif_logits_CT)[None].to(self._device)
        return network.score(network.candidate_tokens(items, logits), logits, kv)[0].cpu().numpy()


def _to(features: FeatureTensors, device: str) -> FeatureTensors:
    return FeatureTensors(*(t.to(device) for t in (features.categorical, features.numeric, features.bags, features.embeddings)))
