"""A small engine for tests of the front: two versions without arithmetic. Its promises are held against the real one in test_engine_contract.py."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.errors import Incompatible, Unavailable
from schemas.ids import Id, encode_index_key
from schemas.model.parameters import Parameters
from schemas.token import VersionToken
from serving.engine.work import EngineStatus, RankResult, RankWork, UserResult, UserWork, VersionReport


@dataclass(frozen=True)
class FakeState:
    version: int
    size_bytes: int
    behaviours: int
    behaviours_without_row: int
    cold: bool


@dataclass
class FakeEngine:
    """Items 0 .. rows - 1 (as text if asked) are known; an item's score is a fixed function of its id and the version."""

    rows: int = 100
    text_ids: bool = False
    current: VersionToken | None = field(default_factory=lambda: VersionToken(7, 0, "0" * 8))
    previous: VersionToken | None = None
    watermark: list[dict[str, int]] = field(default_factory=lambda: [{"item-features": 5, "new-items": 3, "index-deltas": 2}])
    state_bytes: int = 1000
    stuck: bool = False  # futures never end
    error: Exception | None = None  # every future fails with it
    user_calls: int = 0
    long_history: int = 4_096

    def submit_user(self, work: UserWork) -> "Future[UserResult]":
        self.user_calls += 1
        return self._future(lambda: UserResult(self._token(work.version), self._state(work)))

    def is_long(self, work: UserWork) -> bool:
        return self.count_unread(work) > self.long_history

    def count_unread(self, work: UserWork) -> int:
        return len(work.behaviours) - (0 if work.base is None else work.base.behaviours)

    def submit_rank(self, work: RankWork) -> "Future[RankResult]":
        return self._future(lambda: self._rank(work))

    def status(self) -> EngineStatus:
        residents = tuple(
            VersionReport(token, self.rows, 2 * self.rows, 0, tuple(self.watermark), {}, {0: 2}, 0)
            for token in (self.current, self.previous)
            if token is not None
        )
        return EngineStatus("cpu", self.current, residents, 0, 0, 0, 0, 0)

    def find_parameters(self, version: int) -> Parameters | None:
        return None

    def find_token(self, version: int) -> VersionToken | None:
        return next((token for token in (self.current, self.previous) if token is not None and token.version == version), None)

    def known(self, item: Id) -> bool:
        number = int(item)
        return 0 <= number < self.rows

    def score(self, item: Id, version: int) -> float:
        return float((int(item) * 37 + version) % 101)

    def _future(self, make: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.stuck:
            return future
        try:
            if self.error is not None:
                raise self.error
            future.set_result(make())
        except Exception as error:
            future.set_exception(error)
        return future

    def _token(self, version: int | None) -> VersionToken:
        if self.current is None:
            raise Unavailable("no_version", "nothing is live yet")
        if version is None:
            return self.current
        for token in (self.current, self.previous):
            if token is not None and token.version == version:
                return token
        raise Incompatible("version_gone", f"version {version} is not resident; the current one is {self.current}")

    def _state(self, work: UserWork) -> FakeState:
        cold = not work.profile and not work.behaviours
        return FakeState(self._token(work.version).version, self.state_bytes, len(work.behaviours), 0, cold)

    def _rank(self, work: RankWork) -> RankResult:
        state = work.state or self._state(work.user or UserWork())
        token = self._token(state.version)
        asked = list(dict.fromkeys(np.asarray(work.item_ids).tolist() if isinstance(work.item_ids, np.ndarray) else work.item_ids))
        known = sorted((i for i in asked if self.known(i)), key=lambda i: (-self.score(i, token.version), encode_index_key(i)))
        unknown = [i for i in asked if not self.known(i)]
        best = known[: work.top_k]
        scores = np.array([self.score(i, token.version) for i in best], np.float32)
        return RankResult(
            token,
            best,
            scores,
            np.stack([scores / 101], axis=1),
            unknown[:100],
            len(unknown),
            len(asked),
            tuple(self.watermark),
            state,
        )
