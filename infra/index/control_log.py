"""The control log in the index store: read what is new, append one decision (FORMAT.md section 7, protocol B1 to B5).

Here: `ControlLog` (the folded log, and its two operations) and the identity of the index. Not here: what entries mean (schemas/index/control.py).
Invariants: an append takes the number after everything that was read, so a decision is always made on the whole log; if another writer has taken that
number, the log is read on and the decision made again. Every successful append is in the log exactly once, and numbers have no gaps.
"""

import dataclasses
import threading
from collections.abc import Callable

from infra.failpoints import failpoint
from infra.index.store import IndexStore, check_exclusive_create, read_if_there
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.index.control import ControlState, Entry, Init, fold_entry, plan_entry
from schemas.index.lifecycle import EntryKind
from schemas.limits import CONTROL_ENTRY_BYTES_MAX

_CONFLICTS_MAX = 10_000  # each means that somebody else made progress
_LOOK_BACK_EVERY = 25  # refreshes: a worker's five seconds


def control_path(number: int) -> str:
    """Place of entry `number` in the store."""
    return f"control/{number:09d}"


class ControlLog:
    """The log, folded as far as it was read. Threads may share it; other processes append at the same time."""

    def __init__(self, store: IndexStore) -> None:
        self.store = store
        self._state = ControlState()
        self._lock = threading.RLock()
        self._gap_checked = False
        self._newest: bytes | None = None  # the last entry that was folded
        self._refreshes = 0

    @property
    def state(self) -> ControlState:
        """The fold as of the last `refresh` or `append`."""
        return self._state

    def refresh(self) -> ControlState:
        """Read and fold the entries that are new. Raises Corrupted (a damaged entry or a gap), Unavailable (the store does not answer, or is not the
        one that it was: `index_store_gone`)."""
        with self._lock:
            raw = self._read(self._state.next_number)
            if raw is not None or self._refreshes % _LOOK_BACK_EVERY == 0:
                self._look_back()
            self._refreshes += 1
            while raw is not None:
                self._state, self._newest = self._fold(raw), raw
                raw = self._read(self._state.next_number)
            if not self._gap_checked:
                self._check_gap()
            return self._state

    def append(self, make: Callable[[ControlState], Entry | None]) -> ControlState:
        """Append what `make` decides on the newest state (None: nothing). Returns the state after it.

        `make` is called again whenever another writer was faster, so it must have no effects. Raises what `plan_entry` raises.
        """
        with self._lock:
            for _ in range(_CONFLICTS_MAX):
                state = self.refresh()
                entry = make(state)
                if entry is None:
                    return state
                raw = plan_entry(state, entry)
                self._look_back()
                failpoint("before-control-append")
                if self.store.put_exclusive(control_path(state.next_number), raw):
                    failpoint("after-control-append")
                    self._state, self._newest = fold_entry(state, state.next_number, raw), raw
                    return self._state
        raise Unavailable(
            "control_log_contended",
            f"{_CONFLICTS_MAX} other entries came first: too many writers on {self.store.url}; try again in a moment",
        )

    def _fold(self, raw: bytes) -> ControlState:
        number = self._state.next_number
        try:
            return fold_entry(self._state, number, raw)
        except Corrupted as error:
            message = f"{control_path(number)} of {self.store.url}: {error.message}; restore it from a copy of the store"
            raise Corrupted(error.code, message) from error

    def _read(self, number: int) -> bytes | None:
        return read_if_there(self.store, control_path(number), CONTROL_ENTRY_BYTES_MAX)

    def _look_back(self) -> None:
        """A store that was emptied, or whose disk is not mounted, would look like one where nothing is new, and another one's entries like new ones."""
        path = control_path(self._state.next_number - 1)
        if self._newest is not None and self._read(self._state.next_number - 1) != self._newest:
            self._refreshes = 0  # so that the next refresh looks again
            raise Unavailable(
                "index_store_gone",
                f"{path} of {self.store.url} is gone or not the entry that was read before: mount or restore the index store that was there, or stop every "
                "process of this index to begin a new one",
            )

    def _check_gap(self) -> None:
        """Once for each log: an entry beyond the first missing number means that an entry was lost, at which reading would end in silence."""
        newest = max(self.store.list("control/"), default="")
        if newest >= control_path(self._state.next_number):
            if self._read(self._state.next_number) is not None:  # it was written between the reading and the listing
                self.refresh()
                return
            raise Corrupted(
                "control_log_gap",
                f"{control_path(self._state.next_number)} is missing but {newest} exists; restore it from a copy of the store",
            )
        self._gap_checked = True


def append_entry(control_log: ControlLog, make: Callable[[ControlState], Entry | None]) -> Entry | None:
    """Appends what `make` decides on the newest log. Returns the entry, or None if there was nothing to write.

    Most of the time there is nothing to write, and the log as it was last read says so already: then the store is not asked.
    """
    read = control_log.state
    if read.next_number and make(read) is None:
        return None
    decided: Entry | None = None

    def decide(state: ControlState) -> Entry | None:
        nonlocal decided
        decided = make(state)  # called again after each conflict: the last decision is the one that was written
        return decided

    control_log.append(decide)
    return decided


def ensure_init(log: ControlLog, init: Init, at_ms: int, by: str) -> ControlState:
    """Give an empty index its identity, or check that it has this one (A1). Raises Incompatible: `other_index` with what differs, or
    `no_exclusive_create` where the store cannot hold a control log."""
    if log.refresh().init is None:
        check_exclusive_create(log.store)
    state = log.append(lambda s: Entry(EntryKind.INIT, at_ms, by, init=init) if s.init is None else None)
    check_identity(state, init)
    return state


def check_identity(state: ControlState, wanted: Init) -> None:
    """Raises Incompatible unless the index is the one that `wanted` describes; topic ids are compared where both sides know them."""
    if state.init is None:
        raise Incompatible("no_index", "the index store is empty; run `aif topics apply` or start a worker first")
    differences = [
        f"{f.name}: index has {getattr(state.init, f.name)}, here {getattr(wanted, f.name)}"
        for f in dataclasses.fields(Init)
        if f.name != "topic_ids" and getattr(state.init, f.name) != getattr(wanted, f.name)
    ]
    differences += [
        f"topic id of {topic}: index has {found}, broker has {wanted.topic_ids[topic]}"
        for topic, found in state.init.topic_ids.items()
        if wanted.topic_ids.get(topic, found) != found
    ]
    if differences:
        raise Incompatible(
            "other_index",
            f"the index store belongs to another index ({'; '.join(differences)}); use the settings and the broker of this index, or another index store and "
            "data directory, and where a topic was deleted and made again, publish the catalogue again",
        )
