"""Rows of a few bytes in lists and dictionaries, in the place of arenas and kernels: for one or two rows a batch those cost several times as much.

Here: `PlainRows` for infra/joined.py `Joined` and what makes them, `PlainHeldRows` for infra/held_rows.py. Not here: when they stand in (haste.py: in
three histories of four). Whoever asks with a `Joined` is answered with one. test_fakes.py runs the same cases on these and on the real ones.
"""

from collections.abc import Sequence

import numpy as np

from infra.held_rows import ROW_COST_BYTES, UNKNOWN
from infra.joined import NONE, Joined, join_some, prefix_each
from streams.stored.packed_changes import PackedChanges

_NOT_HELD = object()  # in the place of a value whose key is not held
_NOWHERE: tuple[int, ...] = ()


class PlainRows:
    """Values one after the other, as `Joined`, without arrays."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self._values = values

    @property
    def rows(self) -> int:
        return len(self._values)

    def take(self, places: Sequence[int]) -> "PlainRows":
        return PlainRows([self._values[place] for place in places])

    def to_list(self) -> Sequence[bytes | None]:
        return self._values

    present = to_list


Rows = PlainRows | Joined


def join_plain_runs(runs: Sequence[Rows]) -> Rows:
    """`join_runs`."""
    return runs[0] if len(runs) == 1 else PlainRows([value for run in runs for value in run.to_list()])


def prefix_plain(prefix: bytes, values: Rows) -> Rows:
    """`prefix_each`."""
    return prefix_each(prefix, values) if isinstance(values, Joined) else PlainRows([prefix + (value or b"") for value in values.to_list()])


def pack_plain_changes(keys: Rows, values: Rows) -> PackedChanges:
    """`pack_changes`."""
    packed = [len(k).to_bytes(2, "little") + k + v for k, v in zip(keys.present(), values.present(), strict=True)]  # type: ignore[arg-type, operator]
    return PackedChanges(np.frombuffer(b"".join(packed), np.uint8), np.cumsum([len(one) for one in packed]))


class PlainHeldRows:
    """`HeldRows`."""

    def __init__(self, is_complete: bool = False) -> None:
        self.is_complete = is_complete
        self._rows: dict[bytes, bytes | None] = {}
        self._unsettled: dict[bytes, None] = {}

    @property
    def bytes(self) -> int:
        return ROW_COST_BYTES * len(self._rows)

    def get(self, keys: Rows) -> Rows:
        held, otherwise = self._rows, None if self.is_complete else _NOT_HELD
        found = [held.get(key, otherwise) for key in keys.present()]  # type: ignore[arg-type, call-overload]
        return _joined(found) if isinstance(keys, Joined) else PlainRows(found)

    def unknown(self, found: Rows) -> Sequence[int]:
        if self.is_complete:
            return _NOWHERE
        if isinstance(found, Joined):
            return np.flatnonzero(found.starts_R == UNKNOWN).tolist()
        return [place for place, value in enumerate(found.to_list()) if value is _NOT_HELD]

    def put(self, keys: Rows, values: Rows, settled: bool) -> None:
        new = dict(zip(keys.present(), values.to_list(), strict=True))
        self._rows.update(new)  # type: ignore[arg-type]
        if not settled:
            self._unsettled.update(dict.fromkeys(new))  # type: ignore[arg-type]

    def let_go(self) -> None:
        self.is_complete = False
        self._rows = {key: self._rows[key] for key in self._unsettled}

    def settle(self) -> None:
        self._unsettled = {}

    def unsettled(self) -> tuple[PlainRows, PlainRows]:
        return PlainRows(list(self._unsettled)), PlainRows([self._rows[key] for key in self._unsettled])


def _joined(found: Sequence[object]) -> Joined:
    joined = join_some([value if isinstance(value, bytes) else None for value in found])
    begin = np.array([UNKNOWN if value is _NOT_HELD else NONE for value in found], np.int64)
    return Joined(
        joined.bytes_T, np.where(joined.starts_R < 0, begin, joined.starts_R), np.where(joined.starts_R < 0, begin, joined.ends_R)
    )
