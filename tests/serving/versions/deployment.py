"""An index store, topics, an engine and a follower: what the tests of versions and of their deltas run on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.kafka.admin import topic_ids
from infra.kafka.security import KafkaTopics
from infra.processes import wait_until
from schemas.ids import Id
from serving.engine.loop.engine import Engine
from serving.engine.work import RankResult, RankWork, UserWork
from serving.versions.version_follower import VersionFollower
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version, reference_answer, stamp
from tests.serving.index_samples import DeltaWriter, publish_version, write_identity

WAIT_S = 120.0
ITEMS = 120
HISTORY: Callable[[Version], list] = lambda version: make_behaviours(version, 12)  # noqa: E731


class Deployment:
    """An index store, topics, an engine and a follower of one test."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str) -> None:
        folder.mkdir()
        self.kafka = KafkaTopics(bootstrap, prefix)
        self.folder, self.store = folder, open_index_store(str(folder))
        self.log, self.deltas, self.engine = ControlLog(self.store), DeltaWriter(bootstrap, prefix), Engine()
        self.engine.start()
        self.follower = self.new_follower()
        self.version = make_version(SPECS["full"], ITEMS)
        write_identity(self.log, self.version, topic_ids(bootstrap, prefix))

    def new_follower(self, **settings: object) -> VersionFollower:
        return VersionFollower(self.engine, self.store.url, self.kafka, poll_s=0.02, grace_s=0.0, **settings)  # type: ignore[arg-type]

    def close(self) -> None:
        self.follower.close()
        self.engine.close()

    def publish(self, number: int, version: Version, **how: object) -> None:
        publish_version(self.store, self.log, version, number, **how)  # type: ignore[arg-type]

    def wait_live(self, number: int) -> None:
        wait_until(lambda: self.live == number, WAIT_S, f"version {number} (last error: {self.follower.last_error})")

    def wait_error(self, code: str) -> None:
        wait_until(lambda: code in self.follower.last_error, WAIT_S, f"{code}, not {self.follower.last_error!r}")

    @property
    def live(self) -> int | None:
        current = self.engine.status().current
        return None if current is None else current.version

    @property
    def rows(self) -> int:
        """Live rows of the version that answers."""
        status = self.engine.status()
        return next((report.rows for report in status.residents if report.token == status.current), 0)

    def rank(self, version: Version, top_k: int = 5) -> RankResult:
        return self.engine.submit_rank(RankWork(version.ids, top_k, user=UserWork(PROFILE, HISTORY(version)), context=CONTEXT)).result(
            WAIT_S
        )

    def assert_serves(self, version: Version, number: int) -> None:
        answer = self.rank(version, ITEMS)
        wanted = reference_answer(version, PROFILE, HISTORY(version), range(ITEMS), ITEMS)
        assert answer.token.version == number and np.allclose(answer.scores_A, [s for _, s, _ in wanted], rtol=1e-5)


def with_bids(version: Version, places: list[int], bid: float) -> Version:
    """The version after a change of the bid of some items."""
    rows = version.rows.copy()
    rows["bid"][places] = bid
    return dataclasses.replace(version, rows=rows)


def changes(version: Version, places: list[int], features_version: int, offset: int = 9) -> list[tuple[Id, np.ndarray, np.ndarray | None]]:
    return [(version.ids[p], stamp(features_version, offset), version.rows[p]) for p in places]
