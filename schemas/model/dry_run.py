"""A dry run of a network: all three calls on zeros and on random inputs, before a checkpoint may be served.

Here: the name of the first call whose result is not finite. Not here: the inputs (random_inputs.py), the checks of a file (checkpoint.py).
"""

import numpy as np
import torch

from schemas.model.encode_rows import encode_rows
from schemas.model.item_network import EncodedRows
from schemas.model.network import AifNetwork
from schemas.model.random_inputs import CANDIDATES, SEED, USERS, draw_block, draw_candidates, draw_users


def find_failed_call(network: AifNetwork) -> str | None:
    """None, or which call gave numbers that are not finite and for which inputs."""
    for what, rng in (("zeros", None), ("random inputs", np.random.default_rng(SEED))):
        stored = encode_rows(network, draw_block(network.spec.schema.item_half_inputs, USERS * CANDIDATES, rng))
        if not (np.isfinite(stored.vectors_RD).all() and np.isfinite(stored.bridge_RN).all()):
            return f"item rows of {what} are not finite in fp16"
        if not _joint_is_finite(network, stored, rng):
            return f"logits of {what} are not finite"
    return None


@torch.inference_mode()
def _joint_is_finite(network: AifNetwork, stored: EncodedRows, rng: np.random.Generator | None) -> bool:
    states = network.user_states(draw_users(network.spec, stored, rng))
    logits = network.joint_logits(states, draw_candidates(network.spec, stored, rng))
    return bool(torch.isfinite(logits).all())
