"""`aif bench switch --mixed N`: judges N answers of a server that flips to a new version as often as it can load one, and counts those that mix versions.

    server      a real `aif serve` with a real broker and index store, as in switch.py
    versions    small, so that one is loaded in a fraction of a second; every score shows the rows and the model of its version (versions.py)
    load        inferences over HTTP with binary tensors from a few senders in a closed loop; answers are counted here, not timed

Here: the plan, and judging answers. Not here: latency while versions flip (switch.py). Each score is computed from the model and one row of a version,
and an answer returns all of its candidates, so a single row of another version, or the model of another, is detected.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, REFUSED, Latencies, Target, encode_inferences, run_to_the_microsecond, send_in_turns
from lab.serving.switch import open_switched_server
from lab.serving.versions import Ranges, VersionWriter, belongs
from schemas.errors import Unavailable
from schemas.token import decode_token

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
