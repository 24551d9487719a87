"""`aif bench switch`: latency while versions are loaded and flipped to every few seconds, compared with the same server at rest; and `--mixed N`.

    server      a real `aif serve` with its loader process and arenas, on a real broker and index store; users with histories in its topics
    load        `/v1/rank` at a constant rate over HTTP in an open loop; all answers are stored and judged afterwards
    switching   every few seconds a new version is published, loaded beside the running one, and flipped to after the user halves have moved
    --mixed N   small versions, loaded in a fraction of a second; inferences from a few senders in a closed loop, of which N answers are judged, not timed

Windows at rest and with switching alternate, because other processes may use the machine. Each score depends on one row and the
model of a version, and versions have disjoint ranges of scores. So a single row of another version is detected, and with --mixed another model, too.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from infra.command import say
from infra.figures import Figures
from infra.index.store import open_index_store
from infra.processes import wait_until
from lab.demo.stage import SHARDS, USER_PARTITIONS
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, REFUSED, Latencies, Target, encode_inferences, run_to_the_microsecond, send_at_rate, send_in_turns
from lab.serving.versions import Ranges, VersionWriter, belongs
from lab.system.stage import BenchStage, open_bench_stage
from schemas.errors import Unavailable
from schemas.events import Behaviour
from schemas.requests import RankAnswer
from schemas.token import decode_token
from serving.client import Client

SWITCH = read_bench("bench switch")

_READY_S_MAX = 300.0
_WARM_S = 3.0
_CONTEXT = {"hour": 20}


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """The size of the versions, the load, and how many answers are measured."""

    items: int = 200_000
    candidates: int = 1_000
    users: int = 32
    behaviours: int = 300
    rate_per_s: float = 100.0
    answers: int = 6_000  # at rest, and as many with switching
    turns: int = 4  # windows of each kind
    every_s: float = 3.0  # between two versions

    def quick(self) -> "SwitchPlan":
        """A look, not a measurement."""
        return replace(self, items=min(self.items, 20_000), answers=min(self.answers, 600), turns=1)

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return self.answers / self.rate_per_s / self.turns


@dataclass
class _Side:
    """Latencies of all windows of one kind, and the bodies of their answers."""

    latencies: Latencies = field(default_factory=Latencies)
    bodies: list[bytes] = field(default_factory=list)


def measure_switch(plan: SwitchPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(SWITCH, asdict(plan))
    with open_switched_server(plan.items, plan.users, plan.behaviours) as (stage, writer):
        target, bodies = _encode_requests(stage, writer, plan)
        run_to_the_microsecond(send_at_rate(target, bodies, plan.rate_per_s, _WARM_S))
        steady, switching = _Side(), _Side()
        for turn in range(plan.turns):
            say(
                f"turn {turn + 1} of {plan.turns}: {plan.window_s:.0f} s at rest, {plan.window_s:.0f} s switching every {plan.every_s:g} s ..."
            )
            steady.latencies.merge(run_to_the_microsecond(_send(target, bodies, plan, steady)))
            switching.latencies.merge(run_to_the_microsecond(_send_while_switching(writer, target, bodies, plan, switching)))
            wait_version(stage, writer, writer.next_version - 1)
    _add_figures(figures, steady, switching)
    return figures


@contextlib.contextmanager
def open_switched_server(items: int, users: int, behaviours: int, two_models: bool = False) -> Iterator[tuple[BenchStage, VersionWriter]]:
    """A real server that answers from version 0 and knows users with histories, and the writer of the versions after it."""
    with open_bench_stage() as stage:
        say(f"two kinds of version of {items} items ...")
        writer = VersionWriter(open_index_store(str(stage.directory / "index")), SHARDS, USER_PARTITIONS, items, two_models)
        writer.publish()
        _publish_users(stage, writer, users, behaviours)
        stage.start("server", "serve", "--port", str(stage.port))
        wait_version(stage, writer, 0)
        yield stage, writer


def _publish_users(stage: BenchStage, writer: VersionWriter, users: int, behaviours: int) -> None:
    """Publishes users 0, 1, ... with histories of random items of the versions."""
    rng = np.random.default_rng(1)
    with stage.publisher() as publisher:
        for user in range(users):
            items = rng.choice(writer.ids, behaviours).tolist()
            publisher.publish_behaviours(Behaviour(user_id=user, item_id=item, time_ms=at) for at, item in enumerate(items))


def _encode_requests(stage: BenchStage, writer: VersionWriter, plan: SwitchPlan) -> tuple[Target, list[bytes]]:
    rng = np.random.default_rng(2)
    bodies = []
    for user in range(plan.users):
        ids = [str(one) for one in rng.choice(writer.ids, plan.candidates, replace=False).tolist()]
        bodies.append(json.dumps({"user_id": user, "item_ids": ids, "top_k": 10, "context": _CONTEXT}).encode())
    return Target(stage.url, "/v1/rank"), bodies


def wait_version(stage: BenchStage, writer: VersionWriter, version: int) -> None:
    """Waits until the server answers from a version. Raises Unavailable (`timed_out`, `child_died`)."""
    ids = [int(one) for one in writer.ids[:2]]

    def is_there() -> bool:
        stage.children[0].check()
        try:
            with Client(stage.url) as client:
                return decode_token(client.rank(0, ids, top_k=1).version_token).version == version
        except Exception:  # not ready yet, whatever it says
            return False

    wait_until(is_there, _READY_S_MAX, f"the server to answer from version {version}", poll_s=0.1)


async def _send(target: Target, bodies: Sequence[bytes], plan: SwitchPlan, side: _Side) -> Latencies:
    return await send_at_rate(target, bodies, plan.rate_per_s, plan.window_s, on_answer=side.bodies.append)


async def _send_while_switching(writer: VersionWriter, target: Target, bodies: Sequence[bytes], plan: SwitchPlan, side: _Side) -> Latencies:
    async with writer.publishing(plan.every_s):
        return await _send(target, bodies, plan, side)


# --- what the answers say ---------------------------------------------------------------------------------------------------


def judge_answer(body: bytes) -> tuple[int, bool]:
    """(the version that an answer names, whether all of its scores belong to that version)."""
    answer = RankAnswer.model_validate_json(body)
    version = decode_token(answer.version_token).version
    return version, belongs(version, [item.score for item in answer.items])


def _add_figures(figures: Figures, steady: _Side, switching: _Side) -> None:
    judged = [[judge_answer(body) for body in side.bodies] for side in (steady, switching)]
    versions = [version for version, _ in judged[1]]
    at_rest, loaded = steady.latencies, switching.latencies
    p99_ms, loaded_p99_ms = at_rest.quantile(OK, 0.99), loaded.quantile(OK, 0.99)
    figures.add("flips", len(set(versions) - {0}))
    figures.add("answers", at_rest.count(OK) + loaded.count(OK))
    figures.add("answers_steady", at_rest.count(OK))
    figures.add("answers_switching", loaded.count(OK))
    figures.add("mixed_versions", sum(not whole for side in judged for _, whole in side))
    figures.add("steady_p50_ms", at_rest.quantile(OK, 0.5))
    figures.add("steady_p99_ms", p99_ms)
    figures.add("switching_p50_ms", loaded.quantile(OK, 0.5))
    figures.add("switching_p99_ms", loaded_p99_ms)
    figures.add("steady_late_p99_ms", at_rest.late.get_quantile_value(0.99))
    figures.add("switching_late_p99_ms", loaded.late.get_quantile_value(0.99))
    figures.add_ratio("p95_ratio", loaded.quantile(OK, 0.95), at_rest.quantile(OK, 0.95))
    figures.add_ratio("p99_ratio", loaded_p99_ms, p99_ms)
    figures.add("refused", at_rest.count(REFUSED) + loaded.count(REFUSED))
    figures.add("failed", at_rest.count(FAILED) + loaded.count(FAILED))


# --- mixed versions alone -------------------------------------------------------------------------------------------------

MIXED = read_bench("bench switch --mixed")

_WINDOW_S = 10.0  # between two lines of progress


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The size of the versions, the load, and how many answers are judged."""

    answers: int = 1_000_000
    items: int = 2_000
    candidates: int = 50
    users: int = 64
    behaviours: int = 50
    senders: int = 4
    every_s: float = 0.5  # between two versions


@dataclass
class Judged:
    """The answers so far: how many, how many mixed versions, and which versions they named."""

    ranges: Ranges
    answers: int = 0
    mixed: int = 0
    versions: set[int] = field(default_factory=set)

    def add(self, body: bytes) -> None:
        """Judges an answer of the Open Inference Protocol whose only output is the scores as raw bytes."""
        version, scores = decode_scores(body)
        self.answers += 1
        self.mixed += not belongs(version, scores, self.ranges)
        self.versions.add(version)


def decode_scores(body: bytes) -> tuple[int, Sequence[float]]:
    """(the version that an answer names, its scores). Raises ValueError for an answer without scores, which could not be judged."""
    header, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    scores = np.frombuffer(body, "<f4", offset=end).tolist()
    if not scores:
        raise ValueError(f"an answer without scores: {header}")
    return decode_token(header["parameters"]["version_token"]).version, scores


def encode_requests(url: str, ids: np.ndarray, plan: MixedPlan) -> tuple[Target, list[bytes]]:
    """One inference per user, each with candidates of its own, all of which are returned."""
    rng, top_k = np.random.default_rng(2), np.array([plan.candidates])
    requests = [
        {"user_id": np.array([user]), "item_ids": rng.choice(ids, plan.candidates, replace=False), "top_k": top_k}
        for user in range(plan.users)
    ]
    outputs = [{"name": "scores", "parameters": {"binary_data": True}}]
    return encode_inferences(url, {"outputs": outputs, "parameters": {"context.hour": 20}}, requests)


def measure_mixed(plan: MixedPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(MIXED, asdict(plan))
    with open_switched_server(plan.items, plan.users, plan.behaviours, two_models=True) as (stage, writer):
        judged, began_s = Judged(writer.ranges), time.monotonic()
        seen = run_to_the_microsecond(_send_all(stage.url, writer, plan, judged))
    figures.add("answers", judged.answers)
    figures.add("mixed_versions", judged.mixed)
    figures.add("flips", len(judged.versions - {0}))
    figures.add("answers_per_s", judged.answers / (time.monotonic() - began_s))
    figures.add("refused", sum(one.count(REFUSED) for one in seen))
    figures.add("failed", sum(one.count(FAILED) for one in seen))
    return figures


async def _send_all(url: str, writer: VersionWriter, plan: MixedPlan, judged: Judged) -> list[Latencies]:
    """Sends until there are as many answers as the plan wants, while versions are published."""
    (target, bodies), seen = encode_requests(url, writer.ids, plan), list[Latencies]()
    async with writer.publishing(plan.every_s):
        while judged.answers < plan.answers:
            seen.append(await send_in_turns(target, bodies, plan.senders, _WINDOW_S, judged.add))
            say(f"{judged.answers} answers, {len(judged.versions)} versions, {judged.mixed} mixed")
            if not seen[-1].count(OK):
                failed, refused = seen[-1].count(FAILED), seen[-1].count(REFUSED)
                raise Unavailable("no_answers", f"no answer in {_WINDOW_S:g} s: {failed} requests failed, {refused} were refused")
    return seen
