"""The cost in quality of each rung of the ladder (serving/core/ladder.py): the same questions, asked with the part of the user that the rung has.

fresh          everything before the moment: rungs carried, cached, waited, inline
last_cached    all but the newest `MISSED` behaviours: an older state
profile_only   the profile, no behaviours
item_prior     nothing about the user
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from infra.figures import Figures
from streams.training.bootstrap import Bootstrap
from streams.training.impressions import TrainingSet
from streams.training.measures import UserValues
from streams.training.user_statistics import ServedStatistics, encode_statistics

FRESH, LAST_CACHED, PROFILE_ONLY, ITEM_PRIOR = "fresh", "last_cached", "profile_only", "item_prior"
RUNGS = (FRESH, LAST_CACHED, PROFILE_ONLY, ITEM_PRIOR)
MISSED = 5  # behaviours since the kept state was made


def on_rung(questions: TrainingSet, rung: str) -> TrainingSet:
    """The questions as a ranking on this rung would see them."""
    if rung == FRESH:
        return questions
    histories, users = questions.histories, questions.user_Q
    begin_Q = histories.begin_U[users]
    missed = MISSED if rung == LAST_CACHED else np.iinfo(np.int64).max // 2
    if rung == ITEM_PRIOR:  # profiles that hold from the end of time on
        histories = dataclasses.replace(histories, profile_time_U=np.full_like(histories.profile_time_U, np.iinfo(np.int64).max))
        nothing = ServedStatistics(questions.spec.schema.user_statistics, {})
        unknown_QS = encode_statistics(questions.spec.schema, nothing, users.tolist(), questions.time_Q)
        questions = dataclasses.replace(questions, statistics_QS=unknown_QS)
    return dataclasses.replace(questions, histories=histories, history_end_Q=np.maximum(begin_Q, questions.history_end_Q - missed))


def add_rung_figures(figures: Figures, name: str, of_rungs: Mapping[str, Mapping[str, UserValues]]) -> None:
    """Adds the measures by rung, and the loss against `FRESH`, paired over users."""
    for rung, measures in of_rungs.items():
        for measure, values in measures.items():
            bootstrap, fresh = Bootstrap(len(values.value_U)), of_rungs[FRESH][measure]
            figures.add_interval(f"{name}.rung.{rung}.{measure}", bootstrap.interval(values))
            if rung != FRESH:
                figures.add_interval(f"{name}.rung.{rung}.{measure}_lost", bootstrap.difference(fresh, values))
