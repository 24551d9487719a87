"""How much faster training is when impressions are grouped by request, so that the user half runs once per request and not once per impression.

Here: the rates of the same training step, with the same model and items, on both forms of the same impressions. Not here: the step
(training/trainer.py).
Both learn from clicks alone: COPR needs pairs within a request, and an ungrouped request has one impression.

Arrays: Q requests, C shown items of a request, X impressions.
"""

import dataclasses
import time

import numpy as np
import torch

from schemas.model.inputs import map_tensors
from schemas.model.network import AifNetwork
from streams.training.adam import Adam
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.losses import CLICK_LOSS
from streams.training.trainer import VectorTable, train_step


def ungroup(data: TrainingSet) -> TrainingSet:
    """The same impressions, each as a request of its own (C = 1) with its own copy of the user."""
    request_X, column_X = np.nonzero(data.row_QC != NOT_AN_ITEM)
    at = torch.from_numpy(request_X)

    def picked(values_QC: np.ndarray) -> np.ndarray:
        return values_QC[request_X, column_X][:, None]

    return dataclasses.replace(
        data,
        time_Q=data.time_Q[request_X],
        user_Q=data.user_Q[request_X],
        history_end_Q=data.history_end_Q[request_X],
        row_QC=picked(data.row_QC),
        bid_QC=picked(data.bid_QC),
        teacher_QC=picked(data.teacher_QC),
        clicked_QC=picked(data.clicked_QC),
        outcomes_QCT=picked(data.outcomes_QCT),
        context=map_tensors(data.context, lambda t: t[at]),
    )


def examples_per_second(network: AifNetwork, data: TrainingSet, requests: int, steps: int, behaviours_max: int) -> float:
    """Impressions learnt per second of processor time: the median over `steps` steps, after one that is not counted. Changes the network's weights.

    Processor time, because other processes on the machine must not change the figure.
    """
    optimiser = Adam(network.parameters(), 1e-4)
    vectors = VectorTable(network, data)
    vectors.renew()
    chance = np.random.default_rng(0)
    rates = []
    for _ in range(1 + steps):
        started = time.process_time()
        batch = data.batch(chance.choice(len(data), min(requests, len(data)), replace=False), behaviours_max)
        train_step(network, data, batch, vectors.of, optimiser, CLICK_LOSS)
        rates.append(int(batch.mask_BC.sum()) / (time.process_time() - started))
    return float(np.median(rates[1:]))


def grouped_speedup(network: AifNetwork, data: TrainingSet, requests: int = 32, steps: int = 8, behaviours_max: int = 256) -> float:
    """Examples per second of request-grouped batches over those of batches with as many single impressions."""
    shown = max(1, round(float((data.row_QC != NOT_AN_ITEM).sum(axis=1).mean())))
    grouped = examples_per_second(network, data, requests, steps, behaviours_max)
    single = examples_per_second(network, ungroup(data), requests * shown, steps, behaviours_max)
    return grouped / single
