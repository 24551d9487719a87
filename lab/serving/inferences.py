"""Inferences for the benches that load a server: prepared bodies with int64 inputs as raw bytes, and the target they are sent to."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lab.load import Target
from serving.core.infer_body import encode_infer_request
from serving.core.tensors import Tensor


def encode_inferences(url: str, head: Mapping[str, Any], requests: Iterable[Mapping[str, np.ndarray]]) -> tuple[Target, list[bytes]]:
    """One body for each of `requests`: its inputs by name. All must have the same sizes, because an HTTP header names the length of their JSON headers."""
    encoded = [encode_infer_request(head, [Tensor(name, "INT64", ids.shape, ids) for name, ids in one.items()]) for one in requests]
    (length,) = {length for _, length in encoded}
    target = Target(url, "/v2/models/prerank/infer", (("inference-header-content-length", str(length)),))
    return target, [body for body, _ in encoded]
