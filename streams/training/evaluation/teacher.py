"""The ranking teacher: a stronger network that stands for the ranking stage behind pre-ranking, for data whose log has no eCPM of that stage.

Here: the eCPM that a trained network gives every impression, and the candidates that a ranking stage would choose (the relevant ones of HR@K). Not here: the
teacher's architecture (family/variant.py: TEACHER), its training (training/trainer.py), the losses that read it (training/losses.py).

Arrays: Q requests, C shown items of a request, U users.  Source: AIF, section 5.1 (the ten candidates that the ranking model selects are relevant).
"""

import numpy as np

from schemas.model.network import AifNetwork
from streams.training.evaluation.questions import score_questions
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.metrics import best_columns


def teacher_ecpm(teacher: AifNetwork, data: TrainingSet, behaviours_max: int) -> np.ndarray:
    """The teacher's click probability times the bid of the impression, float32 [Q, C]; 0 where a place is padding. `data` must be in the form that
    the teacher's network reads (family/codes.py)."""
    logits_QC = score_questions(teacher, data, behaviours_max).astype(np.float64)
    ecpm_QC = data.bid_QC / (1 + np.exp(-logits_QC))
    return np.where(data.row_QC == NOT_AN_ITEM, 0.0, ecpm_QC).astype(np.float32)


def teachers_choice(ecpm_UC: np.ndarray, chosen: int) -> np.ndarray:
    """The `chosen` candidates of highest eCPM of each user, bool [U, C]: the relevant ones of HR@K."""
    relevant_UC = np.zeros(ecpm_UC.shape, bool)
    np.put_along_axis(relevant_UC, best_columns(ecpm_UC, chosen), True, 1)
    return relevant_UC
