"""`aif bench allocation`: a spike of three times the load, with the queue's price, with admission alone, and with the best static lists.

Here: the trace, the variants in turns, the judge of values. Not here: the load (lab/load.py), the server (server.py), the decision (serving/allocation).
The judge knows each candidate's value from full work on the whole list, asked before the trace. No variant sees these values, and no answer of the trace
decides about another one. Each turn draws a new trace; all variants of a turn get the same one.
"""

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist

import httpx
import numpy as np

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, Latencies, Target, encode_inferences, run_to_the_microsecond, send_at, send_in_turns
from lab.serving.overload import OverloadPlan, merge_turns, open_server, ratio_of_turns
from schemas.errors import Unavailable
from serving.time_slices import take_short_slices

ALLOCATION_BENCH = read_bench("bench allocation")

LOAD, SPIKE = 0.8, 3.0
VALUE_SIGMA, RETRIEVAL_CORRELATION = 1.4, 0.5
TOP_K = 100
PHASES = ("before", "spike", "after")
_SENDERS = 3
_APART_S = 0.2  # requests of full work to the judge
_REST_S = 0.5  # between two variants, until the queue is empty and the price is 0
_HEAD = {"outputs": [{"name": "item_ids", "parameters": {"binary_data": True}}]}


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    """The synthetic world, the trace, and the static lists to compare with."""

    items: int = 100_000
    users: int = 32
    behaviours: int = 1_000
    candidates: int = 10_000
    seconds: float = 10.0  # of each of the three phases
    turns: int = 3
    static: tuple[int, ...] = (1_000, 2_000, 4_000)


@dataclass(slots=True)
class Window:
    """Answers of one variant in one phase of one turn. `value`: sum over requests, each as a share of full work's."""

    latencies: Latencies = field(default_factory=Latencies)
    requests: int = 0
    value: float = 0.0
    candidates: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Requests in retrieval's order, int64 [R, C], and the value of each candidate as a share of what full work's answer has, by request."""

    ids_RC: np.ndarray
    values: Sequence[Mapping[int, float]]


def measure_allocation(plan: AllocationPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(ALLOCATION_BENCH, asdict(plan))
    world = OverloadPlan(plan.items, plan.users, plan.behaviours, plan.candidates)
    with open_server(world) as server, httpx.Client(base_url=server.url, timeout=60.0) as http:
        # The sender shares a core with the ports, and its time slice would be in every latency.
        take_short_slices({threading.get_native_id()})
        say("each candidate's value by full work ...")
        judged = judge(server.url, server.requests, plan)
        variants = {"off": len(judged.ids_RC[0]), "queue": len(judged.ids_RC[0]), **{f"static_{n}": n for n in plan.static}}
        whole, capacities, without_core_s = encode(server.url, judged.ids_RC, plan), list[float](), 0.0
        say(f"{plan.turns} turns of {', '.join(variants)}, {3 * plan.seconds:g} s each ...")
        windows: dict[str, dict[str, list[Window]]] = {name: defaultdict(list) for name in variants}
        for turn in range(plan.turns):
            http.post("/v1/allocation/mode", json={"mode": "off"}).raise_for_status()
            capacities.append(measure_capacity(*whole, plan.seconds / 2))
            say(f"turn {turn + 1}: carries {capacities[-1]:.0f} answers of full work a second")
            moments_s, phase_R = draw_trace(LOAD * capacities[-1], plan.seconds, turn)
            for name, length in variants.items():
                http.post("/v1/allocation/mode", json={"mode": "queue" if name == "queue" else "off"}).raise_for_status()
                time.sleep(_REST_S)
                target, bodies = encode(server.url, judged.ids_RC[:, :length], plan)
                before_s = server.without_core_s()
                for phase, window in run_trace(target, bodies, moments_s, phase_R, judged.values).items():
                    windows[name][phase].append(window)
                without_core_s += server.without_core_s() - before_s if name == "queue" else 0.0
                spike = windows[name]["spike"][-1]
                say(
                    f"turn {turn + 1}, {name}: {spike.latencies.count(OK)} of {spike.requests} ranked in the spike, value {share(spike):.3f}"
                )
        status = http.get("/v1/allocation").raise_for_status().json()
    add_figures(figures, windows, plan)
    figures.add("without_core_pct", 100 * without_core_s / (len(PHASES) * plan.seconds * plan.turns))
    figures.add("capacity_per_s", float(np.mean(capacities)))
    figures.add("decision_p50_us", status["decision_p50_us"])
    figures.add("decision_p99_us", status["decision_p99_us"])
    return figures


def measure_capacity(target: Target, bodies: Sequence[bytes], seconds: float) -> float:
    """Answers of full work a second, in a closed loop. Measured in every turn, because other processes may use the machine."""
    carried = run_to_the_microsecond(send_in_turns(target, bodies, _SENDERS, seconds))
    if not carried.count(OK):
        raise Unavailable("no_answers", "the server answered no request of the closed loop; its log has the reason")
    return carried.count(OK) / carried.seconds


def judge(url: str, ids_RC: np.ndarray, plan: AllocationPlan) -> Judged:
    """Asks full work for the whole order of each list of candidates; makes retrieval's orders and the judge's values from it."""
    rng = np.random.default_rng(0)
    target, bodies = encode(url, ids_RC, plan, top_k=plan.candidates)
    orders: dict[int, np.ndarray] = {}

    def keep(number: int, outcome: str, ms: float, body: bytes) -> None:
        if outcome == OK:
            orders[number] = np.frombuffer(body[-8 * plan.candidates :], np.int64)

    run_to_the_microsecond(send_at(target, bodies, [_APART_S * number for number in range(len(bodies))], keep))
    if len(orders) < len(bodies):
        raise Unavailable("no_answers", f"the server answered {len(orders)} of {len(bodies)} requests of full work; its log has the reason")
    normal = NormalDist()
    z_C = np.array([normal.inv_cdf(1 - (place + 0.5) / plan.candidates) for place in range(plan.candidates)])  # best first
    value_C = np.exp(VALUE_SIGMA * z_C)
    value_C /= value_C[:TOP_K].sum()
    ordered = []
    for number in range(len(bodies)):
        noise_C = math.sqrt(1 - RETRIEVAL_CORRELATION**2) * rng.standard_normal(plan.candidates)
        ordered.append(orders[number][np.argsort(-(RETRIEVAL_CORRELATION * z_C + noise_C))])
    values = [dict(zip(orders[number].tolist(), value_C.tolist(), strict=True)) for number in range(len(bodies))]
    return Judged(np.stack(ordered), values)


def encode(url: str, ids_RC: np.ndarray, plan: AllocationPlan, top_k: int = TOP_K) -> tuple[Target, list[bytes]]:
    """One inference for each list of candidates, whose answer has the ids as its last bytes."""
    users = [np.array([number % plan.users]) for number in range(len(ids_RC))]
    return encode_inferences(
        url, _HEAD, [{"user_id": u, "item_ids": c, "top_k": np.array([top_k])} for u, c in zip(users, ids_RC, strict=True)]
    )


def draw_trace(rate_per_s: float, seconds: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(moments in seconds, place of the phase of each): Poisson arrivals at the rate, at SPIKE times the rate, and at the rate."""
    rng = np.random.default_rng([seed, 7])
    counts = [rng.poisson(factor * rate_per_s * seconds) for factor in (1.0, SPIKE, 1.0)]
    moments = [place * seconds + np.sort(rng.random(count)) * seconds for place, count in enumerate(counts)]
    return np.concatenate(moments), np.repeat(np.arange(3), counts)


def run_trace(
    target: Target, bodies: Sequence[bytes], moments_s: np.ndarray, phase_R: np.ndarray, values: Sequence[Mapping[int, float]]
) -> Mapping[str, Window]:
    """One variant under one trace, by phase. Answers are judged after the trace."""
    windows = {phase: Window() for phase in PHASES}
    answers: list[tuple[int, bytes]] = []

    def note(number: int, outcome: str, ms: float, body: bytes) -> None:
        windows[PHASES[phase_R[number]]].latencies.add(outcome, ms)
        if outcome == OK:
            answers.append((number, body))

    places = np.arange(len(moments_s)) % len(bodies)

    def leave(number: int, late_ms: float) -> None:
        windows[PHASES[phase_R[number]]].latencies.late.add(late_ms)

    run_to_the_microsecond(send_at(target, [bodies[place] for place in places.tolist()], moments_s.tolist(), note, leave))
    for phase, count in zip(PHASES, np.bincount(phase_R, minlength=3).tolist(), strict=True):
        windows[phase].requests = count
    for number, body in answers:
        window, of = windows[PHASES[phase_R[number]]], values[places[number]]
        window.value += sum(of[item] for item in np.frombuffer(body[-8 * TOP_K :], np.int64).tolist())
        window.candidates += json.loads(body[: -8 * TOP_K])["parameters"]["candidates"]
    return windows


def share(*windows: Window) -> float:
    """Value of all requests of the windows, refused ones included, as a share of full work's."""
    return sum(one.value for one in windows) / max(1, sum(one.requests for one in windows))


def add_figures(figures: Figures, windows: Mapping[str, Mapping[str, Sequence[Window]]], plan: AllocationPlan) -> None:
    """Everything that is made of the windows."""

    def whole(name: str) -> float:
        return share(*(one for phase in PHASES for one in windows[name][phase]))

    def ranked(name: str) -> float:
        return sum(one.latencies.count(OK) for one in windows[name]["spike"]) / sum(one.requests for one in windows[name]["spike"])

    def latencies(name: str, phase: str) -> list[Latencies]:
        return [one.latencies for one in windows[name][phase]]

    static = [f"static_{n}" for n in plan.static]
    figures.add("ranked_share", ranked("queue"))
    figures.add("ranked_share_off", ranked("off"))
    figures.add_interval("p99_ratio", ratio_of_turns(latencies("queue", "spike"), latencies("queue", "before"), 0.99))
    figures.add("value_kept", whole("queue"))
    figures.add("value_kept_static", max(whole(name) for name in static))
    figures.add("value_kept_off", whole("off"))
    figures.add("value_kept_spike", share(*windows["queue"]["spike"]))
    figures.add("value_kept_static_spike", max(share(*windows[name]["spike"]) for name in static))
    figures.add("value_kept_off_spike", share(*windows["off"]["spike"]))
    for length, name in zip(plan.static, static, strict=True):
        figures.add(f"static_{length}.value_kept", whole(name))
        figures.add(f"static_{length}.value_kept_spike", share(*windows[name]["spike"]))
        figures.add(f"static_{length}.ranked_share", ranked(name))
        figures.add(f"static_{length}.p99_ratio", ratio_of_turns(latencies(name, "spike"), latencies(name, "before"), 0.99).value)
    before, spike = (merge_turns(latencies("queue", phase)) for phase in ("before", "spike"))
    figures.add("steady_p99_ms", before.quantile(OK, 0.99))
    figures.add("spike_p99_ms", spike.quantile(OK, 0.99))
    figures.add("steady_late_p99_ms", before.late.get_quantile_value(0.99))
    figures.add("spike_late_p99_ms", spike.late.get_quantile_value(0.99))
    figures.add("off_steady_p99_ms", merge_turns(latencies("off", "before")).quantile(OK, 0.99))
    figures.add("answers_spike", spike.count(OK))
    figures.add("candidates_mean_spike", sum(one.candidates for one in windows["queue"]["spike"]) / max(1, spike.count(OK)))
    everything = [one.latencies for by_phase in windows.values() for turns in by_phase.values() for one in turns]
    figures.add("errors", sum(one.count(FAILED) for one in everything))
