"""What of call 2 no user changes: the first layer's weights of the joint inputs, the rest of the head, edges, real-time features.

Here: these as arrays for the compiled pass, made once per version. Not here: the user's part (folded_user.py), the pass (joint_pass.py).
Inputs of the first layer, X columns in this order; a part that the model does not have is missing (its place is -1):

    I [D] | w [N] | bea o I [D] | DIN [D] | DIN_P o I [D] | SIM_P o I [D] | tiers [2 tiers] | realtime

Arrays: X inputs, D width, N bridges, H widths of hidden layers, E edges.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from schemas.features import Kind
from schemas.model.embeddings import VALUE_ABS_MAX
from schemas.model.hamming import equal_bits_min
from schemas.model.head import Head
from schemas.model.head_split import product_weights, slice_weights
from serving.engine.panels import pack_panels, pad_columns, padded
from serving.engine.tier_counts import plan_limits
from serving.engine.vector_code import LANES


class VersionWeights(NamedTuple):
    """joint_panels = weights of the inputs after I and w; layers int64 [layers, 4] = (panels at, bias at, depth, padded width) in `rest`;
    at_* = first column of a part among the inputs; distance_max_E, masks_EP, low: see `Limits`; entry_of_category int32 = row of the user's
    tables by category, all zeros between two requests; realtime_*: numbers and rows of
    the real-time columns, as `RealtimeFeatures` orders them."""

    joint_panels: np.ndarray
    layers: np.ndarray
    rest: np.ndarray
    first_width: int
    inputs: int
    at_din: int
    at_sim: int
    at_tiers: int
    at_realtime: int
    distance_max_E: np.ndarray
    masks_EP: np.ndarray
    low: int
    entry_of_category: np.ndarray
    realtime_numeric: np.ndarray
    realtime_categorical: np.ndarray
    realtime_start: np.ndarray
    realtime_table: np.ndarray
    value_abs_max: float


@torch.inference_mode()
def fold_version(head: Head) -> VersionWeights:
    """The arrays of one version's head."""
    spec, weights = head.spec, slice_weights(head)
    parts = {"bea_x": product_weights(weights["bea_x"])}
    if spec.schema.multimodal:
        parts |= {"din": weights["din"], "din_x": product_weights(weights["din_x"])}
    if spec.schema.sim_category:
        parts["sim_x"] = product_weights(weights["sim_x"])
    parts |= {name: weights[name] for name in ("tiers", "realtime") if name in weights}
    at, places = spec.width + spec.bridges, {}
    for name, part in parts.items():
        places[name], at = at, at + part.shape[1]
    bits = spec.hash_bits if spec.schema.multimodal else 0
    limits = plan_limits(equal_bits_min(spec.tier_edges if bits else (), max(bits, 1)), bits)
    categories = spec.schema.item(spec.schema.sim_category).buckets if spec.schema.sim_category else 0
    layers, rest = _pack_layers(head)
    return VersionWeights(
        joint_panels=pack_panels(torch.cat([part.T for part in parts.values()]).numpy()),
        layers=layers,
        rest=rest,
        first_width=padded(head.first.out_features),
        inputs=at,
        at_din=places.get("din", -1),
        at_sim=places.get("sim_x", -1),
        at_tiers=places.get("tiers", -1),
        at_realtime=places["realtime"],
        distance_max_E=limits.distance_max_E,
        masks_EP=limits.masks_EP,
        low=limits.low,
        entry_of_category=np.zeros(categories + 1, np.int32),
        **_realtime(head),
    )


def _pack_layers(head: Head) -> tuple[np.ndarray, np.ndarray]:
    """The linear layers after the first (ReLU between them), side by side in one array."""
    linears = [module for module in head.rest.modules() if isinstance(module, nn.Linear)]
    layers, pieces, at = np.zeros((len(linears), 4), np.int64), [np.zeros(LANES, np.float32)], LANES
    for i, linear in enumerate(linears):
        panels = pack_panels(linear.weight.T.numpy())
        bias = pad_columns(linear.bias[None].numpy(), LANES)[0]
        layers[i] = at, at + panels.size, linear.in_features, len(bias)
        pieces += [panels, bias]
        at += panels.size + bias.size
    return layers, np.concatenate(pieces)


def _realtime(head: Head) -> dict[str, object]:
    """Which columns of `realtime` are numbers, which are rows of the table, and from where: the order of `RealtimeFeatures`."""
    features, table = head.spec.schema.realtime_features, head.realtime.table
    categorical = [i for i, feature in enumerate(features) if feature.kind is Kind.CATEGORICAL]
    starts = [sum(features[j].buckets for j in categorical[:i]) for i in range(len(categorical))]
    return {
        "realtime_numeric": np.array([i for i, feature in enumerate(features) if feature.kind is Kind.NUMERIC], np.int64),
        "realtime_categorical": np.array(categorical, np.int64),
        "realtime_start": np.array(starts, np.int64),
        "realtime_table": np.zeros((0, 0), np.float32) if table is None else table.numpy().copy(),
        "value_abs_max": float(VALUE_ABS_MAX),
    }
