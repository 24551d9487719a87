"""Checks, on the network itself, the split that the whole design rests on: the user half reads no candidate, and the item half reads no user.

A user half that read a candidate would have to run once per candidate, or be wrong for all but one. Without this check, only wrong answers would show it.
The joint part runs first, so that candidates which it stored anywhere (an attribute, a closure, a global) are found when the user half reads them.
Source: request-centric inference ("two-tower separation must be clean").
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from schemas.errors import Misconfigured
from schemas.model.inputs import CandidateRows, FeatureTensors, UserInputs, map_tensors
from schemas.model.item_network import EncodedRows
from schemas.model.random_inputs import CANDIDATES, SEED, USERS, draw_block, draw_candidates, draw_ranker_items, draw_users

CANDIDATE, USER = "candidate", "user"


class _Follow(TorchFunctionMode):
    """Marks every result that is computed from marked tensors, by side. After `refuse(side, ...)`, reading one of that side raises Misconfigured."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self._names = {id(module): name or "network" for name, module in network.named_modules()}
        self._running: list[str] = []
        self._marked: dict[int, tuple[frozenset[str], Tensor]] = {}  # with the tensor itself: an id belongs to it only while it lives
        self._refused, self._part = "", ""

    def mark(self, value: Any, *sides: str) -> Any:
        """Every tensor of a value is of these sides too."""
        for tensor in _tensors(value):
            self._marked[id(tensor)] = self._sides(tensor).union(sides), tensor
        return value

    def _sides(self, value: Any) -> frozenset[str]:
        found = [self._marked[id(tensor)][0] for tensor in _tensors(value) if id(tensor) in self._marked]
        return frozenset().union(*found)

    def refuse(self, side: str, part: str) -> None:
        """From now on `part` computes, which must not touch this side ("" = nothing is refused)."""
        self._refused, self._part = side, part

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module begins."""
        self._running.append(self._names.get(id(module), type(module).__name__))

    def leave(self, *_: Any) -> None:
        """It ended."""
        self._running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sides = self._sides((args, kwargs))
        if self._refused in sides:
            where = self._running[-1] if self._running else "network"
            raise Misconfigured(
                "split_broken",
                f"{where} belongs to the {self._part} part and reads a {self._refused} tensor (in {getattr(func, '__name__', func)}); "
                "the parts of user and item are computed before they meet: move it into the joint part",
            )
        result = func(*args, **kwargs)
        return self.mark(result, *sides) if sides else result


def _check_ranker(ranker: Any, follow: _Follow, users: UserInputs, candidates: CandidateRows, rng: np.random.Generator) -> None:
    """The prefix reads neither the suffix, nor the context, nor a candidate; a part that kept one of them is found when the prefix is made again."""
    history_BL, items_BC = (items.to(users.behaviours.kind_BL.device) for items in draw_ranker_items(ranker.spec, rng))
    kinds_BL, half = users.behaviours.kind_BL, history_BL.shape[1] // 2
    items_BC = follow.mark(items_BC, CANDIDATE)

    def prefix() -> Any:
        tokens = ranker.profile_token(users.profile), ranker.behaviour_tokens(history_BL[:, :half], kinds_BL[:, :half])
        return ranker.extend(torch.cat(tokens, 1))

    newer = follow.mark(ranker.behaviour_tokens(history_BL[:, half:], kinds_BL[:, half:]), CANDIDATE)
    before = ranker.extend(torch.cat([newer, ranker.context_token(candidates.context)], 1), prefix())
    logits_BCT = torch.zeros(*items_BC.shape, ranker.w_logits.in_features, device=items_BC.device)
    ranker.score(ranker.candidate_tokens(items_BC, logits_BCT), logits_BCT, before)
    follow.refuse(CANDIDATE, "prefix")
    prefix()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])


@torch.inference_mode()
def check_request_split(network: Any) -> None:
    """Raises Misconfigured (`split_broken`) with the module's name. `network`: an `AifNetwork`. Random numbers are NumPy's, so torch's stay as they were."""
    spec, rng = network.spec, np.random.default_rng(SEED)
    rows = USERS * CANDIDATES
    stored = EncodedRows(rng.standard_normal((rows, spec.width)).astype(np.float16), rng.random((rows, spec.bridges)).astype(np.float16))
    users, candidates = draw_users(spec, stored, rng), draw_candidates(spec, stored, rng)
    items = FeatureTensors.from_block(draw_block(spec.schema.item_half_inputs, rows, rng))
    device = next(network.parameters()).device

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    users, candidates, items = map_tensors(users, there), map_tensors(candidates, there), map_tensors(items, there)
    follow = _Follow(network)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products of four rows: on a busy machine waiting for other threads takes a hundred times longer
    hooks = register_module_forward_pre_hook(follow.enter), register_module_forward_hook(follow.leave, always_call=True)
    try:
        with follow:
            states = network.user_states(follow.mark(users, USER))
            network.joint_logits(states, follow.mark(candidates, CANDIDATE))
            follow.refuse(USER, "item")
            network.item_rows(items)
            follow.refuse(CANDIDATE, "user")
            network.user_states(users)
            if network.ranker is not None:
                follow.refuse("", "")
                _check_ranker(network.ranker, follow, users, candidates, rng)
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
