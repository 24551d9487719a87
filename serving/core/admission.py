"""Predicts how long work takes and waits, and decides which requests are admitted: the arithmetic of overload, pure.

A request is refused only if it cannot be answered within its deadline, or in a flood.

Deadline: the engine has one queue, so a request's wait is the work before it. Wait and work must fit into the time that the request has left.

Flood: a queue that empties again is a burst, and harms no request that has the time. A queue that stays gains nothing: every answer is late, and none more
is given. Only the later arrivals distinguish the two. So the first `BURST_WORK` mean pieces of work of a rush count as a burst. If later arrivals exceed what
the engine can do by `EXCESS_WORK` mean pieces, the rush is a flood. In a flood the queue only has to keep the engine busy until the next request comes.
With more load that time is shorter, so the bound on the queue falls as the load grows. Waiting work beyond the bound gets the refusal too.

Source: a standing queue has no use, a burst has: CoDel (Nichols and Jacobson, 2012).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEARNING_RATE = 0.2  # weight of a new value in the exponential average: a change of speed is learnt after about ten pieces of work
SCALE_RATE = 0.05  # of `Scale`: it serves all kinds of work together, so it is slower
DOUBT = 0.95  # with it, a prediction that is ten times too long is tried again after 45 requests that avoided it
# A longer burst, or more excess, is certain to be a flood, but more requests of a flood wait before it is noticed. At ten times the load these take four
# pieces of work together.
BURST_WORK = 2.5  # of a rush, in mean pieces of work, and at least
BURST_MS_MIN = 30.0
EXCESS_WORK = 12.0  # at 80% load, chance hardly ever exceeds this; at least
EXCESS_MS_MIN = 30.0
FLOOD_QUEUE_MAX = 6.0  # bound on the queue in a flood that is no more than
LOAD_MAX = 1.25
FLOOD = 2.5  # from this load on waiting work is judged again
OFFERED_WORK = 3.0  # the offered load is measured over this many times the mean work, and at least over
OFFERED_MS_MIN = 30.0
HELD_WINDOW = 0.25  # share of that time for which one refusal holds; meanwhile the load can fall by a fifth at most
QUEUE_MS_MIN = 10.0  # of a flood of very small requests


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
    """The costs after a job outside the queue. The mean stays: it is of the work in the queue."""
    return Costs({**costs.by_bucket, job.bucket: _toward(costs.by_bucket.get(job.bucket), took_ms)}, costs.mean_ms)


def fold_doubt(costs: Costs, job: Job) -> Costs:
    """The costs after a job was avoided because of its prediction: the prediction falls a little, so that the job is tried again some time."""
    return Costs({**costs.by_bucket, job.bucket: DOUBT * predict_ms(costs, job)}, costs.mean_ms)


@dataclass(frozen=True, slots=True)
class Scale:
    """Smoothed costs of the same work: measured, and as a table of costs says. A table of another machine, or a wrong one, is corrected by their ratio."""

    took_ms: float = 0.0
    expected_ms: float = 0.0

    @property
    def value(self) -> float:
        """Measured time over expected time; 1 if nothing is known."""
        return self.took_ms / self.expected_ms if self.expected_ms else 1.0


def fold_scale(scale: Scale, expected_ms: float, took_ms: float) -> Scale:
    """The scale after a piece of work; one without an expectation changes nothing."""
    if expected_ms <= 0:
        return scale
    if not scale.expected_ms:
        return Scale(took_ms, expected_ms)
    rate = SCALE_RATE
    return Scale(scale.took_ms + rate * (took_ms - scale.took_ms), scale.expected_ms + rate * (expected_ms - scale.expected_ms))


def _toward(before: float | None, seen: float) -> float:
    return seen if before is None else before + LEARNING_RATE * (seen - before)


@dataclass(frozen=True, slots=True)
class Offered:
    """The work offered until `at_ms`, refused requests included. `load`: recently; 1 = as much as the engine can do.

    A rush began at `rush_ms`. It lasts while `backlog_ms` is above 0: the offered work for which the engine had no time. `late_ms`: the same of work that
    came after the rush's burst.
    """

    load: float = 0.0
    at_ms: float = 0.0
    backlog_ms: float = 0.0
    rush_ms: float = 0.0
    late_ms: float = 0.0

    def now(self, now_ms: float, mean_ms: float) -> float:
        """The load at `now_ms` if nothing came since `at_ms`."""
        return self.load * math.exp(-max(0.0, now_ms - self.at_ms) / _window_ms(mean_ms))

    def is_flood(self, now_ms: float, mean_ms: float) -> bool:
        """Whether, after a rush's burst, more work came than the engine can do and than chance explains."""
        return self.late_ms - max(0.0, now_ms - self.at_ms) > _excess_ms(mean_ms)


def fold_offered(offered: Offered, work_ms: float, now_ms: float, mean_ms: float, count: int = 1, came_ms: float | None = None) -> Offered:
    """The work offered after `count` more requests of `work_ms` each. A single request never adds more than 1 to the load.

    `came_ms`: when they arrived, if that was before `now_ms`: bodies of a burst take time to be read, and must not count as late for that.
    """
    came_ms = now_ms if came_ms is None else came_ms
    load = offered.now(now_ms, mean_ms) + count * min(1.0, work_ms / _window_ms(mean_ms))
    passed_ms, most_ms = max(0.0, now_ms - offered.at_ms), 2 * _excess_ms(mean_ms)
    backlog_ms, late_ms = max(0.0, offered.backlog_ms - passed_ms), max(0.0, offered.late_ms - passed_ms)
    rush_ms = offered.rush_ms if backlog_ms else came_ms
    backlog_ms += count * work_ms
    if came_ms - rush_ms > max(BURST_MS_MIN, BURST_WORK * mean_ms):
        late_ms = min(most_ms, late_ms + count * work_ms)  # so a flood is soon forgotten
    return Offered(load, now_ms, min(backlog_ms, most_ms) if late_ms == most_ms else backlog_ms, rush_ms, late_ms)


def _excess_ms(mean_ms: float) -> float:
    return max(EXCESS_MS_MIN, EXCESS_WORK * mean_ms)


def _window_ms(mean_ms: float) -> float:
    return max(OFFERED_MS_MIN, OFFERED_WORK * mean_ms)


def queue_ms_max(costs: Costs, work_max: float = FLOOD_QUEUE_MAX, load: float = 0.0) -> float:
    """How long the queue may be in a flood, in ms of work, under an offered load."""
    return max(QUEUE_MS_MIN, work_max * costs.mean_ms) / max(1.0, load / LOAD_MAX) ** 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, when to retry, and for how long the same refusal may be given to all others, unless some work ends before."""

    reason: str
    retry_after_ms: float
    holds_ms: float = 0.0


def decide_queue(costs: Costs, queue_ms: float, work_max: float = FLOOD_QUEUE_MAX, load: float = 0.0) -> Refusal | None:
    """None if one more request may wait in a flood, else the refusal. Asked before a body is read. The higher the load, the later the retry."""
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
