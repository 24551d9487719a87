"""Item rows as they are stored in an index, as the network reads them: candidates of call 2, items of a user's history.

Here: from structured arrays of a row layout (schemas/index/layout.py) to the inputs of inputs.py. Not here: reading rows, arithmetic.

Arrays: C candidates.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from schemas.ids import Id
from schemas.model.inputs import BehaviourRow, CandidateRows, encode_context
from schemas.model.spec import ModelSpec


def candidate_rows(spec: ModelSpec, rows_C: np.ndarray, context: Mapping[str, Any]) -> CandidateRows:
    """Structured rows as the head takes them (B = 1)."""
    count = len(rows_C)

    def column(name: str, width: int) -> torch.Tensor:
        values = rows_C[name].reshape(count, width) if width else np.zeros((count, 0), np.float32)
        return torch.from_numpy(values.copy())[None]

    return CandidateRows(
        vectors_BCD=column("vector", spec.width),
        bridge_BCN=column("bridge", spec.bridges),
        signatures_BCW=column("signature", spec.signature_bytes).to(torch.uint8),
        has_signature_BC=torch.from_numpy(rows_C["has_signature"] != 0)[None],
        category_BC=torch.from_numpy(rows_C["category"].astype(np.int64))[None],
        realtime_BCQ=column("realtime", len(spec.schema.realtime_features)),
        bid_BC=torch.from_numpy(rows_C["bid"].copy())[None],
        context=encode_context(spec, context),
    )


def behaviour_row(spec: ModelSpec, item: Id, kind: str, features: Mapping[str, Any], row: np.ndarray | None) -> BehaviourRow:
    """A behaviour with its item's row (a 0-d structured array); None: the item is gone from the version."""
    if row is None:
        return BehaviourRow(item, kind, features)
    signature = row["signature"].tobytes() if spec.signature_bytes and row["has_signature"] else None
    vector = np.atleast_1d(row["vector"]).astype(np.float32)
    return BehaviourRow(item, kind, features, int(row["category"]), vector, signature)
