"""The network without the rounding of fp32: what other forms of it are compared with.

Here: `InFloat64`. Not here: the network (network.py), who compares (serving/audit, the benches).
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """Inside, every torch function gets its floating-point arguments in fp64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_widen(args), **_widen(kwargs or {}))


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor.double(value) if value.dtype in (torch.float16, torch.float32) else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widen, value))
    return {name: _widen(one) for name, one in value.items()} if isinstance(value, dict) else value
