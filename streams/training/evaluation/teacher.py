"""The ranking teacher: what the stage behind pre-ranking would say of each shown item, for data whose log does not have it.

Here: a trained network's eCPM of every impression, the same impressions with it as their teacher, and whom it would have chosen (HR@K where
no true preference is known). Not here: which network is strong enough (family/variant.py: TEACHER), its training (training/trainer.py), losses.
The order by which COPR aligns is a teacher's who was taught by clicks alone; where the log has a teacher of its own that one is kept.

Arrays: Q requests, C shown items of a request, U users.  Source: AIF, section 5.1 (the ranking model orders by eCPM).
"""

import dataclasses

import numpy as np

from schemas.model.network import AifNetwork
from streams.training.evaluation.questions import score_questions
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.metrics import best_columns


def teacher_ecpm(teacher: AifNetwork, data: TrainingSet, behaviours_max: int) -> np.ndarray:
    """Click probability by the teacher times the bid of the impression, float32 [Q, C]; 0 where no item stands. `data` as the teacher reads it."""
    logits_QC = score_questions(teacher, data, behaviours_max).astype(np.float64)
    ecpm_QC = data.bid_QC / (1 + np.exp(-logits_QC))
    return np.where(data.row_QC == NOT_AN_ITEM, 0.0, ecpm_QC).astype(np.float32)


def with_teacher(data: TrainingSet, ecpm_QC: np.ndarray) -> TrainingSet:
    """The same impressions of the same requests with this teacher in the place of the log's."""
    assert ecpm_QC.shape == data.row_QC.shape, f"a teacher of {ecpm_QC.shape} for impressions of {data.row_QC.shape}"
    return dataclasses.replace(data, teacher_QC=ecpm_QC)


def teachers_choice(ecpm_UC: np.ndarray, chosen: int) -> np.ndarray:
    """The candidates that the teacher would show, bool [U, C]: what HR@K counts as relevant where the truth is not known."""
    relevant_UC = np.zeros(ecpm_UC.shape, bool)
    np.put_along_axis(relevant_UC, best_columns(ecpm_UC, chosen), True, 1)
    return relevant_UC
