"""The part of call 2 that is the same for all users: weights of the joint inputs, the rest of the head, tier edges, real-time features.

Inputs of the first layer, X columns in this order; a part that the model does not have is left out (its place is -1):

    I [D] | w [N] | bea o I [D] | realtime | DIN [D] | DIN_P o I [D] | tiers [2 tiers] | SIM_P o I [D]

The long history (DIN to tiers) and SIM are each left out of a block that has nothing of them.

Arrays: X inputs, D width, N bridges, H widths of hidden layers, E edges.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from schemas.kernels.products import pack_layers, pack_panels, padded
from schemas.kinds import Layout
from schemas.model.feature_places import VALUE_ABS_MAX
from schemas.model.lsh import equal_bits_min
from schemas.model.parameters import Parameters, segment_widths
from serving.engine.call_two.tier_counts import plan_limits


class VersionWeights(NamedTuple):
    """The head of one version, as the pass reads it.

    - joint_panels: weights of the inputs from bea o I to the tiers; sim_panels: of SIM_P o I
    - layers, rest: the other layers, as `pack_layers` returns them
    - at_*: first column of a part among the inputs, -1 = the model lacks it
    - distance_max_E, masks_EP: see `Limits`
    - entry_of_category: int32, row of the user's tables by category; all zeros between two requests
    - realtime_*: numbers and table rows of the real-time columns, in the order of `RealtimeFeatures`
    """

    joint_panels: np.ndarray
    sim_panels: np.ndarray
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
    entry_of_category: np.ndarray
    realtime_numeric: np.ndarray
    realtime_categorical: np.ndarray
    realtime_start: np.ndarray
    realtime_table: np.ndarray
    value_abs_max: float


def slice_first_layer(parameters: Parameters) -> dict[str, np.ndarray]:
    """The first layer's weights by segment: name -> [H, width of the segment]."""
    user, item = segment_widths(parameters.spec)
    ends, weight = itertools.accumulate([*user.values(), *item.values()]), parameters["head.first.weight"]
    return {name: weight[:, end - width : end] for (name, width), end in zip((user | item).items(), ends, strict=True)}


def product_weights(segment_HE: np.ndarray) -> np.ndarray:
    """M_x [H, D] of a product segment's weights [H, D + 1]: its sum column spread over the products (call_one/user_state.py)."""
    width = segment_HE.shape[1] - 1
    return segment_HE[:, :width] + segment_HE[:, width:] / np.float32(width**0.5)


def joint_parts(parameters: Parameters) -> dict[str, np.ndarray]:
    """The first layer's weights of the inputs after I and w, in their order: name -> [H, width of the part]."""
    spec, weights = parameters.spec, slice_first_layer(parameters)
    parts = {"bea_x": product_weights(weights["bea_x"]), "realtime": weights["realtime"]}
    if spec.schema.multimodal:
        parts |= {"din": weights["din"], "din_x": product_weights(weights["din_x"]), "tiers": weights["tiers"]}
    if spec.schema.sim_category:
        parts["sim_x"] = product_weights(weights["sim_x"])
    return parts


def read_version_weights(parameters: Parameters) -> VersionWeights:
    """The arrays of one version's head, as the pass reads them."""
    spec, parts = parameters.spec, joint_parts(parameters)
    at, places = spec.width + spec.bridges, {}
    for name, part in parts.items():
        places[name], at = at, at + part.shape[1]
    bits = spec.hash_bits if spec.schema.multimodal else 0
    limits = plan_limits(equal_bits_min(spec.tier_edges if bits else (), max(bits, 1)), bits)
    categories = spec.schema.item(spec.schema.sim_category).buckets if spec.schema.sim_category else 0
    layers, rest = pack_layers(parameters.mlp("head.rest.1"))
    return VersionWeights(
        joint_panels=pack_panels(np.concatenate([part.T for name, part in parts.items() if name != "sim_x"])),
        sim_panels=pack_panels(parts["sim_x"].T) if "sim_x" in parts else np.zeros(0, np.float32),
        layers=layers,
        rest=rest,
        first_width=padded(len(parameters["head.first.bias"])),
        inputs=at,
        at_din=places.get("din", -1),
        at_sim=places.get("sim_x", -1),
        at_tiers=places.get("tiers", -1),
        at_realtime=places["realtime"],
        distance_max_E=limits.distance_max_E,
        masks_EP=limits.masks_EP,
        entry_of_category=np.zeros(categories + 1, np.int32),
        **plan_realtime(parameters),
    )


def plan_realtime(parameters: Parameters) -> dict[str, Any]:
    """Which columns of `realtime` are numbers, which are rows of the table, and from where: the order of `RealtimeFeatures`."""
    features, table = parameters.spec.schema.realtime_features, parameters.find("head.realtime.table")
    categorical = [i for i, feature in enumerate(features) if feature.layout is Layout.BUCKET]
    starts = [sum(features[j].buckets for j in categorical[:i]) for i in range(len(categorical))]
    return {
        "realtime_numeric": np.array([i for i, feature in enumerate(features) if feature.layout is Layout.NUMBER], np.int64),
        "realtime_categorical": np.array(categorical, np.int64),
        "realtime_start": np.array(starts, np.int64),
        "realtime_table": np.zeros((0, 0), np.float32) if table is None else table.copy(),
        "value_abs_max": float(VALUE_ABS_MAX),
    }
