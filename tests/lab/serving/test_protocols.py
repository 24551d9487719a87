"""The protocols' part of `aif bench rank`, on a small engine: every figure is there, and each timed call is a real answer of its protocol."""

import contextlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from infra.figures import Figures
from lab.load import Target
from lab.serving.client import HttpConnection
from lab.serving.protocols import KINDS, encode_requests, measure_protocols, open_ports
from lab.serving.rank import RANK
from lab.serving.world import Plan
from schemas.users import BehaviourEvent
from serving.engine.work import UserState, UserWork
from tests.serving.fake_engine import FakeEngine


@dataclass
class SmallWorld:
    engine: FakeEngine = field(default_factory=FakeEngine)

    def requests(self, candidates: int, count: int = 16) -> list[np.ndarray]:
        return [np.arange(i, i + candidates) for i in range(count)]

    def history(self, length: int) -> list[BehaviourEvent]:
        return [BehaviourEvent(item, "click", item) for item in range(length)]

    def user(self, history: list[BehaviourEvent]) -> UserState:
        return self.engine.submit_user(UserWork({"age": 1.0}, history)).result().state


def test_every_figure_is_there_for_every_size() -> None:
    figures, plan = Figures(RANK), Plan((3, 20), turns=2, calls=4)
    measure_protocols(SmallWorld(), plan, figures)  # type: ignore[arg-type]
    for size in plan.candidates:
        for kind in KINDS:
            p50_ms, ratio = figures.value(f"{kind}_p50_ms_{size}"), figures.value(f"{kind}_over_engine_{size}")
            assert p50_ms is not None and p50_ms > 0 and ratio is not None and ratio > 0


def test_a_request_that_is_refused_ends_the_measurement() -> None:
    with open_ports(FakeEngine()) as ports:  # type: ignore[arg-type]
        requests = encode_requests(ports, [np.arange(5)])
        with contextlib.closing(HttpConnection(ports.host, ports.port)) as connection:
            connection.send(requests["http_binary"][0])
            connection.send(requests["http_json"][0])
            with pytest.raises(SystemExit, match="not_json"):
                connection.send(Target(ports.url, "/v1/rank").encode(b"{"))
