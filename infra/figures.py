"""What everything that measures prints: one JSON object of figures on standard output.

Its form is `{"command", "date", "machine", "versions", "config", "figures": {"name": {"value", "unit"}}}`. lab/benches.toml has the meanings and goals.
Rules: progress goes to standard error; the exit code is 0 when it ran, whatever the figures. Sizes are suffixes (`build_s_100000`), rows and
models prefixes (`online_retail.aif.gauc`); ratios are 0-1, `_pt` in points, `_pct` in percent. A figure that could not be measured has
the value null: it is named, never left out.
"""

import datetime as dt
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_LIBRARIES = ("aif", "torch", "numpy", "numba", "rocksdict", "faust-streaming", "confluent-kafka")


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the bounds of its interval; not a number where nothing was measured."""

    value: float
    low: float
    high: float


class HasUnits(Protocol):
    """A command that measures: its name after `aif`, and the unit of each of its figures."""

    @property
    def command(self) -> str: ...

    def unit_of(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class Measured:
    """A command of few figures, each with its unit."""

    command: str
    units: Mapping[str, str]

    def unit_of(self, name: str) -> str | None:
        """The unit of a figure, None where there is no such figure."""
        return self.units.get(name)


def describe_machine() -> dict[str, Any]:
    """What decides the figures, without names of people or hosts: processor and its vectors, usable cores, memory, system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def library_versions() -> dict[str, str]:
    """Python and the libraries that decide speed or arithmetic."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Its name, which may stand for several generations ("AMD EPYC"), and its widest vectors, which decide the figures of compiled code."""
    found = dict[str, str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    widest = next((vectors for flag, vectors in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in found.get("flags", "").split()), None)
    return ", ".join(part for part in (found.get("model name", platform.machine()), widest) if part)


@dataclass
class Figures:
    """Collects the figures of one run of `bench`; `config` is what the run was asked to do, and nothing that it found: runs with the same are compared."""

    bench: HasUnits
    config: Mapping[str, Any] = field(default_factory=dict)
    _figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=describe_machine)
    versions: Mapping[str, str] = field(default_factory=library_versions)
    date: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).date().isoformat())

    @classmethod
    def from_dict(cls, bench: HasUnits, raw: Mapping[str, Any]) -> "Figures":
        """What `as_dict` gave. KeyError where a part of it is missing, ValueError where it is of another bench."""
        if raw["command"] != bench.command:
            raise ValueError(f"figures of {raw['command']!r}, expected those of {bench.command!r}")
        return cls(bench, raw["config"], dict(raw["figures"]), raw["machine"], raw["versions"], raw["date"])

    def add(self, name: str, value: float | None) -> None:
        """One figure that the bench declares. A name is given once; not-a-number and infinity become null (JSON has neither)."""
        self._add(name, value, self._unit(name))

    def add_interval(self, name: str, interval: Interval) -> None:
        """A figure and the bounds of its interval, `NAME_low` and `NAME_high`."""
        for end, number in (("", interval.value), ("_low", interval.low), ("_high", interval.high)):
            self._add(f"{name}{end}", number, self._unit(name))

    def add_ratio(self, name: str, value: float | None, base: float | None) -> None:
        """A figure divided by another; null where either could not be measured, or the base is 0."""
        self.add(name, None if value is None or not base else value / base)

    def _unit(self, name: str) -> str:
        unit = self.bench.unit_of(name)
        assert unit is not None, f"{self.bench.command} does not declare a figure {name}"
        return unit

    def _add(self, name: str, value: float | None, unit: str) -> None:
        assert name not in self._figures, f"figure {name} was given twice"
        finite = value is None or math.isfinite(value)
        self._figures[name] = {"value": value if finite else None, "unit": unit}

    def value(self, name: str) -> float | int | None:
        """A figure given before. KeyError when it was not."""
        number: float | int | None = self._figures[name]["value"]
        return number

    def as_dict(self) -> dict[str, Any]:
        """The whole object."""
        return {
            "command": self.bench.command,
            "date": self.date,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "config": dict(self.config),
            "figures": dict(self._figures),
        }

    def print_json(self) -> None:
        """The object on one line of standard output."""
        print(json.dumps(self.as_dict(), default=str, allow_nan=False), flush=True)
