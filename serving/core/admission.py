"""How long work will take and wait, and who is let in: the arithmetic of overload, pure.

The engine is one server with one queue, so a request's wait is the work before it. A request is let in while that wait is within a bound, and while
wait and work fit into its deadline; any other is answered at once with the time after which it is worth coming back. So the queue never grows beyond
what an admitted request can bear, whatever the load, and admitted requests keep their latency.

Here: costs learnt from what was measured, the bound, the decision. Not here: measuring (serving/paced_engine.py), the number of requests in work
(serving/intake.py), which kind of answer there is still time for (core/ladder.py).
Source: the bound on waiting time instead of queue length is CoDel's thought (Nichols and Jacobson, 2012).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEARNING_RATE = 0.2  # of an exponential average: a change of speed is believed after about ten pieces of work
DOUBT = 0.95  # a prediction that is ten times too long is tried again after 45 requests that went without
# A longer queue refuses fewer at 80% of what can be carried and makes overload slower. In the simulator of the tests (work of 5 to 15 ms), bound: refused
# at 80%, p99 at 10 times the load over p99 at 80%:   4: 4%, 1.19   5: 2.5%, 1.19   6: 1.6%, 1.23   8: 0.7%, 1.27   12: 0.1%, 1.4
QUEUED_WORK_MAX = 5.0
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


def queue_ms_max(costs: Costs, work_max: float = QUEUED_WORK_MAX) -> float:
    """How long the queue may be."""
    return max(QUEUE_MS_MIN, work_max * costs.mean_ms)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let in, and when its chance is better."""

    reason: str
    retry_after_ms: float


def decide_queue(costs: Costs, queue_ms: float, work_max: float = QUEUED_WORK_MAX) -> Refusal | None:
    """Whether one more may wait at all; asked before its body is read."""
    bound = queue_ms_max(costs, work_max)
    if queue_ms <= bound:
        return None
    return Refusal(f"{queue_ms:.0f} ms of work wait, this server lets {bound:.0f} ms wait", queue_ms - bound + costs.mean_ms)


def decide_deadline(queue_ms: float, work_ms: float, left_ms: float) -> Refusal | None:
    """Whether the least that would answer the request still fits into its deadline; asked when its size is known.

    Where nothing waits it is let in whatever was learnt: a server that believed itself too slow would never learn better.
    """
    if queue_ms == 0 or queue_ms + work_ms <= left_ms:
        return None
    reason = f"{queue_ms:.0f} ms of work wait and it needs {work_ms:.0f} ms, of its deadline {left_ms:.0f} ms are left"
    return Refusal(reason, max(0.0, queue_ms + work_ms - left_ms))
