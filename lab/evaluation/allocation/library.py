"""A library of requests: the true value of every action, the predictions of a server, and the facts before it decides.

The value of an action is the sum of the true expected values of the ten best items among the hundred that it passes on (a ranking stage that sees the truth
follows). An action ranks the first N candidates of retrieval's order, in full or in two passes. A click's logit is the vectors' part, SIM's part, the long
history's part, and a part that no model sees; the first of two passes does not see the long history. Users have log-normal values, of which the past says
something. The actions are those of a server. A refused caller shows its own order, which is `pass`.

Costs are milliseconds of the engine on the machine of docs/BENCHMARKS.md (bench rank, table1, table4); those of two passes are assumed from them.
Source: the value of a request follows DCAF, section 5.1. Arrays: R requests, A actions, C candidates.
"""

from dataclasses import dataclass

import numpy as np

from schemas.actions import SECOND_PASS, TWO_PASS, Kind, count_second, list_actions
from schemas.allocation import ASSUMED_COSTS, ActionTable, Costs, Gate, Requests, Values
from serving.core.choice import ROOM

CANDIDATES, PASSED, SHOWN = 10_000, 100, 10
MODEL_ERROR = 0.35  # deviation of a level's score from what its inputs say: what training leaves
VALUE_KNOWN = 0.7  # correlation of the logarithm of a user's value with the known part
RETRIEVAL_NOISE = 1.6
KEPT = 0.5  # share of requests whose user half is kept from an earlier one
ACTIONS = tuple(one for one in list_actions() if one.level != TWO_PASS or one.candidates >= SECOND_PASS * ROOM * PASSED)
CACHED = 2  # the place of this action
QUEUE_ONLY = [
    place for place, one in enumerate(ACTIONS) if place != CACHED and one.level != TWO_PASS
]  # shorter queues: the path without allocation
ALL = [place for place in range(len(ACTIONS)) if place != CACHED]
COSTS = Costs(ASSUMED_COSTS)
_NO_VALUES = Values(0.0, {}, (), ((1.0,) * len(ACTIONS),))
COST_TABLE = ActionTable(0, 0, ACTIONS, COSTS, _NO_VALUES, (1.0,) * len(ACTIONS), 1.0, gate=Gate())


@dataclass(frozen=True)
class Library:
    """`predicted_RA`: the sum of the ten best predicted values of each action, as a server can compute it. `cached` has the value 0."""

    user_R: np.ndarray
    requests: Requests
    true_RA: np.ndarray
    predicted_RA: np.ndarray

    def rows(self, place_R: np.ndarray) -> "Library":
        """The requests at these places."""
        return Library(self.user_R[place_R], self.requests.rows(place_R), self.true_RA[place_R], self.predicted_RA[place_R])


def split_users(library: Library) -> tuple[Library, Library, Library]:
    """Requests to learn from, for the gate, and to judge by: no user is in two of them."""
    place_R = library.user_R * 2654435761 % 97
    return library.rows(place_R < 48), library.rows((place_R >= 48) & (place_R < 64)), library.rows(place_R >= 64)


def make_library(requests: int, users: int, seed: int) -> Library:
    """Requests of users whose values have a log-deviation of 1. Equal arguments give equal libraries."""
    rng = np.random.default_rng([seed, 1])
    log_value_U = rng.standard_normal(users) - 0.5  # of mean value 1
    history_U = np.clip(np.exp(rng.normal(np.log(700) + 0.35 * log_value_U, 1.1)), 0, 50_000).astype(int)
    known_U = log_value_U + np.sqrt(1 / VALUE_KNOWN**2 - 1) * rng.standard_normal(users)
    user_R = rng.integers(0, users, requests)
    true_RA, predicted_RA = np.zeros((requests, len(ACTIONS))), np.zeros((requests, len(ACTIONS)))
    top_R = np.zeros(requests)
    for row, user in enumerate(user_R):
        depth = min(1.0, np.log1p(history_U[user] / 50) / np.log1p(100))  # the share of its interests that a short history shows
        noise = rng.standard_normal((7, CANDIDATES), np.float32)
        base = -4.5 + log_value_U[user] + rng.normal(0, 0.3)
        retrieval_C = (0.75 * noise[0] + 0.25 * depth * noise[2] + RETRIEVAL_NOISE * noise[5]).astype(np.float32)
        order_C = np.argsort(-retrieval_C)
        top_R[row] = (retrieval_C + 0.3 * noise[6])[order_C[:PASSED]].mean()
        weights = np.array([0.95, 0.35 * depth, 0.75 * depth, 0.6], np.float32)
        level_base = -4.5 + known_U[user] * VALUE_KNOWN**2
        noise = noise[:, order_C]
        value_C = np.exp(0.3 * noise[6]) / (1 + np.exp(-(base + weights @ noise[:4])))
        light_C = weights[:2] @ noise[:2] + 0.3 * noise[6] + MODEL_ERROR * noise[4]
        full_C, scale = light_C + weights[2] * noise[2], float(np.exp(level_base + weights[3] ** 2 / 2))
        true_RA[row, 1] = np.sort(value_C[:PASSED])[-SHOWN:].sum()
        predicted_RA[row, 1] = np.exp(np.sort(light_C[:PASSED])[-SHOWN:]).sum() * scale * np.exp(weights[2] ** 2 / 2)
        _fill(value_C, light_C, full_C, scale, true_RA[row], predicted_RA[row])
    nan_R = np.full(requests, np.nan)
    columns = Requests(
        np.full(requests, CANDIDATES), history_U[user_R], rng.random(requests) >= KEPT, np.exp(known_U[user_R]), top_R, nan_R
    )
    return Library(user_R, columns, true_RA, predicted_RA)


def _fill(value_C: np.ndarray, light_C: np.ndarray, full_C: np.ndarray, scale: float, true_A: np.ndarray, predicted_A: np.ndarray) -> None:
    """True and predicted value of every action that ranks: the best hundred of its prefix, in one pass or two, and the ten best of these.

    Expected values, scores of the first of two passes, and scores of full work, in retrieval's order. scale: of a prediction that full work makes.
    """
    by_light_C, by_full_C, place_C = np.argsort(-light_C), np.argsort(-full_C), np.arange(len(value_C))
    for place, action in enumerate(ACTIONS):
        if action.kind is not Kind.RANK:
            continue
        seen_C = place_C < action.candidates
        if action.level == TWO_PASS:
            seen_C[by_light_C[seen_C[by_light_C]][count_second(action.candidates, PASSED) :]] = False
        best = by_full_C[seen_C[by_full_C]][:PASSED]
        true_A[place] = np.sort(value_C[best])[-SHOWN:].sum()
        predicted_A[place] = np.exp(full_C[best[:SHOWN]]).sum() * scale
