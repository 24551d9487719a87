"""Initial weights for a fit, with which the head reads the similarity of candidate and user. An item's vector is its embedding, a behaviour is its item's
vector, and a user is the mean of the behaviours.

Here: a new network, with these weights where they are chosen. Not here: fitting; every weight can still be learnt.
Why: with random projections between history and candidate, training finds their inner product (the simplest collaborative filtering) only by chance. A few
hundred steps on a shop's purchases do not find it. The other weights start as usual.

    MLP of Eq. 4            pairs of hidden units x and -x, whose ReLUs differ by x: I_j starts as the item's embeddings, as many columns as
                            fit; not the multimodal one, whose similarity DIN and SimTier read
    W_seq (Eq. 1)           identity on the item's vector, so U_j = I_j + (kind, category, features)
    FFN (Eq. 2)             its last layer 0: Eq. 2 starts as the mean of U_j
    P_u, P_s, P_d (head)    identity on Eq. 2, on the mean of a SIM sub-sequence and on DIN: their products with I start as mean
                            similarities, DIN's weighted by how alike the signatures are
"""

import torch
from torch import nn

from schemas.kinds import Layout
from schemas.model.item_half import ItemHalf, start_categories
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.model.score import SHOWN_OFFSET
from schemas.model.spec import ModelSpec

_OTHERS = 0.3  # the random start of P_u for profile and Eq. 3 is scaled by this; at full size it would drown the mean similarity


def new_network(spec: ModelSpec, w_hash_seed: int, start: str) -> AifNetwork:
    """A network with random weights; `start` is that of TrainChoices. Without a multimodal embedding there is no W_hash."""
    network = AifNetwork(spec, make_w_hash(w_hash_seed, spec.hash_bits, spec.schema.mm_width) if spec.schema.multimodal else None)
    if spec.shown_task is not None:
        _start_shown(network)
    if start == "similarity":
        start_from_similarity(network)
    else:
        start_categories(network.item_half)
    return network


@torch.no_grad()
def _start_shown(network: AifNetwork) -> None:
    """The task `shown` starts where a fit expects it."""
    last = [layer for layer in network.head.modules() if isinstance(layer, nn.Linear)][-1]
    last.bias[1 + (network.spec.shown_task or 0)] -= SHOWN_OFFSET


@torch.no_grad()
def start_from_similarity(network: AifNetwork) -> None:
    """Sets those weights in place."""
    width = network.spec.width
    identity_DD = torch.eye(width)
    _start_item_half(network.item_half, network.spec)
    network.behaviour.w_seq.weight[:, -width:] = identity_DD
    last = network.user_half.attention.ffn[-1]
    assert isinstance(last, nn.Linear)
    last.weight.zero_()
    last.bias.zero_()
    project_user = network.head.project_user.weight
    project_user *= _OTHERS
    project_user[:, width : 2 * width] = identity_DD
    if network.spec.schema.sim_category:
        network.head.project_sim.weight.copy_(identity_DD)
    if network.spec.schema.multimodal:
        network.head.project_din.weight.copy_(identity_DD)


def _start_item_half(half: ItemHalf, spec: ModelSpec) -> None:
    """The first numbers of Eq. 4 start as columns of the item's embeddings, through every hidden layer."""
    layers = [layer for layer in half.vector if isinstance(layer, nn.Linear)]
    columns = _embedding_columns(spec, half.features.width)[: min([spec.width, *(hidden // 2 for hidden in spec.item_hidden)])]
    if not columns or len(layers) < 2:
        return  # no embedding; or one linear layer: it keeps similarities as it is
    count = len(columns)
    pair_PE = torch.cat([torch.eye(count), -torch.eye(count)])
    first_PI = torch.zeros(2 * count, half.features.width)
    first_PI[:, columns] = pair_PE
    _set_rows(layers[0], first_PI)
    for layer in layers[1:-1]:
        _set_rows(layer, torch.eye(2 * count, layer.in_features))
    last_EH = torch.zeros(count, layers[-1].in_features)
    last_EH[:, : 2 * count] = pair_PE.T
    _set_rows(layers[-1], last_EH)


def _set_rows(layer: nn.Linear, rows_PX: torch.Tensor) -> None:
    layer.weight[: len(rows_PX)] = rows_PX
    layer.bias[: len(rows_PX)] = 0.0


def _embedding_columns(spec: ModelSpec, width: int) -> list[int]:
    """Where, among the `width` inputs of the item half, its embeddings are that no signature is made of."""
    embeddings = [f for f in spec.schema.item_half_inputs if f.layout is Layout.VECTOR]
    columns, at = list[int](), width - sum(f.width for f in embeddings)  # embeddings come last (schemas/model/embeddings.py)
    for feature in embeddings:
        if feature.name != spec.schema.multimodal:
            columns += range(at, at + feature.width)
        at += feature.width
    return columns
