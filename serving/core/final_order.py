"""AIF's scores and the ranker's logits to the final order. Pure.

A score is a product of powers of probabilities and the bid (schemas/model/score.py). The ranker changes the probabilities alone, so the final score is AIF's
times the ratio of these products, and the bid need not be known here.
Arrays: C candidates, T tasks.
"""

from collections.abc import Sequence

import numpy as np

from schemas.ids import Id, encode_index_key
from schemas.model.score import BID, Terms, rank_scores

LOGIT_MAX = 20.0  # beyond it fp32 has no probability other than 0 and 1


def logits_of(probabilities: np.ndarray) -> np.ndarray:
    """float32 of the same shape: log-odds, clipped to +-LOGIT_MAX. What training and the audit read of AIF too."""
    wide = probabilities.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(wide) - np.log1p(-wide), -LOGIT_MAX, LOGIT_MAX).astype(np.float32)


def final_order(
    terms: Terms, tasks: Sequence[str], ids: Sequence[Id], scores_C: np.ndarray, aif_logits_CT: np.ndarray, logits_CT: np.ndarray
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """(places by final score descending, then id ascending; final scores float64 [C]; probabilities float64 [C, T])."""
    factors = [(name, exponent) for name, exponent in terms if name != BID]
    ones_C = np.ones(len(ids))
    before_C = rank_scores(tuple(factors), tasks, _sigmoid(aif_logits_CT), ones_C)
    probabilities_CT = _sigmoid(logits_CT)
    final_C = scores_C * (rank_scores(tuple(factors), tasks, probabilities_CT, ones_C) / before_C)
    return sorted(range(len(ids)), key=lambda place: (-final_C[place], encode_index_key(ids[place]))), final_C, probabilities_CT


def _sigmoid(logits_CT: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logits_CT.astype(np.float64))))
