"""Inferences for the benches that load a server: prepared bodies with inputs as raw bytes, and the target they are sent to."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lab.load import Target
from serving.core.infer_body import encode_infer_request
from serving.core.tensors import Tensor

Inputs = Mapping[str, np.ndarray | str]


def to_tensors(inputs: Inputs) -> list[Tensor]:
    """Inputs by name: arrays of int64, and texts."""
    return [
        Tensor(name, "BYTES", (1,), [one.encode()]) if isinstance(one, str) else Tensor(name, "INT64", one.shape, one)
        for name, one in inputs.items()
    ]


def encode_inferences(url: str, head: Mapping[str, Any], requests: Iterable[Inputs]) -> tuple[Target, list[bytes]]:
    """One body for each of `requests`. All must have the same sizes, because an HTTP header names the length of their JSON headers."""
    encoded = [encode_infer_request(head, to_tensors(one)) for one in requests]
    (length,) = {length for _, length in encoded}
    target = Target(url, "/v2/models/prerank/infer", (("inference-header-content-length", str(length)),))
    return target, [body for body, _ in encoded]
