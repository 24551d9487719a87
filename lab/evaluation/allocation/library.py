"""A library of requests: the true value of every action, the predictions of a server, and the facts before it decides.

The value of an action is the sum of the true expected values of the ten best items among the hundred that it passes on (a ranking stage that sees the truth
follows). An action ranks the first N candidates of retrieval's order by its level's score. A click's logit is the vectors' part, SIM's part, the long
history's part, and a part that no model sees; a level sees the parts that its inputs can. Users have log-normal values, of which the past says something.

Costs are milliseconds of the engine on the machine of docs/BENCHMARKS.md (bench rank, table1, table4); how call 1 divides among its parts is an assumption.
Source: the value of a request follows DCAF, section 5.1. Arrays: R requests, A actions, C candidates, L levels.
"""

from dataclasses import dataclass

import numba
import numpy as np

from schemas.allocation import ASSUMED_COST, LENGTHS, ActionTable, Costs, Gate, LevelCost, Requests, Values, list_actions

CANDIDATES, PASSED, SHOWN = 10_000, 100, 10
MODEL_ERROR = 0.35  # deviation of a level's score from what its inputs say: what training leaves
VALUE_KNOWN = 0.7  # correlation of the logarithm of a user's value with the known part
RETRIEVAL_NOISE = 1.6
KEPT = 0.5  # share of requests whose user half is kept from an earlier one
ACTIONS = list_actions()
CACHED = 2  # the place of this action
QUEUE_ONLY = [0, 1, *range(len(ACTIONS) - len(LENGTHS), len(ACTIONS))]  # one model with shorter queues: the path without allocation
ALL = [place for place in range(len(ACTIONS)) if place != CACHED]
COSTS = Costs(
    {
        "vectors": LevelCost(1.0, 0.26, 0.0, 0.1, 0.35),
        "sim": LevelCost(1.0, 0.34, 0.0, 0.1, 0.50),
        "long": LevelCost(1.0, 0.335, 0.14, 0.1, 0.60),
        "full": ASSUMED_COST,
    }
)
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


def make_library(requests: int, users: int, seed: int, sigma: float = 1.0) -> Library:
    """Requests of users whose values have a log-deviation of `sigma`. Equal arguments give equal libraries."""
    rng = np.random.default_rng([seed, 1])
    log_value_U = sigma * rng.standard_normal(users) - sigma**2 / 2
    history_U = np.clip(np.exp(rng.normal(np.log(700) + 0.35 * log_value_U, 1.1)), 0, 50_000).astype(int)
    known_U = log_value_U + sigma * np.sqrt(1 / VALUE_KNOWN**2 - 1) * rng.standard_normal(users)
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
        _fill(noise, order_C, weights, base, level_base, np.array(LENGTHS), true_RA[row], predicted_RA[row])
    nan_R = np.full(requests, np.nan)
    columns = Requests(
        np.full(requests, CANDIDATES), history_U[user_R], rng.random(requests) >= KEPT, np.exp(known_U[user_R]), top_R, nan_R
    )
    return Library(user_R, columns, true_RA, predicted_RA)


@numba.njit(cache=True)
def _fill(
    noise: np.ndarray,
    order_C: np.ndarray,
    weights: np.ndarray,
    base: float,
    level_base: float,
    lengths: np.ndarray,
    true_A: np.ndarray,
    predicted_A: np.ndarray,
) -> None:
    """True and predicted value of every action of one request: the best hundred of each prefix by each level, and the ten best of these."""
    count = len(order_C)
    value_C = np.empty(count, np.float32)  # expected value of each candidate, in retrieval's order
    for place in range(count):
        c = order_C[place]
        logit = base + weights[0] * noise[0, c] + weights[1] * noise[1, c] + weights[2] * noise[2, c] + weights[3] * noise[3, c]
        value_C[place] = np.exp(0.3 * noise[6, c]) / (1 + np.exp(-logit))
    true_A[1] = np.sort(value_C[:PASSED])[-SHOWN:].sum()
    score_C, best = np.empty(count, np.float32), np.empty(PASSED, np.int64)
    for level in range(4):
        sim, long = level == 1 or level == 3, level >= 2
        unseen = weights[3] ** 2 + (0.0 if sim else weights[1] ** 2) + (0.0 if long else weights[2] ** 2)
        scale = np.exp(level_base + unseen / 2)
        for place in range(count):
            c = order_C[place]
            seen = weights[0] * noise[0, c] + (weights[1] * noise[1, c] if sim else 0.0) + (weights[2] * noise[2, c] if long else 0.0)
            score_C[place] = seen + 0.3 * noise[6, c] + MODEL_ERROR * noise[4, c]
        if level == 0:
            predicted_A[1] = np.exp(np.sort(score_C[:PASSED])[-SHOWN:]).sum() * scale
        kept, least = 0, 0  # the best so far, and which of them is the worst
        reached = 0
        for place in range(count):
            if kept < PASSED:
                best[kept] = place
                kept += 1
                if kept == PASSED:
                    least = int(np.argmin(score_C[best]))
            elif score_C[place] > score_C[best[least]]:
                best[least] = place
                least = int(np.argmin(score_C[best]))
            if place + 1 == lengths[reached]:
                a = 3 + level * len(lengths) + reached
                true_A[a] = np.sort(value_C[best])[-SHOWN:].sum()
                predicted_A[a] = np.exp(np.sort(score_C[best])[-SHOWN:]).sum() * scale
                reached += 1
