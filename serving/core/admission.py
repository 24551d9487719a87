"""Predicts how long work takes and waits, and decides which requests are admitted: the arithmetic of overload, pure.

The engine has one queue, so a request's wait is the work before it. A request is admitted while that wait is within a bound, and while wait and work fit
into its deadline. Any other request is refused at once, with the time after which a retry makes sense. So under any load the queue stays within the
bound, and admitted requests keep their latency.

A queue is useful to keep the engine busy until the next request comes. With more load that time is shorter, so the bound falls as the load grows: at
80% load a burst may wait; at ten times the possible load almost nobody waits, and the engine is still always busy.

A flood is noticed only after its first requests were admitted under the larger bound of a quiet moment. So when the load is too high to be chance, the
current bound is applied to waiting work too, and those requests get the refusal that they would have got a moment later.

Here: learnt costs, the offered load, the bound, the decisions. Not here: measuring (serving/calls/paced_engine.py), the number of requests in work
(serving/protocols/intake.py), what can still be answered in the time left (core/ladder.py).
Source: bounding the waiting time instead of the queue's length, and that a standing queue has no use: CoDel (Nichols and Jacobson, 2012).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEARNING_RATE = 0.2  # weight of a new value in the exponential average: a change of speed is learnt after about ten pieces of work
DOUBT = 0.95  # with it, a prediction that is ten times too long is tried again after 45 requests that avoided it
# A longer queue refuses fewer requests at 80% load, but makes answers under overload slower. Measuring the load over a longer time is more certain, but
# admits more of a flood that has just begun. Simulated as in the tests (work of 7 to 13 ms; random arrivals; in brackets regular arrivals). Each entry:
# bound, load from which it falls, window in pieces of work: share refused at 80%, p99 at ten times the load over p99 at 80%, the same for the first 350
# requests of a flood
#   6, never: 1.6%, 1.08 (5.6)    6, 1.25, 3: 3.5%, 0.26 (1.05), 0.3 (1.1)    6, 1.25, 8: 1.8%, 0.21 (1.05), 0.4 (2.2)    8, 1.5, 3: 1.3%, 0.20 (1.1), 0.3 (1.7)
QUEUED_WORK_MAX = 6.0
LOAD_MAX = 1.25  # at 80% load this much is still chance
FLOOD = 2.5  # at 80% load chance hardly ever reaches this; from here on waiting work is judged again
OFFERED_WORK = 3.0  # the offered load is measured over this many times the mean work, and at least over
OFFERED_MS_MIN = 30.0
HELD_WINDOW = 0.25  # share of that time for which one refusal holds; meanwhile the load can fall by a fifth at most
QUEUE_MS_MIN = 10.0  # so that a burst of very small requests is not taken for overload


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of the engine's work: `kind` "user" or "rank", `size` behaviours or candidates."""

    kind: str
    size: int

    @property
    def bucket(self) -> tuple[str, int]:
        """Jobs of one kind whose sizes are within a factor of two share a bucket."""
        return self.kind, self.size.bit_length()


@dataclass(frozen=True, slots=True)
class Costs:
    """Learnt costs in ms: by kind and size, and the mean over all work (0 = nothing is known yet)."""

    by_bucket: Mapping[tuple[str, int], float] = field(default_factory=dict)
    mean_ms: float = 0.0


def predict_ms(costs: Costs, job: Job) -> float:
    """What a job will take: its bucket's average, else that of the nearest bucket, scaled up if that one is smaller. 0 if nothing is known."""
    known = costs.by_bucket.get(job.bucket)
    if known is not None:
        return known
    kind, place = job.bucket
    near = min((p for k, p in costs.by_bucket if k == kind), key=lambda p: (abs(p - place), p), default=None)
    return 0.0 if near is None else costs.by_bucket[kind, near] * 2.0 ** max(0, place - near)


def fold_cost(costs: Costs, jobs: Sequence[Job], took_ms: float) -> Costs:
    """The costs after jobs that took `took_ms` together. Each is charged in proportion to its prediction, or equally if nothing is known."""
    predicted = [predict_ms(costs, job) for job in jobs]
    total = sum(predicted)
    learnt = dict(costs.by_bucket)
    for job, ms in zip(jobs, predicted, strict=True):
        share = took_ms * (ms / total if total > 0 else 1 / len(jobs))
        learnt[job.bucket] = _toward(costs.by_bucket.get(job.bucket), share)
    return Costs(learnt, _toward(costs.mean_ms or None, took_ms))


def fold_beside(costs: Costs, job: Job, took_ms: float) -> Costs:
    """The costs after a job that was done beside the queue. The mean stays: it is of what waits in the queue."""
    return Costs({**costs.by_bucket, job.bucket: _toward(costs.by_bucket.get(job.bucket), took_ms)}, costs.mean_ms)


def fold_doubt(costs: Costs, job: Job) -> Costs:
    """The costs after a job was avoided because of its prediction: the prediction falls a little, so that the job is tried again some time."""
    return Costs({**costs.by_bucket, job.bucket: DOUBT * predict_ms(costs, job)}, costs.mean_ms)


def _toward(before: float | None, seen: float) -> float:
    return seen if before is None else before + LEARNING_RATE * (seen - before)


@dataclass(frozen=True, slots=True)
class Offered:
    """The recently offered load at `at_ms`, refused requests included; 1 = as much as the engine can do."""

    load: float = 0.0
    at_ms: float = 0.0

    def now(self, now_ms: float, mean_ms: float) -> float:
        """The load at `now_ms` if nothing came since `at_ms`."""
        return self.load * math.exp(-max(0.0, now_ms - self.at_ms) / _window_ms(mean_ms))


def fold_offered(offered: Offered, work_ms: float, now_ms: float, mean_ms: float, count: int = 1) -> Offered:
    """The load after `count` more requests of `work_ms` each. A single request never counts as more than 1."""
    return Offered(offered.now(now_ms, mean_ms) + count * min(1.0, work_ms / _window_ms(mean_ms)), now_ms)


def _window_ms(mean_ms: float) -> float:
    return max(OFFERED_MS_MIN, OFFERED_WORK * mean_ms)


def queue_ms_max(costs: Costs, work_max: float = QUEUED_WORK_MAX, load: float = 0.0) -> float:
    """How long the queue may be, in ms of work, under an offered load."""
    return max(QUEUE_MS_MIN, work_max * costs.mean_ms) / max(1.0, load / LOAD_MAX) ** 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, when to retry, and for how long the same refusal may be given to all others, unless some work ends before."""

    reason: str
    retry_after_ms: float
    holds_ms: float = 0.0


def decide_queue(costs: Costs, queue_ms: float, work_max: float = QUEUED_WORK_MAX, load: float = 0.0) -> Refusal | None:
    """None if one more request may wait, else the refusal. Asked before a body is read. The higher the load, the later the retry."""
    bound = queue_ms_max(costs, work_max, load)
    if queue_ms <= bound:
        return None
    beyond_ms = queue_ms - bound
    retry_after_ms = (beyond_ms + costs.mean_ms) * max(1.0, load)
    holds_ms = min(beyond_ms, HELD_WINDOW * _window_ms(costs.mean_ms))
    return Refusal(f"{queue_ms:.0f} ms of work wait, this server lets {bound:.0f} ms wait", retry_after_ms, holds_ms)


def count_kept(predicted_ms: Sequence[float], spent_ms: float, bound_ms: float, load: float) -> int:
    """How many of the waiting pieces, in order, may stay: all, or in a flood those that begin within the bound. The first one is being computed."""
    wait_ms = max(0.0, predicted_ms[0] - spent_ms) if predicted_ms else 0.0
    for place, work_ms in enumerate(predicted_ms[1:], 1):
        if load > FLOOD and wait_ms > bound_ms:
            return place
        wait_ms += work_ms
    return len(predicted_ms)


def decide_deadline(queue_ms: float, work_ms: float, left_ms: float) -> Refusal | None:
    """None if an answer of `work_ms` still fits into the deadline, else the refusal. Asked once the request's size is known.

    If nothing waits, the request is always admitted: otherwise a server with too high predictions would never learn lower ones.
    """
    if queue_ms == 0 or queue_ms + work_ms <= left_ms:
        return None
    reason = f"{queue_ms:.0f} ms of work wait and it needs {work_ms:.0f} ms, of its deadline {left_ms:.0f} ms are left"
    return Refusal(reason, max(0.0, queue_ms + work_ms - left_ms))
