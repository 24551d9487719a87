"""A user's behaviours as columns, without a Python object per behaviour: a server keeps thousands of users in this form and reads it in call 1.

A behaviour takes 20 bytes with an int64 id (250 as objects), without its features; 1,000 of them are read as 8 KB in a row instead of from 4,000 places in
memory.
Invariants: a value never changes. A longer history shares the columns of the one it was made from and writes only behind its end. So a snapshot is free,
and appending takes constant time on average (now and then all columns move to larger arrays). One thread appends, any thread may read.

Arrays: L behaviours, oldest first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from schemas.ids import Id
from schemas.users import BehaviourEvent

_ROOM_MIN = 16
_NO_FEATURES: Mapping[str, Any] = {}


class _Columns:
    """Columns with room for a number of behaviours, of which `used` are written. `features` None: no behaviour has any."""

    def __init__(self, room: int, text: bool) -> None:
        self.room, self.used, self.text = room, 0, text
        self.items: np.ndarray | list[Id] = [] if text else np.empty(room, np.int64)
        self.times, self.kinds = np.empty(room, np.int64), np.empty(room, np.int32)
        self.names: list[str] = []
        self.codes: dict[str, int] = {}
        self.features: list[Mapping[str, Any]] | None = None

    def write(self, rows: Sequence[tuple[Id, str, int, Mapping[str, Any]]]) -> None:
        """Appends rows. REQUIRES: there is room."""
        items, kinds, times, features = zip(*rows, strict=True)
        at, end = self.used, self.used + len(rows)
        if isinstance(self.items, np.ndarray):
            self.items[at:end] = items
        else:
            self.items.extend(items)
        for name in dict.fromkeys(kinds):
            if name not in self.codes:
                self.codes[name] = len(self.names)
                self.names.append(name)
        self.kinds[at:end], self.times[at:end] = [self.codes[kind] for kind in kinds], times
        if self.features is None and any(features):
            self.features = [_NO_FEATURES] * at
        if self.features is not None:
            self.features.extend(features)
        self.used = end

    def copy(self, start: int, end: int, more: int, text: bool) -> "_Columns":
        """New columns with these behaviours and room for `more` and half as many again. `text`: the kind of ids, if no behaviour shows it yet."""
        kept = end - start
        copied = _Columns(max(_ROOM_MIN, (kept + more) * 3 // 2), self.text if kept else text)
        if isinstance(copied.items, np.ndarray):
            copied.items[:kept] = self.items[start:end]
        else:
            copied.items.extend(self.items[start:end])
        copied.times[:kept], copied.kinds[:kept] = self.times[start:end], self.kinds[start:end]
        copied.names, copied.codes, copied.used = [*self.names], dict(self.codes), kept
        copied.features = None if self.features is None else [*self.features[start:end]]
        return copied


class BehaviourColumns(Sequence[BehaviourEvent]):
    """Behaviours from `start` to `end` of some columns."""

    __slots__ = ("_columns", "_end", "_start")

    def __init__(self, columns: _Columns, start: int, end: int) -> None:
        """Used by `EMPTY`, `of`, slices and `append`. Create others with `EMPTY.append`."""
        self._columns, self._start, self._end = columns, start, end

    @classmethod
    def of(
        cls,
        items: "np.ndarray | list[Id]",
        times_L: np.ndarray,
        kinds_L: np.ndarray,
        names: Sequence[str],
        features: Sequence[Mapping[str, Any]] | None,
    ) -> "BehaviourColumns":
        """The behaviours of whole columns, as the properties give them."""
        columns = _Columns(0, not isinstance(items, np.ndarray))
        columns.room = columns.used = len(times_L)
        columns.items, columns.times, columns.kinds = items, times_L, kinds_L
        columns.names, columns.codes = [*names], {name: code for code, name in enumerate(names)}
        columns.features = None if features is None else [*features]
        return cls(columns, 0, columns.used)

    @property
    def item_ids(self) -> "np.ndarray | list[Id]":
        """The items, as int64 [L] or a list of text."""
        return self._columns.items[self._start : self._end]

    @property
    def kinds(self) -> tuple[Sequence[str], np.ndarray]:
        """(names, int32 [L] = place of each behaviour's kind among them)."""
        return self._columns.names, self._columns.kinds[self._start : self._end]

    @property
    def features(self) -> Sequence[Mapping[str, Any]] | None:
        """The features [L]; None if no behaviour has any."""
        return None if self._columns.features is None else self._columns.features[self._start : self._end]

    def append(self, rows: Sequence[tuple[Id, str, int, Mapping[str, Any]]], kept_max: int) -> "BehaviourColumns":
        """These behaviours and then `rows` of (item id, kind, time in ms, features); the newest `kept_max` of all. All ids are of one kind."""
        rows = rows[-kept_max:]
        if not rows:
            return self
        columns, start, end = self._columns, self._start, self._end
        if end != columns.used or end + len(rows) > columns.room:
            start = max(start, end + len(rows) - kept_max)
            columns = columns.copy(start, end, len(rows), isinstance(rows[0][0], str))
            start, end = 0, end - start
        columns.write(rows)
        end += len(rows)
        return BehaviourColumns(columns, max(start, end - kept_max), end)

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, at: int) -> BehaviourEvent: ...
    @overload
    def __getitem__(self, at: slice) -> "BehaviourColumns": ...
    def __getitem__(self, at: int | slice) -> "BehaviourEvent | BehaviourColumns":
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of behaviours has step {step}, expected 1: they keep their order and their neighbours")
            return BehaviourColumns(self._columns, self._start + start, self._start + max(start, end))
        place = range(self._start, self._end)[at]
        columns = self._columns
        item = columns.items[place]
        features = _NO_FEATURES if columns.features is None else columns.features[place]
        return BehaviourEvent(
            item if isinstance(item, str) else int(item), columns.names[columns.kinds[place]], int(columns.times[place]), features
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(one == its for one, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # it equals lists, which have no hash


EMPTY = BehaviourColumns(_Columns(0, text=False), 0, 0)
