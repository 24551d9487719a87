"""Where a fit starts: a behaviour is its item's vector, a user the mean of theirs, and the head already reads how like that a candidate is.

Here: the weights of a fresh network that say so. Not here: anything that a fit or serving does; every weight stays free to learn.
Why: with random projections between a history and a candidate, their inner product (the plainest collaborative filtering) has to be found by
chance; a few hundred steps on a shop's purchases do not find it. The rest of the network starts as it always does.

    W_seq (Eq. 1)           identity on the item's vector, so U_j = I_j + (kind, category, features)
    FFN (Eq. 2)             its last layer 0: Eq. 2 starts as the mean of U_j
    P_u, P_s (the head)     identity on Eq. 2 and on the mean of a SIM sub-sequence: their products with I start as mean similarities
"""

import torch

from schemas.model.network import AifNetwork

_OTHERS = 0.3  # what is left of the start of the other two parts of P_u, profile and Eq. 3, that the sum would drown in


@torch.no_grad()
def start_from_similarity(network: AifNetwork) -> None:
    """Sets those weights in place."""
    width = network.spec.width
    identity_DD = torch.eye(width)
    network.behaviour.w_seq.weight[:, -width:] = identity_DD
    last = network.user_half.attention.ffn[-1]
    last.weight.zero_()
    last.bias.zero_()
    project_user = network.head.project_user.weight
    project_user *= _OTHERS
    project_user[:, width : 2 * width] = identity_DD
    if network.spec.schema.sim_category:
        network.head.project_sim.weight.copy_(identity_DD)
