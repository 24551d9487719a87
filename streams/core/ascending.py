"""Values by key, out of pages whose keys ascend, for questions whose keys ascend too. Pure.

Invariant: memory is bounded by a few pages, whatever lies between two keys.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")
_PAGES_MAX = 4


class AscendingLookup(Generic[V]):
    """`next_page(rows)` returns the next pairs of key and value, about that many, and none at the end."""

    def __init__(self, next_page: Callable[[int], Sequence[tuple[bytes, V]]], page_rows: int) -> None:
        self._next_page, self._page_rows = next_page, page_rows
        self.held: dict[bytes, V] = {}
        self._last, self._ended = b"", False

    def take(self, keys: Sequence[bytes]) -> list[V | None]:
        """One value for each key, None if absent. The next call's keys come after these."""
        while not self._ended and self._last < keys[-1]:
            page = self._next_page(self._page_rows if self.held else len(keys))
            if not self.held and [key for key, _ in page] == keys:  # as it is where every key has a value: nothing to look up
                self._last = keys[-1]
                return [value for _, value in page]
            self.held.update(page)
            self._last, self._ended = page[-1][0] if page else self._last, not page
            if len(self.held) > _PAGES_MAX * self._page_rows:
                asked = set(keys)
                self.held = {k: v for k, v in self.held.items() if k in asked or k > keys[-1]}
        found = list(map(self.held.get, keys))
        self.held = {k: v for k, v in self.held.items() if k > keys[-1]} if self._last > keys[-1] else {}
        return found
