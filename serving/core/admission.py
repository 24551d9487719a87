"""How long work will take and wait, and who is let in: the arithmetic of overload, pure.

The engine is one server with one queue, so a request's wait is the work before it. A request is let in while that wait is within a bound, and while
wait and work fit into its deadline; any other is answered at once with the time after which it is worth coming back. So the queue never grows beyond
what an admitted request can bear, whatever the load, and admitted requests keep their latency.

A queue is there to bridge the time until the next request comes. The more is asked for, the shorter that time, so the bound falls with the load: at
80% a burst may wait, at ten times what can be carried hardly anybody has to, and the engine is busy all the same.

A flood is seen only when some of it has come in, and those would wait as long as the bound of a quiet moment allowed. So where the load is beyond chance,
the bound of now holds for those that wait as well, and they get the refusal that they would have got a moment later.

Here: costs learnt from what was measured, the load that is offered, the bound, the decision. Not here: measuring (serving/calls/paced_engine.py), the number
of requests in work (serving/protocols/intake.py), which kind of answer there is still time for (core/ladder.py).
Source: the bound on waiting time instead of queue length, and that a standing queue is a useless one, is CoDel's thought (Nichols and Jacobson, 2012).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEARNING_RATE = 0.2  # of an exponential average: a change of speed is believed after about ten pieces of work
DOUBT = 0.95  # a prediction that is ten times too long is tried again after 45 requests that went without
# A longer queue refuses fewer at 80% of what can be carried and makes overload slower; a load seen over a longer time is surer, and lets a flood in that
# only just began. In a simulator as in the tests (work of 7 to 13 ms; arrivals at random; in brackets at even distances): bound, load from which it
# falls, over how many pieces the load is seen: refused at 80%, p99 at ten times the load over that at 80%, the same of the first 350 of a flood
#   6, never: 1.6%, 1.08 (5.6)    6, 1.25, 3: 3.5%, 0.26 (1.05), 0.3 (1.1)    6, 1.25, 8: 1.8%, 0.21 (1.05), 0.4 (2.2)    8, 1.5, 3: 1.3%, 0.20 (1.1), 0.3 (1.7)
QUEUED_WORK_MAX = 6.0
LOAD_MAX = 1.25  # as much happens by chance where 0.8 are asked for
FLOOD = 2.5  # a load that 80% at random hardly ever looks like: from here on those that wait are judged again
OFFERED_WORK = 3.0  # times the mean work is the time over which the offered load is seen, and at least
OFFERED_MS_MIN = 30.0
HELD_WINDOW = 0.25  # of that time a refusal may hold: the load can fall by a fifth meanwhile, and the bound not even double
QUEUE_MS_MIN = 10.0  # a burst of very small requests is no overload


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of the engine's work: `kind` "user" or "rank", `size` behaviours or candidates."""

    kind: str
    size: int

    @property
    def bucket(self) -> tuple[str, int]:
        """Sizes within a factor of two cost alike."""
        return self.kind, self.size.bit_length()


@dataclass(frozen=True, slots=True)
class Costs:
    """ms by kind and size as learnt so far; `mean_ms` over all work, nothing known = 0."""

    by_bucket: Mapping[tuple[str, int], float] = field(default_factory=dict)
    mean_ms: float = 0.0


def predict_ms(costs: Costs, job: Job) -> float:
    """What a job will take: its bucket's average, else the nearest bucket's, in proportion where that is smaller. Nothing known: 0."""
    known = costs.by_bucket.get(job.bucket)
    if known is not None:
        return known
    kind, place = job.bucket
    near = min((p for k, p in costs.by_bucket if k == kind), key=lambda p: (abs(p - place), p), default=None)
    return 0.0 if near is None else costs.by_bucket[kind, near] * 2.0 ** max(0, place - near)


def fold_cost(costs: Costs, jobs: Sequence[Job], took_ms: float) -> Costs:
    """The costs after jobs that took so long together; each takes its predicted share of the blame, an equal one where nothing is known."""
    predicted = [predict_ms(costs, job) for job in jobs]
    total = sum(predicted)
    learnt = dict(costs.by_bucket)
    for job, ms in zip(jobs, predicted, strict=True):
        share = took_ms * (ms / total if total > 0 else 1 / len(jobs))
        learnt[job.bucket] = _toward(costs.by_bucket.get(job.bucket), share)
    return Costs(learnt, _toward(costs.mean_ms or None, took_ms))


def fold_doubt(costs: Costs, job: Job) -> Costs:
    """The costs after a job was avoided because of its prediction: a little less sure, so that it is tried again after some time."""
    return Costs({**costs.by_bucket, job.bucket: DOUBT * predict_ms(costs, job)}, costs.mean_ms)


def _toward(before: float | None, seen: float) -> float:
    return seen if before is None else before + LEARNING_RATE * (seen - before)


@dataclass(frozen=True, slots=True)
class Offered:
    """The load that was asked for of late, let in or not, as of `at_ms`: 1 = as much as the engine can do."""

    load: float = 0.0
    at_ms: float = 0.0

    def now(self, now_ms: float, mean_ms: float) -> float:
        """The load as seen now, if nothing came since."""
        return self.load * math.exp(-max(0.0, now_ms - self.at_ms) / _window_ms(mean_ms))


def fold_offered(offered: Offered, work_ms: float, now_ms: float, mean_ms: float, count: int = 1) -> Offered:
    """The load after `count` more requests came, each of which is or would have been so much work. One alone is never an overload."""
    return Offered(offered.now(now_ms, mean_ms) + count * min(1.0, work_ms / _window_ms(mean_ms)), now_ms)


def _window_ms(mean_ms: float) -> float:
    return max(OFFERED_MS_MIN, OFFERED_WORK * mean_ms)


def queue_ms_max(costs: Costs, work_max: float = QUEUED_WORK_MAX, load: float = 0.0) -> float:
    """How long the queue may be under an offered load."""
    return max(QUEUE_MS_MIN, work_max * costs.mean_ms) / max(1.0, load / LOAD_MAX) ** 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let in, when its chance is better, and how long everybody who comes is told the same, if no work ends before."""

    reason: str
    retry_after_ms: float
    holds_ms: float = 0.0


def decide_queue(costs: Costs, queue_ms: float, work_max: float = QUEUED_WORK_MAX, load: float = 0.0) -> Refusal | None:
    """Whether one more may wait at all; asked before its body is read. Whoever is refused comes back the later the more there are."""
    bound = queue_ms_max(costs, work_max, load)
    if queue_ms <= bound:
        return None
    beyond_ms = queue_ms - bound
    retry_after_ms = (beyond_ms + costs.mean_ms) * max(1.0, load)
    holds_ms = min(beyond_ms, HELD_WINDOW * _window_ms(costs.mean_ms))
    return Refusal(f"{queue_ms:.0f} ms of work wait, this server lets {bound:.0f} ms wait", retry_after_ms, holds_ms)


def count_kept(predicted_ms: Sequence[float], spent_ms: float, bound_ms: float, load: float) -> int:
    """How many of the pieces in work, in their order, may stay: all, or in a flood those that begin within the bound. The first is being computed."""
    wait_ms = max(0.0, predicted_ms[0] - spent_ms) if predicted_ms else 0.0
    for place, work_ms in enumerate(predicted_ms[1:], 1):
        if load > FLOOD and wait_ms > bound_ms:
            return place
        wait_ms += work_ms
    return len(predicted_ms)


def decide_deadline(queue_ms: float, work_ms: float, left_ms: float) -> Refusal | None:
    """Whether the least that would answer the request still fits into its deadline; asked when its size is known.

    Where nothing waits it is let in whatever was learnt: a server that believed itself too slow would never learn better.
    """
    if queue_ms == 0 or queue_ms + work_ms <= left_ms:
        return None
    reason = f"{queue_ms:.0f} ms of work wait and it needs {work_ms:.0f} ms, of its deadline {left_ms:.0f} ms are left"
    return Refusal(reason, max(0.0, queue_ms + work_ms - left_ms))
