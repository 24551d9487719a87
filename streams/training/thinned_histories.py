"""Histories of which a step sees only a random part, so that a fit meets many short ones.

Here: which behaviours of a batch stay. Not here: batches (impressions.py), which requests a step takes (request_draw.py).
Why: with few requests a network learns to be as sure after five behaviours as after five hundred, and learns each history by heart. A request whose
history is another part of itself each time it is drawn asks for the same items and says less of the user: weights that hold for all parts trust a short
history less, and differ less from seed to seed. Nothing that is served changes: what is ranked sees the whole history.
Deterministic: the parts come from the fit's own generator, so that a resumed fit and all processes of a team draw the same.

Arrays: B requests, L behaviours.
"""

import numpy as np


def thin_histories(chance: np.random.Generator, mask_BL: np.ndarray, share: float) -> np.ndarray:
    """Which of the behaviours in `mask_BL` (right-aligned) stay, bool [B, L].

    Each request is thinned with chance `share`: a part of it, uniform between nothing and all, is drawn, and each behaviour stays with that chance. The
    newest always does.
    """
    part_B = np.where(chance.random(len(mask_BL)) < share, chance.random(len(mask_BL)), 1.0)
    kept_BL = chance.random(mask_BL.shape) < part_B[:, None]
    kept_BL[:, -1] = True
    return np.asarray(mask_BL & kept_BL)
