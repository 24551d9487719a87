"""Rows that became no event, or of which a part was left out, with file, row and reason.

Memory: the first 1,000 rows are kept with their reasons. All are counted, by section and reason. The first million are remembered, so that each counts
once; later ones count each time they are met.
"""

from collections import Counter
from dataclasses import dataclass, field

_NAMED_MAX = 1_000
KNOWN_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that became no event, or a part of one that was left out."""

    section: str
    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} row {self.row} [{self.section}]: {self.reason}"


@dataclass
class Rejections:
    """Every rejected row once; the first 1,000 with their reasons. `counts` has their number by "[section] reason", up to the colon of the reason."""

    named: list[RejectedRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)

    def add(self, section: str, file: str, row: int, reason: str) -> None:
        """Notes a row; the same row of the same section is noted once."""
        if (key := (section, file, row)) in self._seen:
            return
        if len(self._seen) < KNOWN_MAX:
            self._seen.add(key)
        self.counts[f"[{section}] {reason.partition(':')[0]}"] += 1
        if len(self.named) < _NAMED_MAX:
            self.named.append(RejectedRow(section, file, row, reason))

    def __len__(self) -> int:
        return self.counts.total()
