"""One table of a mapping file, read key by key: the type of each value is checked, and a key that nobody has read is an error with a suggestion.

Here: `Section`, and the one form of the errors of a mapping file. Not here: which keys there are (mapping.py).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import Misconfigured, suggest


def reject(path: Path, key: str, expectation: str) -> Misconfigured:
    """The error of a mapping file (`bad_mapping`): which file, which key, and what is expected there."""
    place = f"{path.name}: {key}" if key else path.name
    return Misconfigured("bad_mapping", f"{place} {expectation}; docs/IMPORT.md describes the file")


class Section:
    """A table of the file. `given`: whether the file has it. Every getter marks its key as read, and raises Misconfigured (`bad_mapping`) for a value of
    another type."""

    def __init__(self, path: Path, name: str, raw: Mapping[str, Any], given: bool = True) -> None:
        self.path, self.name, self.raw, self.given = path, name, raw, given
        self._read: set[str] = set()

    def reject(self, key: str, expectation: str) -> Misconfigured:
        """The error of one key of this table, to be raised by the caller."""
        return reject(self.path, f"[{self.name}] {key}" if self.name else key, expectation)

    def any(self, key: str) -> Any:
        """The value as it is written; None if it is not given."""
        self._read.add(key)
        return self.raw.get(key)

    def section(self, key: str) -> "Section":
        """A table inside this one; an empty one if it is not given."""
        value = self.any(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.reject(key, f"is {value!r}, expected a table")
        return Section(self.path, f"{self.name}.{key}" if self.name else key, value or {}, given=value is not None)

    def text(self, key: str, default: str | None = None) -> str:
        """A text. Without a default it is required."""
        value = self.any(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.reject(key, f"is {'missing' if value is None else repr(value)}, expected text")
        return value

    def optional_text(self, key: str) -> str | None:
        """A text; None if it is not given."""
        return None if self.any(key) is None else self.text(key)

    def texts(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """A list of texts; one text alone is a list of it."""
        value = self.any(key)
        if value is None:
            return default
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.reject(key, f"is {value!r}, expected a list of texts")
        return value

    def listed(self, key: str) -> Sequence[str | int | float]:
        """A list of texts and numbers, not empty if it is given."""
        value = self.any(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(v, str | int | float) for v in value):
            raise self.reject(key, f'is {value!r}, expected a list like ["click", "purchase"]')
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.any(key)
        if value is not None and not isinstance(value, bool):
            raise self.reject(key, f"is {value!r}, expected true or false")
        return default if value is None else value

    def optional_number(self, key: str, least: float = 0.0) -> float | None:
        """A number above `least` and below 10^12; None if it is not given."""
        value = self.any(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < 1e12:
            raise self.reject(key, f"is {value!r}, expected a number above {least:g}")
        return float(value)

    def number(self, key: str, default: float, least: float = 0.0) -> float:
        """A number above `least`. `least` itself is allowed if it is the default."""
        if self.raw.get(key) == least == default:
            self._read.add(key)
            return default
        value = self.optional_number(key, least)
        return default if value is None else value

    def optional_count(self, key: str, least: int = 1) -> int | None:
        """A whole number from `least` on; None if it is not given."""
        value = self.any(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.reject(key, f"is {value!r}, expected a whole number from {least}")
        return value

    def count(self, key: str, default: int, least: int = 1) -> int:
        """A whole number from `least` on."""
        value = self.optional_count(key, least)
        return default if value is None else value

    def choice(self, key: str, choices: Sequence[str], default: Any) -> Any:
        """One of `choices`."""
        value = self.any(key)
        if value is not None and value not in choices:
            raise self.reject(key, f"is {value!r}, expected one of {', '.join(choices)}")
        return default if value is None else value

    def end(self, known: Iterable[str] = (), hint: str = "", only_near: bool = False) -> None:
        """Raises Misconfigured for the first key that nobody has read. With `only_near` only for a key that is not in `known` but spelt like one of them."""
        known = tuple(known)
        for key in self.raw:
            if key in self._read or (only_near and (key in known or not difflib.get_close_matches(key, known, n=1))):
                continue
            raise self.reject(key, f"is not known here{hint}; {suggest(key, {*known, *self._read})}")
