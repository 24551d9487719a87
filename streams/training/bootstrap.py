"""Intervals over users: what a measure, a difference of two models, or any figure made of means would be with other users.

Here: the bootstrap as pure numpy, seeded. Not here: the measures (measures.py). All figures of one table are drawn with the same resamples of the same users.
So a difference is paired: the noise of a user that two models share cancels.

Arrays: U users, R resamples.  Source: AIF, section 5.1 (1,000 resamples, 95%).
"""

from collections.abc import Callable

import numpy as np

from infra.figures import Interval
from schemas.errors import Misconfigured
from streams.training.measures import UserValues

RESAMPLES = 1_000
CONFIDENCE = 0.95


class Bootstrap:
    """Resamples of one set of users: `counts_RU` says how often each user is in each."""

    def __init__(self, users: int, seed: int = 0) -> None:
        if users < 1:
            raise Misconfigured("no_users", f"an interval over {users} users; measure at least one")
        drawn_R = np.random.default_rng(seed).multinomial(users, np.full(users, 1 / users), RESAMPLES)
        self.counts_RU = drawn_R.astype(np.float64)

    def means(self, values: UserValues) -> np.ndarray:
        """The weighted mean in each resample, [R]; NaN where no user in it counts."""
        weight_R = self.counts_RU @ values.weight_U
        with np.errstate(invalid="ignore", divide="ignore"):
            return (self.counts_RU @ (values.weight_U * values.value_U)) / weight_R

    def interval(self, values: UserValues) -> Interval:
        """The mean with its interval."""
        return self.interval_of(lambda mean: mean(values))

    def difference(self, ours: UserValues, theirs: UserValues) -> Interval:
        """The mean of `ours` minus the mean of `theirs`, paired: both over the same resamples."""
        return self.interval_of(lambda mean: mean(ours) - mean(theirs))

    def interval_of(self, figure: Callable[[Callable[[UserValues], np.ndarray]], np.ndarray]) -> Interval:
        """Any figure made of means: `figure` gets a function from UserValues to means (one, or one per resample) and combines them."""
        drawn_R = figure(self.means)
        value = figure(lambda values: np.array(values.mean()))
        tail = 100 * (1 - CONFIDENCE) / 2
        known_R = drawn_R[~np.isnan(drawn_R)]
        low, high = np.percentile(known_R, [tail, 100 - tail]) if len(known_R) else (value, value)  # of no user: not a number
        return Interval(float(value), float(low), float(high))
