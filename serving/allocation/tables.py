"""The tables of values and costs that a server decides with: followed from the index store, one for each version of the model.

Here: reading tables, the fallback, the actions that this server can carry out, the unit of the price. Not here: a table's meaning
(schemas/allocation.py), fitting (streams/allocation), the decision (serving/core/choice.py).
Fallback: the version's own table (by its gate: the value model, else its mean row), then the mean row of the newest other version's table, then the
built-in one, whose values have the shape of a logarithm. A table that cannot be read is named in `last_error`, and the one before stays.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import structlog

from infra.guarded_thread import OneThread
from infra.index.store import IndexStore
from schemas.actions import FULL, LEVELS, TWO_PASS, Kind, list_actions
from schemas.allocation import (
    ASSUMED_AGES,
    ASSUMED_COSTS,
    TABLE_BYTES_MAX,
    ActionTable,
    Costs,
    Facts,
    Values,
    decode_table,
    table_path,
    table_prefix,
)
from schemas.errors import AifError, Corrupted
from schemas.knapsack import find_price
from serving.core.choice import Level, Prepared

SERVED = (TWO_PASS, FULL)  # levels that this engine can carry out
_LENGTHS = (500, 700, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 10_000)
_TRIED = 5  # newest tables of a version, until one can be read
_STEEPNESS = 50.0  # candidates: the built-in value of the first n is log(1 + n / 50)
_TWO_PASS_KEEPS = 0.995  # of it
_TYPICAL_BEHAVIOURS = 1_000
_UNIT_MIN = 1e-12  # the price must rise with the queue, whatever the values are

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.allocation")


def built_in_table(lengths: tuple[int, ...] = _LENGTHS) -> ActionTable:
    """The table without any fit: every request has the same value, which grows with the logarithm of its candidates."""
    actions = list_actions(SERVED, lengths)
    shares = [np.log1p(action.candidates / _STEEPNESS) / np.log1p(lengths[-1] / _STEEPNESS) for action in actions]
    row = tuple(
        float(share) * (_TWO_PASS_KEEPS if action.level == TWO_PASS else 1.0) for share, action in zip(shares, actions, strict=True)
    )
    table = ActionTable(0, 0, actions, Costs(ASSUMED_COSTS), Values(0.0, {}, (), (row,)), row, 1.0, ages=ASSUMED_AGES)
    return replace(table, queue_price=quarter_price(table))


def servable(table: ActionTable) -> ActionTable:
    """The table without the actions that this engine cannot carry out: the caller's order, and levels of parts. Raises Corrupted (`bad_table`)."""
    ranks = [(LEVELS.index(action.level), action.candidates) for action in table.actions if action.level in SERVED]
    if ranks != sorted(ranks) or table.actions[-1].level != FULL:
        raise Corrupted(
            "bad_table", f"the allocation table has no rising lengths that end with level {FULL}; fit a new one: `aif allocate fit`"
        )
    kept = [i for i, action in enumerate(table.actions) if action.kind in (Kind.DROP, Kind.CACHED) or action.level in SERVED]
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        table,
        actions=tuple(table.actions[i] for i in kept),
        mean_row=tuple(table.mean_row[i] for i in kept),
        values=replace(table.values, shares=tuple(tuple(row[i] for i in kept) for row in table.values.shares)),
        mix=tuple((place[i], share) for i, share in table.mix if i in place),
    )


def prepare(table: ActionTable, blind: bool) -> Prepared:
    """A table as the decision reads it. `blind`: only its mean row decides."""
    kinds = [action.kind for action in table.actions]
    drop, cached = (kinds.index(kind) if kind in kinds else -1 for kind in (Kind.DROP, Kind.CACHED))
    two_pass, full = (_level(table, name) for name in SERVED)
    return Prepared(table, blind, quarter_price(table), full, two_pass, drop, cached if table.ages else -1)


def _level(table: ActionTable, name: str) -> Level:
    places = tuple(place for place, action in enumerate(table.actions) if action.level == name)
    return Level(table.costs.levels[name if places else FULL], places, tuple(table.actions[place].candidates for place in places))


def quarter_price(table: ActionTable) -> float:
    """The price at which a typical request's list costs a quarter of full work: the unit of the queue price and of the floor.

    It comes from the table's own costs and mean row, so it is in their units. Costs that are wrong by a factor give the same choices.
    """
    facts = Facts(table.actions[-1].candidates, _TYPICAL_BEHAVIOURS)
    ranks = [place for place, action in enumerate(table.actions) if action.kind is Kind.RANK]
    value_A, cost_A = (np.array(row)[ranks] for row in (table.values_of(facts, blind=True), table.costs_ms(facts)))
    return max(_UNIT_MIN, find_price(value_A[None], cost_A[None], float(cost_A[-1]) / 4))


class Tables(OneThread):
    """The newest readable table of each version. `find` is called by every request; the thread reads the store in between."""

    def __init__(self, store: IndexStore | None, version: Callable[[], int | None], every_s: float = 10.0) -> None:
        """`store` None: the built-in table only. `version`: the one that is served now."""
        self._store, self._version, self._every_s = store, version, every_s
        self._built_in = servable(built_in_table())
        self.known: Mapping[int, ActionTable] = {}
        self.last_error = ""
        super().__init__("allocation-tables")

    def start(self) -> None:
        """Begins to follow the store."""
        if self._store is not None:
            super().start()

    def version(self) -> int:
        """The version that is served; -1: none yet."""
        version = self._version()
        return -1 if version is None else version

    def find(self, version: int | None = None) -> tuple[ActionTable, bool]:
        """(the table for a version, None: the one that is served; whether only its mean row may decide)."""
        known, version = self.known, self._version() if version is None else version
        if version is not None and version in known:
            return known[version], not known[version].gate.serves
        return (known[max(known)], True) if known else (self._built_in, True)

    def age_s(self) -> float | None:
        """Seconds since the table that decides was made; None for the built-in one."""
        table, _ = self.find()
        return max(0.0, time.time() - table.made_at_ms / 1000) if table.made_at_ms else None

    def look(self) -> None:
        """Reads the newest table of the version that is served, unless it is known already; if that cannot be read, the one before it."""
        version = self._version()
        if self._store is None or version is None:
            return
        try:
            error = self._read_newest(self._store, version)
        except AifError as fault:
            error = str(fault)
        if error and error != self.last_error:
            logger.warning("allocation_table_not_read", error=error, version=version)
        self.last_error = error

    def _read_newest(self, store: IndexStore, version: int) -> str:
        """Takes the newest readable table. Returns why the newest of all could not be read."""
        known, error = self.known.get(version), ""
        for path in reversed(store.list(table_prefix(version))[-_TRIED:]):
            if known is not None and path == table_path(version, known.made_at_ms):
                break
            try:
                table = servable(decode_table(store.get(path, TABLE_BYTES_MAX), version))
            except AifError as fault:
                error = error or str(fault)
                continue
            if table != known:  # a copy under another name is read at every look
                newest = {number: one for number, one in self.known.items() if number == max(self.known)}
                self.known = {**newest, version: table}
                logger.info("allocation_table", table=table.name, value_serves=table.gate.serves)
            break
        return error

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.look()
            self.stopping.wait(self._every_s)
