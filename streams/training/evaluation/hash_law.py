"""Checks the law by which the error of a hashed similarity falls with the number of bits: sigma = sqrt(p (1 - p) / K).

Here: the measured spread of similarity (Eq. 6) over many draws of W_hash, and its ratio to the law. Not here: what that error costs a model
(tables.py). p = 1 - angle / pi is the probability that a bit of two embeddings is equal, and so the similarity that infinitely many bits give.

Arrays: P pairs, H hashes, M width, K bits.  Source: AIF, eq. (5)-(6); Charikar 2002.
"""

import numpy as np

from schemas.model.lsh import POPCOUNT_256, encode_signatures, make_w_hash

_PAIRS, _HASHES = 400, 60


def pair_similarities(first_PM: np.ndarray, second_PM: np.ndarray, bits: int) -> np.ndarray:
    """The similarity of each pair (Eq. 6) under each of H independent W_hash, float64 [H, P]."""
    found = []
    for seed in range(_HASHES):
        w_hash_KM = make_w_hash(1_000 + seed, bits, first_PM.shape[1])
        differ_PW = encode_signatures(first_PM, w_hash_KM) ^ encode_signatures(second_PM, w_hash_KM)
        found.append(1 - POPCOUNT_256[differ_PW].sum(axis=1, dtype=np.int64) / bits)
    return np.array(found)


def sigma_ratio(embeddings_RM: np.ndarray, bits: int) -> float:
    """Measured spread over the spread by the law, both as root mean square over random pairs of rows; 1 if the law holds."""
    rng = np.random.default_rng(0)
    first_P, second_P = rng.integers(0, len(embeddings_RM), (2, _PAIRS))
    first_PM, second_PM = embeddings_RM[first_P], embeddings_RM[second_P]
    norms_P = np.linalg.norm(first_PM, axis=1) * np.linalg.norm(second_PM, axis=1)
    cosine_P = (first_PM * second_PM).sum(axis=1) / np.maximum(norms_P, 1e-12)
    p_P = 1 - np.arccos(cosine_P.clip(-1, 1)) / np.pi
    similarity_HP = pair_similarities(first_PM, second_PM, bits)
    measured, lawful = ((similarity_HP - p_P) ** 2).mean(), (p_P * (1 - p_P) / bits).mean()
    return float(np.sqrt(measured / lawful))
