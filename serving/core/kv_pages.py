"""The pages of a KV pool, counted: who holds which, and that none is lost or held twice.

Here: numbers of pages. Not here: the memory behind them (serving/relay/kv_pool.py). Pages are reserved before the work that fills them begins, so that work
which is admitted never finds the pool full. No thread safety: the pool holds a lock.
"""

from collections.abc import Collection, Iterable, Sequence


class KvPages:
    """`total` pages, all free at first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """So many free pages; None, and nothing taken, if there are too few."""
        if count > len(self._free):
            return None
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give_back(self, pages: Iterable[int]) -> None:
        """Frees pages."""
        self._free.extend(pages)

    def check(self, held: Collection[Sequence[int]]) -> None:
        """Raises ValueError unless free and held pages are each page exactly once."""
        numbers = sorted([*self._free, *(page for pages in held for page in pages)])
        if numbers != list(range(self.total)):
            doubled = sorted({page for page in numbers if numbers.count(page) > 1})[:5]
            lost = sorted(set(range(self.total)) - set(numbers))[:5]
            raise ValueError(f"of {self.total} KV pages {len(numbers)} are accounted for: held twice {doubled}, lost {lost}")
