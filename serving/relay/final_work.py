"""Inputs and results of a final ranking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.ids import Id
from serving.core.relay_rungs import FinalRung
from serving.relay.kv_pool import Prefix
from serving.relay.window import Window
from serving.users.user_store import KnownUser


@dataclass(frozen=True, slots=True)
class FinalWork:
    """One final ranking. `item_ids` and `aif_logits_CT` in AIF's order; `due_s`: when it must be answered, on the monotonic clock."""

    user_id: Id
    user: KnownUser
    version: int
    request_id: str
    item_ids: Sequence[Id]
    aif_logits_CT: np.ndarray
    context: Mapping[str, Any]
    due_s: float


@dataclass(frozen=True, slots=True)
class FinalResult:
    """The rung and the logits float32 [C, T]. The ranking read `read` behaviours from place `start` of the history. The keys and values of `kept` of them were
    there already. `offset`: the newest record of the behaviour log among them."""

    rung: FinalRung
    logits_CT: np.ndarray
    start: int = 0
    read: int = 0
    kept: int = 0
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What the ranking thread found for one ranking. `had`, `done`: the prefix's window then, and how many of its tokens were computed. Signals may lengthen
    it. `older`: the window of a kept prefix that begins before the one that is due."""

    window: Window
    prefix: Prefix | None
    had: Window | None
    done: int
    expected: bool
    same: bool
    older: Window | None
    truncated: Window


def aif_order(work: FinalWork) -> FinalResult:
    """The answer without the ranker: AIF's logits, and so its order."""
    return FinalResult(FinalRung.AIF_ORDER, work.aif_logits_CT)
