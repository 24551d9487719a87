"""The engine's input and output as plain values.

Every result names the token of the one version it was computed from (I2). A future that fails carries an AifError:

    RejectedInput   `bad_id`, `too_many_candidates`, `bad_top_k`, `too_many_behaviours`: the request is wrong in itself
    Unavailable     `overloaded` (queue full), `no_version` (nothing is live yet), `stopping`
    Incompatible    `version_gone`: the named version, or the state's, is not resident any more; send `user` to compute on the current one

Arrays: C candidates, T tasks, A answers (min(top_k, known candidates)).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from schemas.ids import Id
from schemas.token import VersionToken
from schemas.users import BehaviourEvent


@dataclass(frozen=True, slots=True)
class UserWork:
    """Call 1 of one user. `version` None = the current one; a version that is not resident fails with `version_gone`. Behaviours oldest first.

    `base`: an earlier state of the same user, made from the first of these behaviours. A scorer may continue from it.
    """

    profile: Mapping[str, Any] = field(default_factory=dict)
    behaviours: Sequence[BehaviourEvent] = ()
    version: int | None = None
    base: "UserState | None" = None


class UserState(Protocol):
    """What call 1 leaves for call 2. Immutable, opaque to all but the scorer that made it, and without references into an arena."""

    @property
    def version(self) -> int:
        """The version whose model, rows and signatures it was made from."""

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""

    @property
    def behaviours(self) -> int:
        """How many behaviours are in it: all, or the latest that the model reads."""

    @property
    def behaviours_without_row(self) -> int:
        """How many of them have an item that the version does not have: they count by hashed id, but not in LSH."""

    @property
    def cold(self) -> bool:
        """Neither a profile nor behaviours were given."""


@dataclass(frozen=True, slots=True)
class UserResult:
    """Call 1's answer."""

    token: VersionToken
    state: UserState


@dataclass(frozen=True, slots=True)
class RankWork:
    """Call 2 of one request. `item_ids`: int64 array, or a list of ids of the catalogue's kind; duplicates count once.

    With a state, the request is ranked on the state's version. Without one, `user` is computed in the same turn on its own `version` (None = the current
    one). Without both the user is cold. passes: 2 for level `twopass` of schemas/actions.py.
    """

    item_ids: Sequence[Id] | np.ndarray
    top_k: int
    state: UserState | None = None
    user: UserWork | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1

    @property
    def version(self) -> int | None:
        """The version that it names, None = the current one."""
        by = self.state or self.user
        return None if by is None else by.version


@dataclass(frozen=True, slots=True)
class RankResult:
    """Call 2's answer: scores descending, then ids ascending (numbers, or bytes of text).

    - probabilities_AT: in the order of the model's tasks
    - unknown: the first 100 candidates without a live row
    - candidates: how many different ids were asked for
    - watermark[shard]: next offset per source topic that the rows include
    - state: the user state of the ranking
    - unsigned_count: known candidates without a signature, in a model that reads signatures: no embedding, or one of another width
    - first_A: the first pass's scores of these items; None of a ranking in one pass, and where the user has no long history to leave out
    - processor_ms: processor time of the engine's own thread for this ranking, in which no wait is counted
    """

    token: VersionToken
    ids: list[Id]
    scores_A: np.ndarray
    probabilities_AT: np.ndarray
    unknown: list[Id]
    unknown_count: int
    candidates: int
    watermark: Sequence[Mapping[str, int]]
    state: UserState
    unsigned_count: int = 0
    processor_ms: float = 0.0
    first_A: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class VersionReport:
    """One resident version.

    - positions: next offset per partition of index-deltas
    - source_ms: by shard, the time of its newest source record
    - tiers_by: the code that counts SimTier: compiled, triton, or torch and why
    - device_error: why the CPU ranks instead of the device
    - statistics: names of the features that `aif statistics` keeps current
    """

    token: VersionToken
    rows: int
    capacity: int
    not_servable: int
    watermark: Sequence[Mapping[str, int]]
    source_ms: Mapping[int, int]
    positions: Mapping[int, int]
    changes_applied: int
    tiers_by: str = ""
    device_error: str = ""
    statistics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot, readable from any thread. `current` None: nothing is live yet.

    - faults: unexpected errors of the engine's thread outside a request; last_fault: the last of them, "" = none
    - turn_age_s: how long ago the thread last began a turn or looked for work, in seconds; infinite if it has ended
    """

    device: str
    current: VersionToken | None
    residents: tuple[VersionReport, ...]
    queued_work: int
    queued_changes: int
    answered: int
    failed: int
    flips: int
    faults: int = 0
    last_fault: str = ""
    turn_age_s: float = 0.0


def answer(future: "Future[Any]", call: Callable[[], Any]) -> bool:
    """Runs `call` and puts its result or error into the future. True for a result. A cancelled future (deadline passed) is not computed."""
    if not future.set_running_or_notify_cancel():
        return False
    try:
        future.set_result(call())
        return True
    except BaseException as error:  # it belongs to this request
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return False
