"""Scores of a network for chosen users, candidates and one moment, outside of the impressions that it was trained on.

Here: such questions in the form of a `TrainingSet` over the tables of the training data, the logits of a network for them, and a teacher's eCPM.
Not here: which candidates are asked about (held_out.py, lab/evaluation), measures (measures.py).
Invariant: as in training, a history ends strictly before the moment, and an item's row is the latest that is not after it.

Arrays: Q questions, C candidates, B questions of a chunk, R item rows, T tasks.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.inputs import FeatureTensors
from schemas.model.network import AifNetwork
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.trainer import item_vectors, task_logits
from streams.training.user_statistics import encode_statistics

PAIRS_PER_CHUNK = 8_000


def ask(
    data: TrainingSet, users: Sequence[Id], time_ms: int, item_ids_QC: np.ndarray, context: Mapping[str, Any] | None = None
) -> TrainingSet:
    """One question per user, all at the time `time_ms`; `item_ids_QC` are the candidates of each. An id that the item table does not have is masked.
    KeyError for a user of whom the training data has no history."""
    user_Q = np.array([data.histories.index[user] for user in users])
    item_QC = data.items.items_of(item_ids_QC.ravel().tolist()).reshape(item_ids_QC.shape)
    row_QC = data.items.rows_as_of(item_QC, np.full(item_QC.shape, time_ms))
    nothing_QC = np.zeros(row_QC.shape, np.float32)
    encoded = encode_features(data.spec.schema.of(Scope.CONTEXT), [context or {}] * len(user_Q))
    return dataclasses.replace(
        data,
        time_Q=np.full(len(user_Q), time_ms),
        user_Q=user_Q,
        history_end_Q=data.histories.ends_as_of(user_Q, np.full(len(user_Q), time_ms)),
        row_QC=row_QC,
        bid_QC=data.items.bid_R.numpy()[np.maximum(row_QC, 0)],
        teacher_QC=nothing_QC,
        clicked_QC=nothing_QC,
        outcomes_QCT=np.zeros((*row_QC.shape, len(data.spec.tasks) - 1), np.float32),
        context=FeatureTensors.from_block(encoded),
        statistics_QS=encode_statistics(data.spec.schema, data.statistics, users, np.full(len(user_Q), time_ms)),
    )


@torch.no_grad()
def score_tasks(network: AifNetwork, questions: TrainingSet, progress: Callable[[float], None] = lambda _: None) -> np.ndarray:
    """Logits of every task, float32 [Q, C, T], the click first, undefined where no candidate stands; `progress` gets the share that is done, 0 to 1."""
    network.eval()
    vectors_RD = item_vectors(network, questions)
    chunk = max(1, PAIRS_PER_CHUNK // questions.row_QC.shape[1])
    # Copied, because a tensor that is kept lies among larger ones that are not, and their memory is not used again: 3 to 10 MB for each chunk.
    logits_QCT = np.empty((*questions.row_QC.shape, len(questions.spec.tasks)), np.float32)
    for first in range(0, len(questions), chunk):
        batch = questions.batch(np.arange(first, min(first + chunk, len(questions))))
        logits_QCT[first : first + chunk] = task_logits(network, questions, batch, vectors_RD).numpy()
        progress(min(1.0, (first + chunk) / len(questions)))
    return logits_QCT


def teacher_ecpm(teacher: AifNetwork, data: TrainingSet) -> np.ndarray:
    """A network's click probability times the bid of each impression of `data`, float32 [Q, C]; 0 where a place is padding. It stands for the ranking stage
    behind pre-ranking where a log has no eCPM of it."""
    logits_QC = score_tasks(teacher, data)[..., 0].astype(np.float64)
    ecpm_QC = data.bid_QC / (1 + np.exp(-logits_QC))
    return np.where(data.row_QC == NOT_AN_ITEM, 0.0, ecpm_QC).astype(np.float32)
