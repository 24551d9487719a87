"""Which behaviours of a history the ranker reads, as rows of its tables; and whether a kept prefix is a part of them.

Content decides, not a number: a prefix is used only if its tokens are the ones that the ranking would compute. So a view of users that was made again, or a
history that lost its oldest behaviours, never meets a prefix of something else.
Arrays: n behaviours, oldest first.
"""

import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.model.ranker.spec import encode_items, window_start
from schemas.model.spec import ModelSpec
from serving.users.user_store import KnownUser


@dataclass(frozen=True, slots=True)
class Window:
    """A profile and n behaviours from place `start` of a history. `offset`: the newest record of the behaviour log in the history. `made_of`: the snapshot
    with this history, as long as the server keeps it."""

    profile: Mapping[str, Any]
    profile_text: str
    start: int
    items_n: np.ndarray
    kinds_n: np.ndarray
    offset: int
    made_of: weakref.ref[KnownUser] | None = None

    def __len__(self) -> int:
        return len(self.items_n)

    @property
    def tokens(self) -> int:
        """The profile's token and one for each behaviour."""
        return 1 + len(self)

    def cut(self, first: int, end: int) -> "Window":
        """The behaviours from `first` to `end` of this window."""
        return Window(self.profile, self.profile_text, self.start + first, self.items_n[first:end], self.kinds_n[first:end], self.offset)

    def is_of(self, user: KnownUser, start: int) -> bool:
        """Whether it has all behaviours of this very snapshot from place `start` on."""
        same = self.made_of is not None and self.made_of() is user
        return same and self.start == start and len(self) == len(user.behaviours) - start

    def begins_with(self, other: "Window") -> bool:
        """Whether `other` is this window without its newest behaviours."""
        n = len(other)
        same = self.start == other.start and n <= len(self) and self.profile_text == other.profile_text
        return same and np.array_equal(self.items_n[:n], other.items_n) and np.array_equal(self.kinds_n[:n], other.kinds_n)


def open_window(spec: ModelSpec, user: KnownUser, start: int | None = None, known: Window | None = None) -> Window:
    """The window of a history that is due now, or the one from place `start`. `known`: a window of this version. It is returned if it is this one, made of the
    same snapshot, because encoding 2,048 behaviours takes 0.4 ms. REQUIRES: the spec has a ranker."""
    assert spec.ranker is not None
    first = window_start(spec.ranker, len(user.behaviours)) if start is None else start
    if known is not None and known.is_of(user, first):
        return known
    behaviours = user.behaviours[first:]
    names, codes_n = behaviours.kinds
    kinds = spec.schema.behaviour_kinds
    rows = np.array([kinds.index(name) + 1 if name in kinds else 0 for name in names], np.int64)
    profile_text = json.dumps(dict(user.profile), sort_keys=True, default=str)
    ids = behaviours.item_ids
    items_n = encode_items(spec.ranker, ids.tolist() if isinstance(ids, np.ndarray) else ids)
    kinds_n = rows[codes_n] if len(codes_n) else np.zeros(0, np.int64)
    return Window(user.profile, profile_text, first, items_n, kinds_n, user.offsets[1], weakref.ref(user))
