"""How many bits a signature needs so that hashing costs no more GAUC than is allowed, and the law that says so of bits that were not trained.

The error of a hashed similarity (Eq. 6) falls with the number of bits: sigma = sqrt(p (1 - p) / K), where p = 1 - angle / pi is the probability that a bit
of two embeddings is equal, and so the similarity that infinitely many bits give. A small error of an input costs GAUC in proportion to its square, so loss
= a / bits. The law also covers numbers of bits between and beyond those that were trained. The measured recommendation is the cautious one: it takes the
upper bounds of the measured losses. All losses are in points of GAUC (0.01 = 1 point).

Arrays: P pairs, H hashes, M width, K bits.  Source: AIF, eq. (5)-(6), sections 4.2 and 5.2.3, Table 3; Charikar 2002.
"""

import math
from collections.abc import Mapping

import numpy as np

from infra.figures import Interval
from schemas.model.lsh import POPCOUNT_256, encode_signatures, make_w_hash

ALLOWED_PT = (0.1, 0.25, 0.5, 1.0)
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


def fit_law(losses_pt: Mapping[int, float]) -> float:
    """The a of loss = a / bits, fitted by least squares to losses by bits; in points times bits, at least 0."""
    return max(0.0, sum(loss / bits for bits, loss in losses_pt.items()) / sum(1 / bits**2 for bits in losses_pt))


def recommend_bits(losses: Mapping[int, Interval], allowed_pt: float) -> int | None:
    """The smallest measured number of bits whose loss is at most `allowed_pt` by its upper bound, as is that of every larger number; None if no
    number is."""
    found = None
    for bits in sorted(losses, reverse=True):
        if losses[bits].high > allowed_pt:
            break
        found = bits
    return found


def bits_by_law(law_pt: float, allowed_pt: float) -> int:
    """The smallest multiple of 8, at least 8, at which `law_pt` / bits is at most `allowed_pt`."""
    return max(8, 8 * math.ceil(law_pt / allowed_pt / 8))
